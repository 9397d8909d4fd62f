// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampler.h"

#include "kernels/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace quadrille {

Sampler::Sampler(Backend& backend, Communicator& comm, Range vocab, int64_t known, int32_t max_rows)
    : backend_(backend),
      comm_(comm),
      first_id_(static_cast<int32_t>(vocab.begin)),
      valid_(static_cast<int32_t>(std::clamp<int64_t>(known - vocab.begin, 0, vocab.size()))),
      max_rows_(max_rows),
      local_(backend, 2, max_rows),
      gathered_(backend, comm.size(), 2 * int64_t{max_rows}),
      host_(static_cast<size_t>(2 * comm.size()) * static_cast<size_t>(max_rows)),
      tokens_(static_cast<size_t>(max_rows)) {}

std::span<const int32_t> Sampler::greedy(View<const float> logits) {
    const int64_t m = logits.rows;
    require(m <= max_rows_, "sampler rows within its limit");
    float* values = local_.data();
    auto* ids = reinterpret_cast<int32_t*>(values + m);
    backend_.argmax(values, ids, logits, first_id_, valid_);
    const int64_t bytes = 2 * m * int64_t{sizeof(float)};
    comm_.all_gather(gathered_.data(), values, bytes);
    backend_.download(host_.data(), gathered_.data(), bytes * comm_.size());
    for (int64_t row = 0; row < m; ++row) {
        float best = 0.0f;
        int32_t token = -1;
        for (int rank = 0; rank < comm_.size(); ++rank) {  // rank order is id order
            const float* part = host_.data() + 2 * m * rank;
            const auto id = std::bit_cast<int32_t>(part[m + row]);
            if (id >= 0 && (token < 0 || part[row] > best)) {
                best = part[row];
                token = id;
            }
        }
        if (token < 0) {
            throw Error(ErrorKind::internal,
                        fmt::format("row {} of the pass has no logit that is a number", row));
        }
        tokens_[static_cast<size_t>(row)] = token;
    }
    return {tokens_.data(), static_cast<size_t>(m)};
}

}  // namespace quadrille
