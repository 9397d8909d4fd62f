// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/next_token.h"

namespace quadrille {
namespace {

// What a rank found best in its part of the vocabulary.
struct Best {
    float value = 0;
    int32_t id = -1;
};

}  // namespace

NextToken::NextToken(ModelSession& session, int64_t rows) : session_(session) {
    Backend& backend = session.backend();
    const TargetModel& target = session.models().target();
    rows_ = {backend, rows, target.config().hidden_size};
    logits_ = {backend, rows, target.plan().vocab.size()};
    values_ = {backend, 1, rows};
    ids_ = {backend, 1, rows};
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
    const std::vector<int32_t> found = most_likely(m);
    int64_t right = 0;
    for (int64_t i = 0; i < m; ++i) {
        if (mask[i] != 0 && found[static_cast<size_t>(i)] == next[i]) ++right;
    }
    return right;
}

// Over all ranks: the largest logit, ties to the lowest id, as greedy decoding chooses.
std::vector<int32_t> NextToken::most_likely(int64_t rows) {
    Backend& backend = session_.backend();
    const Range vocab = session_.models().target().plan().vocab;
    backend.argmax(values_.data(), ids_.data(), logits_.first(rows),
                   static_cast<int32_t>(vocab.begin), static_cast<int32_t>(vocab.size()));
    const auto m = static_cast<size_t>(rows);
    std::vector<float> values(m);
    std::vector<int32_t> ids(m);
    backend.download(values.data(), values_.data(), rows * int64_t{sizeof(float)});
    backend.download(ids.data(), ids_.data(), rows * int64_t{sizeof(int32_t)});
    std::vector<Best> own(m);
    for (size_t i = 0; i < m; ++i) own[i] = {values[i], ids[i]};
    const auto ranks = static_cast<size_t>(session_.group().size());
    std::vector<Best> all(m * ranks);
    session_.group().all_gather_host(all.data(), own.data(), rows * int64_t{sizeof(Best)});
    for (size_t rank = 0; rank < ranks; ++rank) {
        for (size_t i = 0; i < m; ++i) {
            const Best& other = all[rank * m + i];
            if (rank == 0 || other.value > own[i].value) own[i] = other;
        }
    }
    for (size_t i = 0; i < m; ++i) ids[i] = own[i].id;
    return ids;
}

}  // namespace quadrille
