// SPDX-License-Identifier: Apache-2.0
// SequencePaths: the inner loops of KDA, attention, the indexer and the gates, one set per
// instruction set, chosen with Paths. All sets are compiled from one source
// (kernels/cpu/sequence_loops.h) in which the order of every operation is written down and no
// multiply-add is fused: they differ in vector width and give the same bits.
#pragma once

#include "kernels/cpu/paths.h"
#include "kernels/matrix.h"

#include <cstdint>

namespace quadrille::cpu {

inline constexpr int64_t kMaxTaps = 8;

// Channels [first, first + count) of a short convolution: out[i] = silu(sum over taps of
// weight[ch][tap] * in[tap][ch]), ch = first + i, oldest tap first.
struct ShortConvolution {
    const float* const* in = nullptr;  // (taps) rows of raw inputs
    const float* weight = nullptr;     // (channels, taps)
    int64_t taps = 0;
    int64_t first = 0;
    int64_t count = 0;
};

// One token of one head of the delta rule, d keys and d values:
//   S = diag(decay) S;  S += k (beta (v - S^T k))^T;  out = S^T q.
struct DeltaRule {
    const float* q = nullptr;  // (d), nullptr: out is not wanted
    const float* k = nullptr;
    const float* v = nullptr;
    const float* decay = nullptr;
    float beta = 0.0f;
    float* out = nullptr;      // (d)
    float* scratch = nullptr;  // (d)
    int64_t d = 0;
    bool store = true;  // false: memory keeps the old S
};

// Softmax attention of some heads of one row over the same n positions.
struct Attention {
    const float* query = nullptr;  // (heads, d)
    int64_t heads = 0;
    int64_t d = 0;
    const float* const* keys = nullptr;    // (n) places; a key is the d floats `offset` behind one
    const float* const* values = nullptr;  // (n) likewise, `width` floats
    int64_t offset = 0;
    int64_t width = 0;
    int64_t n = 0;  // > 0
    float scale = 1.0f;
    float* scores = nullptr;  // scratch (heads, n)
};

// out (m, k) += x (m, count) times rows [first, first + count) of a native matrix (.., k), summed
// kCombinedRows rows at a time.
inline constexpr int64_t kCombinedRows = 16;
struct Combination {
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t m = 0;
    const Matrix* matrix = nullptr;
    int64_t first = 0;
    int64_t count = 0;
    float* scratch = nullptr;  // (kCombinedRows, k)
};

// scores (pools) of the indexer for one row.
struct PoolScores {
    const float* query = nullptr;   // (heads, d)
    const float* weight = nullptr;  // (heads)
    const float* pools = nullptr;   // (pools, d)
    int64_t heads = 0;
    int64_t d = 0;
    int64_t count = 0;
    float score_scale = 1.0f;
    float head_scale = 1.0f;
};

struct SequencePaths {
    const char* name = "";
    void (*convolve)(float* out, const ShortConvolution& of) = nullptr;
    // out[i] = exp(lower_bound * sigmoid(rate * (f[i] + bias[i])))
    void (*decay)(float* out, const float* f, const float* bias, float rate, float lower_bound,
                  int64_t count) = nullptr;
    // x *= scale / sqrt(sum x^2 + eps)
    void (*normalise)(float* x, float scale, float eps, int64_t d) = nullptr;
    void (*delta_rule)(float* state, const DeltaRule& of) = nullptr;
    // x = rms_norm(x) * weight * sigmoid(gate)
    void (*gated_norm)(float* x, const float* weight, const float* gate, float eps,
                       int64_t d) = nullptr;
    // out (heads, width)
    void (*attend)(float* out, const Attention& of) = nullptr;
    void (*combine)(float* out, int64_t out_stride, const Combination& of) = nullptr;
    // scores[p] = sum_h weight[h] head_scale relu(query[h] . pool * score_scale)
    void (*score_pools)(float* scores, const PoolScores& of) = nullptr;
    // out[i] = silu(min(gate[i], bound)) * clamp(up[i], -bound, bound); out may be gate or up.
    void (*swiglu)(float* out, const float* gate, const float* up, float bound,
                   int64_t count) = nullptr;
};

// Throws Error{device} when this build or machine lacks `isa`.
const SequencePaths& sequence_paths_of(Isa isa);

extern const SequencePaths kSequencePlain;
extern const SequencePaths kSequenceAvx2;
extern const SequencePaths kSequenceAvx512;

}  // namespace quadrille::cpu
