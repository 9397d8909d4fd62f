// SPDX-License-Identifier: Apache-2.0
#include "kernels/scratch_bound.h"

#include <algorithm>

namespace quadrille {

namespace {

constexpr int64_t kFloat = sizeof(float);

// ---- limits that the CUDA ops keep (kernels/cuda): what is larger is done in slabs --------------
constexpr int64_t kPairs = 32768;                         // rows of experts at once
constexpr int64_t kNativePairs = 8192;                    // the same of native experts
constexpr int64_t kGroupRows = 16;                        // an expert's rows are padded to
constexpr int64_t kPairFloats = int64_t{64} << 20;        // of down products at once
constexpr int64_t kPartialFloats = int64_t{64} << 20;     // of split EXL3 products
constexpr int64_t kNativeSlab = 1024;                     // rows of native products at once
constexpr int64_t kKeys = int64_t{1} << 26;               // scores of pools at once
constexpr int64_t kLatentFloats = int64_t{64} << 20;      // of attention over latents
constexpr int64_t kDraftPieceFloats = int64_t{16} << 20;  // of the drafter's attention
constexpr int64_t kPrepared = 64;                         // rows that a CPU's KDA prepares at once

int64_t cuda_experts(const ScratchShape& s) {
    if (s.experts == 0 || s.topk == 0) return 0;
    const int64_t most = s.native_experts ? kNativePairs : kPairs;
    const int64_t rows = std::min(s.rows, std::max<int64_t>(most / s.topk, 1));
    const int64_t pairs = rows * s.topk;
    const int64_t positions = pairs + (kGroupRows - 1) * std::min(pairs, s.experts);
    const int64_t down = pairs * s.segments * s.hidden;
    const int64_t held = 2 * positions * s.expert_width * kFloat + 2 * positions * s.expert_width +
                         (s.native_experts ? down : std::min(down, kPairFloats)) * kFloat +
                         s.segments * rows * s.hidden * kFloat;
    // Beside these: the shared expert's, or the routed experts' inputs and partial sums.
    const int64_t shared = 2 * rows * s.shared_width * kFloat;
    const int64_t inputs =
        s.native_experts ? positions * s.hidden * kFloat : 4 * positions * s.hidden;
    return held + std::max(shared, inputs);
}

int64_t cuda_bound(const ScratchShape& s) {
    const int64_t exl3 = 2 * s.rows * s.widest;  // rotated inputs, fp16
    const int64_t native =
        std::min(s.rows, kNativeSlab) * kFloat * (s.widest + s.segments * s.hidden);
    const int64_t attention =
        std::min(kLatentFloats, s.rows * s.mla_heads * 3 * s.latent_dim) * kFloat;
    const int64_t keys = std::min(kKeys, s.rows * s.pools) * kFloat;
    const int64_t draft =
        (s.draft_rows * s.draft_width + (s.draft_rows > 0 ? kDraftPieceFloats : 0)) * kFloat;
    const int64_t draws = s.filtered ? s.decode_rows * s.vocab * kFloat : 0;
    const int64_t largest =
        std::max({cuda_experts(s), exl3, native, attention, keys, draft, draws});
    // Partial sums of products lie in an array of their own.
    const int64_t partial =
        std::min(kPartialFloats, s.rows * std::max(s.widest, s.hidden)) * kFloat;
    return largest + partial;
}

int64_t cpu_bound(const ScratchShape& s) {
    const int64_t wide = std::max({s.widest, s.hidden, s.expert_width, s.shared_width});
    int64_t floats = s.rows * s.widest;                       // rotated inputs
    floats += s.rows * 128 + s.segments * s.rows * s.hidden;  // a block, segments
    if (s.experts > 0) {
        const int64_t width = std::max(s.expert_width, s.shared_width);
        floats += s.rows * (s.topk + 1) * width;   // activations
        floats += s.rows * width;                  // up
        floats += s.rows * s.hidden;               // gathered
        floats += s.rows * s.topk * s.hidden;      // by pair
        floats += s.segments * s.rows * s.hidden;  // sums
    }
    floats += kPrepared * 8 * wide;
    floats += s.draft_rows * s.draft_width;
    return floats * kFloat;
}

}  // namespace

int64_t scratch_bound(const std::string& backend, const ScratchShape& shape) {
    return backend == "cuda" ? cuda_bound(shape) : cpu_bound(shape);
}

}  // namespace quadrille
