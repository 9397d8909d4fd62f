// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/next_token.h"

namespace quadrille {

NextToken::NextToken(ModelSession& session, int64_t rows)
    : session_(session),
      best_(session.backend(), session.model_comm(), session.models().target().plan().vocab,
            session.models().config().vocab_size, rows, 1) {
    Backend& backend = session.backend();
    const TargetModel& target = session.models().target();
    rows_ = {backend, rows, target.config().hidden_size};
    logits_ = {backend, rows, target.plan().vocab.size()};
    values_ = {backend, rows, 1};
    ids_ = {backend, rows, 1};
}

int64_t NextToken::right(const std::vector<float>& rows, bool normed, const int32_t* next,
                         const uint8_t* mask) {
    Backend& backend = session_.backend();
    const TargetModel& target = session_.models().target();
    const int64_t m = std::ssize(rows) / target.config().hidden_size;
    const View<float> in = rows_.first(m);
    backend.upload(in.data, rows.data(), std::ssize(rows) * int64_t{sizeof(float)});
    if (!normed) target.norm_final(in);
    backend.linear(logits_.first(m), in, target.head());
    best_.find(values_.first(m), ids_.first(m), logits_.first(m));
    std::vector<int32_t> found(static_cast<size_t>(m));
    backend.download(found.data(), ids_.data(), m * int64_t{sizeof(int32_t)});
    int64_t right = 0;
    for (int64_t i = 0; i < m; ++i) {
        if (mask[i] != 0 && found[static_cast<size_t>(i)] == next[i]) ++right;
    }
    return right;
}

}  // namespace quadrille
