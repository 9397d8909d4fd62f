// SPDX-License-Identifier: Apache-2.0
// The loops behind SequencePaths, in plain C++ that compilers turn into vectors of whatever width
// the including file is compiled for. Everything has internal linkage: a copy compiled for one
// instruction set must never serve a file compiled for another. For the same reason nothing of the
// standard library is instantiated here.
//
// Sums follow kernels/cpu/lanes.h: sixteen lanes per chunk of 256 terms, folded in halves.
#pragma once

#include "kernels/cpu/exponential.h"
#include "kernels/cpu/sequence_paths.h"
#include "kernels/cpu/simd.h"
#include "kernels/dtype.h"

#include <cstdint>
#include <cstring>

namespace quadrille::cpu {
namespace {

constexpr int64_t kWide = 16;
constexpr int64_t kTerms = 256;
// Sums over positions are finished per block of this many of the row's own list.
constexpr int64_t kPositions = 64;

// Vectors of sixteen that fit the registers beside their operands.
#if defined(__AVX512F__)
constexpr int kRegisterBlocks = 8;
#elif defined(__AVX2__)
constexpr int kRegisterBlocks = 4;
#else
constexpr int kRegisterBlocks = 4;
#endif

constexpr int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// out[j] = sum_i a[i] b[j][i]: kCount dot products that share one side, each as in lanes.h.
template <int kCount>
inline void dots(float* out, const float* a, const float* const* b, int64_t n) {
    Sixteen total[kCount];
    for (int j = 0; j < kCount; ++j) total[j] = zero();
    for (int64_t first = 0; first < n; first += kTerms) {
        const int64_t last = smaller(n, first + kTerms);
        Sixteen part[kCount];
        for (int j = 0; j < kCount; ++j) part[j] = zero();
        int64_t i = first;
        for (; i + kWide <= last; i += kWide) {
            const Sixteen x = load(a + i);
            for (int j = 0; j < kCount; ++j) part[j] = part[j] + x * load(b[j] + i);
        }
        if (i < last) {
            const Sixteen x = load_some(a + i, last - i);
            for (int j = 0; j < kCount; ++j) {
                part[j] = part[j] + x * load_some(b[j] + i, last - i);
            }
        }
        for (int j = 0; j < kCount; ++j) total[j] = total[j] + part[j];
    }
    for (int j = 0; j < kCount; ++j) out[j] = fold(total[j]);
}

inline float square_sum(const float* x, int64_t n) {
    float sum = 0.0f;
    dots<1>(&sum, x, &x, n);
    return sum;
}

struct Term {
    const float* row;
    float weight;
};

// Columns [j, j + 16 kBlocks) of the sum below, in registers.
template <bool kAdd, int kBlocks, class Terms>
inline void accumulate_columns(float* out, int64_t j, int64_t first, int64_t end,
                               const Terms& terms) {
    Sixteen sum[kBlocks];
    for (int b = 0; b < kBlocks; ++b) sum[b] = zero();
    for (int64_t i = first; i < end; ++i) {
        const Term term = terms(i);
        const Sixteen weight = broadcast(term.weight);
        for (int b = 0; b < kBlocks; ++b) {
            sum[b] = sum[b] + weight * load(term.row + j + b * kWide);
        }
    }
    for (int b = 0; b < kBlocks; ++b) {
        float* to = out + j + b * kWide;
        store(to, kAdd ? load(to) + sum[b] : sum[b]);
    }
}

// out (width) = (kAdd: out +) the sum over i in [first, end), ascending, of weight times row of
// terms(i).
template <bool kAdd, class Terms>
inline void accumulate(float* out, int64_t width, int64_t first, int64_t end, const Terms& terms) {
    int64_t j = 0;
    for (; j + kRegisterBlocks * kWide <= width; j += kRegisterBlocks * kWide) {
        accumulate_columns<kAdd, kRegisterBlocks>(out, j, first, end, terms);
    }
    for (; j + kWide <= width; j += kWide) {
        accumulate_columns<kAdd, 1>(out, j, first, end, terms);
    }
    for (; j < width; ++j) {
        float sum = 0.0f;
        for (int64_t i = first; i < end; ++i) {
            const Term term = terms(i);
            sum += term.weight * term.row[j];
        }
        out[j] = kAdd ? out[j] + sum : sum;
    }
}

// ---- KDA ----------------------------------------------------------------------------------------

template <int kTaps>
inline void convolve_taps(float* __restrict out, const ShortConvolution& of) {
    const int64_t taps = kTaps > 0 ? kTaps : of.taps;
    const float* __restrict weight = of.weight + of.first * taps;
    const float* __restrict in[kMaxTaps];
    for (int64_t j = 0; j < taps; ++j) in[j] = of.in[j] + of.first;
    for (int64_t i = 0; i < of.count; ++i) {
        float sum = 0.0f;
        for (int64_t j = 0; j < taps; ++j) sum += weight[i * taps + j] * in[j][i];
        out[i] = sum;
    }
    for (int64_t i = 0; i < of.count; ++i) out[i] *= sigmoid(out[i]);
}

void convolve(float* out, const ShortConvolution& of) {
    if (of.taps == 4) {
        convolve_taps<4>(out, of);
    } else {
        convolve_taps<0>(out, of);
    }
}

void decay(float* __restrict out, const float* __restrict f, const float* __restrict bias,
           float rate, float lower_bound, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        out[i] = exp_of(lower_bound * sigmoid(rate * (f[i] + bias[i])));
    }
}

void normalise(float* x, float scale, float eps, int64_t d) {
    const float factor = scale / __builtin_sqrtf(square_sum(x, d) + eps);
    for (int64_t i = 0; i < d; ++i) x[i] *= factor;
}

void gated_norm(float* __restrict x, const float* __restrict weight, const float* __restrict gate,
                float eps, int64_t d) {
    const float mean = square_sum(x, d) / static_cast<float>(d);
    const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
    for (int64_t i = 0; i < d; ++i) x[i] = x[i] * inverse * weight[i] * sigmoid(gate[i]);
}

// Columns [j, j + 16 kBlocks) of every key row: S = decay S + k delta; out += q S, in registers.
// Without kStore memory keeps the old S. All forms do the same to every element.
template <bool kStore, bool kRead, int kBlocks>
inline void update_columns(float* state, const DeltaRule& of, int64_t j) {
    Sixteen delta[kBlocks];
    Sixteen out[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
        delta[b] = load(of.scratch + j + b * kWide);
        out[b] = zero();
    }
    for (int64_t i = 0; i < of.d; ++i) {
        float* s = state + i * of.d + j;
        const Sixteen decayed = broadcast(of.decay[i]);
        const Sixteen k = broadcast(of.k[i]);
        const Sixteen q = broadcast(kRead ? of.q[i] : 0.0f);
        for (int b = 0; b < kBlocks; ++b) {
            const Sixteen updated = decayed * load(s + b * kWide) + k * delta[b];
            if constexpr (kStore) store(s + b * kWide, updated);
            if constexpr (kRead) out[b] = out[b] + q * updated;
        }
    }
    if constexpr (kRead) {
        for (int b = 0; b < kBlocks; ++b) store(of.out + j + b * kWide, out[b]);
    }
}

template <bool kStore, bool kRead>
inline void update_state(float* state, const DeltaRule& of) {
    constexpr int kBlocks = kRegisterBlocks / 2;
    int64_t j = 0;
    for (; j + kBlocks * kWide <= of.d; j += kBlocks * kWide) {
        update_columns<kStore, kRead, kBlocks>(state, of, j);
    }
    for (; j + kWide <= of.d; j += kWide) update_columns<kStore, kRead, 1>(state, of, j);
    for (; j < of.d; ++j) {
        float sum = 0.0f;
        for (int64_t i = 0; i < of.d; ++i) {
            float* s = state + i * of.d + j;
            const float updated = of.decay[i] * *s + of.k[i] * of.scratch[j];
            if constexpr (kStore) *s = updated;
            if constexpr (kRead) sum += of.q[i] * updated;
        }
        if constexpr (kRead) of.out[j] = sum;
    }
}

void delta_rule(float* state, const DeltaRule& of) {
    // What the decayed state says of k, then what it lacks.
    accumulate<false>(of.scratch, of.d, 0, of.d, [&](int64_t i) {
        return Term{state + i * of.d, of.k[i] * of.decay[i]};
    });
    for (int64_t j = 0; j < of.d; ++j) of.scratch[j] = of.beta * (of.v[j] - of.scratch[j]);
    if (of.q == nullptr) {
        update_state<true, false>(state, of);
    } else if (of.store) {
        update_state<true, true>(state, of);
    } else {
        update_state<false, true>(state, of);
    }
}

// ---- attention ----------------------------------------------------------------------------------

inline void score_block(float* scores, const float* query, const Attention& of, int64_t first,
                        int64_t end) {
    int64_t i = first;
    for (; i + 4 <= end; i += 4) {
        const float* keys[4];
        for (int64_t j = 0; j < 4; ++j) keys[j] = of.keys[i + j] + of.offset;
        dots<4>(scores + i, query, keys, of.d);
    }
    for (; i < end; ++i) {
        const float* key = of.keys[i] + of.offset;
        dots<1>(scores + i, query, &key, of.d);
    }
    for (i = first; i < end; ++i) scores[i] *= of.scale;
}

inline float largest_of(const float* scores, int64_t n) {
    float lane[kWide];
    for (int64_t l = 0; l < kWide; ++l) lane[l] = scores[0];
    int64_t i = 0;
    for (; i + kWide <= n; i += kWide) {
        for (int64_t l = 0; l < kWide; ++l) {
            lane[l] = scores[i + l] > lane[l] ? scores[i + l] : lane[l];
        }
    }
    for (int64_t l = 0; i + l < n; ++l) {
        lane[l] = scores[i + l] > lane[l] ? scores[i + l] : lane[l];
    }
    float largest = lane[0];
    for (int64_t l = 1; l < kWide; ++l) largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

// scores = softmax(scores)
inline void softmax(float* scores, int64_t n) {
    const float largest = largest_of(scores, n);
    for (int64_t i = 0; i < n; ++i) scores[i] = exp_of(scores[i] - largest);
    float total = 0.0f;
    for (int64_t first = 0; first < n; first += kPositions) {
        const int64_t end = smaller(n, first + kPositions);
        Sixteen part = zero();
        int64_t i = first;
        for (; i + kWide <= end; i += kWide) part = part + load(scores + i);
        if (i < end) part = part + load_some(scores + i, end - i);
        total += fold(part);
    }
    const float inverse = 1.0f / total;
    for (int64_t i = 0; i < n; ++i) scores[i] *= inverse;
}

void attend(float* out, const Attention& of) {
    for (int64_t first = 0; first < of.n; first += kPositions) {
        const int64_t end = smaller(of.n, first + kPositions);
        for (int64_t h = 0; h < of.heads; ++h) {
            score_block(of.scores + h * of.n, of.query + h * of.d, of, first, end);
        }
    }
    for (int64_t h = 0; h < of.heads; ++h) softmax(of.scores + h * of.n, of.n);
    for (int64_t i = 0; i < of.heads * of.width; ++i) out[i] = 0.0f;
    for (int64_t first = 0; first < of.n; first += kPositions) {
        const int64_t end = smaller(of.n, first + kPositions);
        for (int64_t h = 0; h < of.heads; ++h) {
            const float* probabilities = of.scores + h * of.n;
            accumulate<true>(out + h * of.width, of.width, first, end, [&](int64_t i) {
                return Term{of.values[i] + of.offset, probabilities[i]};
            });
        }
    }
}

template <class T>
inline void widen(float* __restrict out, const void* weights, int64_t first, int64_t count) {
    const T* in = static_cast<const T*>(weights) + first;
    int64_t i = 0;
    for (; i + kWide <= count; i += kWide) store(out + i, load(in + i));
    for (; i < count; ++i) out[i] = to_float(in[i]);
}

// Row `row` of a native matrix as fp32.
inline void widen_row(float* out, const Matrix& matrix, int64_t row) {
    const int64_t first = row * matrix.k;
    if (matrix.dtype == Dtype::bf16) {
        widen<BF16>(out, matrix.weights, first, matrix.k);
    } else if (matrix.dtype == Dtype::f16) {
        widen<F16>(out, matrix.weights, first, matrix.k);
    } else {
        widen<float>(out, matrix.weights, first, matrix.k);
    }
}

void combine(float* out, int64_t out_stride, const Combination& of) {
    const int64_t k = of.matrix->k;
    for (int64_t j = 0; j < of.count; j += kCombinedRows) {
        const int64_t rows = smaller(kCombinedRows, of.count - j);
        for (int64_t i = 0; i < rows; ++i) {
            widen_row(of.scratch + i * k, *of.matrix, of.first + j + i);
        }
        for (int64_t i = 0; i < of.m; ++i) {
            const float* x = of.x + i * of.x_stride + j;
            accumulate<true>(out + i * out_stride, k, 0, rows, [&](int64_t r) {
                return Term{of.scratch + r * k, x[r]};
            });
        }
    }
}

// ---- indexer ------------------------------------------------------------------------------------

void score_pools(float* scores, const PoolScores& of) {
    for (int64_t p = 0; p < of.count; ++p) {
        const float* pool = of.pools + p * of.d;
        float score = 0.0f;
        for (int64_t h = 0; h < of.heads; h += 4) {
            const int64_t heads = smaller(4, of.heads - h);
            const float* query[4];
            float match[4];
            for (int64_t j = 0; j < heads; ++j) query[j] = of.query + (h + j) * of.d;
            if (heads == 4) {
                dots<4>(match, pool, query, of.d);
            } else {
                for (int64_t j = 0; j < heads; ++j) dots<1>(match + j, pool, query + j, of.d);
            }
            for (int64_t j = 0; j < heads; ++j) {
                const float scaled = match[j] * of.score_scale;
                score += of.weight[h + j] * of.head_scale * (scaled < 0.0f ? 0.0f : scaled);
            }
        }
        scores[p] = score;
    }
}

// ---- gates --------------------------------------------------------------------------------------

void swiglu(float* out, const float* gate, const float* up, float bound, int64_t count) {
    float block[kPositions];  // `out` may be an input: a block is read before it is written
    for (int64_t first = 0; first < count; first += kPositions) {
        const int64_t n = smaller(kPositions, count - first);
        for (int64_t i = 0; i < n; ++i) {
            const float g = gate[first + i];
            const float u = up[first + i];
            const float x = bound < g ? bound : g;
            const float clamped = u < -bound ? -bound : (bound < u ? bound : u);
            block[i] = x / (1.0f + exp_of(-x)) * clamped;
        }
        for (int64_t i = 0; i < n; ++i) out[first + i] = block[i];
    }
}

constexpr SequencePaths sequence_loops(const char* name) {
    return {name,       convolve, decay,   normalise,   delta_rule,
            gated_norm, attend,   combine, score_pools, swiglu};
}

}  // namespace
}  // namespace quadrille::cpu
