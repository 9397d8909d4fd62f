// SPDX-License-Identifier: Apache-2.0
// The DFlash2 drafter's own ops: attention of a draft block over the context ring, the grouped
// dynamic convolution, the selector walk. Blocks have a fixed number of rows, so every row knows
// its place from its index alone.
#include "kernels/contract.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/lanes.h"
#include "kernels/sample_row.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quadrille::cpu {

namespace {

// divisors[j] = theta^(2j / d), j < d / 2, in fp32: the angle of pair j is position / divisors[j].
void rope_divisors(float* divisors, float theta, int64_t d) {
    for (int64_t j = 0; j < d / 2; ++j) {
        divisors[j] = std::pow(theta, static_cast<float>(2 * j) / static_cast<float>(d));
    }
}

// cosines | sines (d / 2 each) of one position.
void rope_angles(float* cosines, const float* divisors, int64_t position, int64_t d) {
    const int64_t half = d / 2;
    for (int64_t j = 0; j < half; ++j) {
        const float angle = static_cast<float>(position) / divisors[j];
        cosines[j] = std::cos(angle);
        cosines[half + j] = std::sin(angle);
    }
}

// out = rope(rms_norm(in) * weight), one head; element j is paired with j + d / 2.
void norm_and_rotate(float* __restrict out, const float* __restrict in,
                     const float* __restrict weight, const float* __restrict angles, float eps,
                     int64_t d) {
    const int64_t half = d / 2;
    const float mean = sum_of_squares(in, d) / static_cast<float>(d);
    const float inverse = 1.0f / std::sqrt(mean + eps);
    for (int64_t j = 0; j < half; ++j) {
        const float low = in[j] * inverse * weight[j];
        const float high = in[half + j] * inverse * weight[half + j];
        out[j] = low * angles[j] - high * angles[half + j];
        out[half + j] = high * angles[j] + low * angles[half + j];
    }
}

// `count` heads of one row.
void prepare_heads(float* out, const float* in, const float* weight, const float* angles,
                   int64_t count, const DraftAttentionParams& params) {
    const int64_t d = params.head_dim;
    for (int64_t h = 0; h < count; ++h) {
        norm_and_rotate(out + h * d, in + h * d, weight, angles, params.norm_eps, d);
    }
}

// A slot of the walk: its candidates, the predecessor times the projection (nullptr: unpaired), the
// tokens of the path so far, and how to draw (nullptr: greedily, without a penalty).
struct WalkSlot {
    const float* values;
    const int32_t* ids;
    int64_t count;
    const float* context;
    const int32_t* path;
    int64_t place;  // tokens in path
    const SampleRow* draw;
};

// Unary plus pair score of a candidate, penalized as the target's logits are.
float walk_score(const WalkSlot& slot, int64_t b, float* candidate, const Matrix& successor) {
    float score = slot.values[b];
    const int32_t id = slot.ids[b];
    if (slot.context != nullptr) {
        require(id < successor.n, "walk_path: the candidate has a codebook row");
        convert_row(candidate, successor, id);
        score += dot(slot.context, candidate, successor.k);
    }
    if (slot.draw == nullptr || slot.draw->penalty == 1.0f) return score;
    SampleRow history = *slot.draw;
    history.drafts = slot.path;
    history.draft_count = static_cast<int32_t>(slot.place);
    return logit_of(history, score, id);
}

// The candidate with the largest score, noise included; the first of equals. Ids of -1 are no
// candidates; -1 when there is none. scores: (count) or nullptr.
int32_t best_candidate(float* scores, const WalkSlot& slot, float* candidate,
                       const Matrix& successor) {
    int32_t best = -1;
    double best_score = 0.0;
    const bool drawn = slot.draw != nullptr && slot.draw->inverse_temperature != 0.0;
    for (int64_t b = 0; b < slot.count; ++b) {
        const int32_t id = slot.ids[b];
        if (id < 0) {
            if (scores != nullptr) scores[b] = -std::numeric_limits<float>::infinity();
            continue;
        }
        const float plain = walk_score(slot, b, candidate, successor);
        if (scores != nullptr) scores[b] = plain;
        double score = plain;
        if (drawn) {
            score =
                scaled(plain, slot.draw->inverse_temperature) +
                gumbel(slot.draw->seed, slot.draw->position + slot.place, slot.draw->stream, id);
        }
        if (best < 0 || score > best_score) {
            best = id;
            best_score = score;
        }
    }
    return best;
}

// The first position a row may see. The window is measured from the row itself, not from the
// anchor of its block.
int64_t window_begin(int64_t position, int64_t window) {
    return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

}  // namespace

void CpuBackend::draft_append(const DraftCache& cache, View<const float> key,
                              View<const float> value, const float* k_norm, const uint8_t* write,
                              const DraftAttentionParams& params, const Rows& rows) {
    contract::draft_append(cache, key, value, k_norm, write, params, rows);
    const int64_t d = params.head_dim;
    const int64_t width = params.kv_heads * d;
    float* divisors = scratch(kAngleScratch, 2 * d);
    float* angles = divisors + d;
    rope_divisors(divisors, params.rope_theta, d);
    for (int32_t i = 0; i < rows.sequences; ++i) {
        if (rows.slot[i] < 0) continue;
        require(rows.slot[i] < cache.keys.rows, "draft_append: the slot exists");
        for (int64_t r = rows.begin[i]; r < rows.begin[i + 1]; ++r) {
            if (write[r] == 0) continue;
            const int64_t position = rows.position[i] + (r - rows.begin[i]);
            const int64_t at = position % cache.ring_size * width;
            rope_angles(angles, divisors, position, d);
            prepare_heads(cache.keys.row(rows.slot[i]) + at, key.row(r), k_norm, angles,
                          params.kv_heads, params);
            std::copy_n(value.row(r), width, cache.values.row(rows.slot[i]) + at);
        }
    }
}

// key_places_, value_places_: where position p of a sequence is, p counted from `begin`, up to the
// end of its draft block (rows key, value). Context positions lie in the ring.
void CpuBackend::place_context(const DraftCache& cache, int32_t slot, int64_t begin,
                               int64_t position, View<const float> key, View<const float> value) {
    key_places_.clear();
    value_places_.clear();
    for (int64_t p = begin; p < position; ++p) {
        const int64_t at = p % cache.ring_size * key.cols;
        key_places_.push_back(cache.keys.row(slot) + at);
        value_places_.push_back(cache.values.row(slot) + at);
    }
    for (int64_t j = 0; j < key.rows; ++j) {
        key_places_.push_back(key.row(j));
        value_places_.push_back(value.row(j));
    }
}

// One block: queries (block, heads, d) ready, its places set from position `begin` on.
void CpuBackend::attend_block(View<float> out, const float* queries, int64_t position,
                              int64_t begin, const DraftAttentionParams& params) {
    const int64_t d = params.head_dim;
    const int64_t group = params.heads / params.kv_heads;
    Attention attention{.heads = group, .d = d, .width = d};
    attention.scale = 1.0f / std::sqrt(static_cast<float>(d));
    for (int64_t j = 0; j < out.rows; ++j) {
        const int64_t first = window_begin(position + j, params.window);
        const int64_t end = position + (params.causal ? j + 1 : out.rows);
        attention.keys = key_places_.data() + (first - begin);
        attention.values = value_places_.data() + (first - begin);
        attention.n = end - first;
        attention.scores = scratch(kScoreScratch, group * attention.n);
        for (int64_t g = 0; g < params.kv_heads; ++g) {
            attention.offset = g * d;
            attention.query = queries + (j * params.heads + g * group) * d;
            sequence_->attend(out.row(j) + g * group * d, attention);
        }
    }
}

void CpuBackend::draft_attention(View<float> out, const DraftBlock& block, const DraftCache& cache,
                                 const DraftAttentionParams& params, const Rows& rows) {
    contract::draft_attention(out, block, cache, params, rows);
    const auto& [query, key, value, q_norm, k_norm] = block;
    const int64_t d = params.head_dim;
    const int64_t heads = params.heads;
    const int64_t kv_heads = params.kv_heads;
    const int64_t size = params.block;
    float* divisors = scratch(kAngleScratch, 2 * d);
    float* angles = divisors + d;
    float* queries = scratch(kQueryScratch, size * heads * d);
    float* keys = scratch(kKeyScratch, size * kv_heads * d);
    rope_divisors(divisors, params.rope_theta, d);
    for (int32_t i = 0; i < rows.sequences; ++i) {
        const View<float> own = out.slice_rows(i * size, size);
        if (rows.slot[i] < 0) {
            for (int64_t j = 0; j < size; ++j) std::fill_n(own.row(j), out.cols, 0.0f);
            continue;
        }
        const int64_t position = rows.position[i];
        const int64_t begin = window_begin(position, params.window);
        require(rows.slot[i] < cache.keys.rows, "draft_attention: the slot exists");
        require(position - begin <= cache.ring_size, "draft_attention: the ring holds the window");
        for (int64_t j = 0; j < size; ++j) {
            rope_angles(angles, divisors, position + j, d);
            prepare_heads(queries + j * heads * d, query.row(i * size + j), q_norm, angles, heads,
                          params);
            prepare_heads(keys + j * kv_heads * d, key.row(i * size + j), k_norm, angles, kv_heads,
                          params);
        }
        place_context(cache, rows.slot[i], begin, position, {keys, size, kv_heads * d},
                      value.slice_rows(i * size, size));
        attend_block(own, queries, position, begin, params);
    }
}

void CpuBackend::draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                            const float* base, int32_t taps, int32_t group, int32_t block) {
    contract::draft_conv(out, in, dynamic, base, taps, group, block);
    const int64_t h = in.cols;
    const int64_t groups = h / group;
    for (int64_t t = 0; t < in.rows; ++t) {
        float* __restrict y = out.row(t);
        const int64_t reach = std::min<int64_t>(taps, t % block + 1);
        std::fill_n(y, h, 0.0f);
        for (int64_t tap = 0; tap < reach; ++tap) {
            const float* __restrict x = in.row(t - tap);
            const float* __restrict fixed = base + tap * h;
            const float* __restrict moving = dynamic.row(t) + tap * groups;
            for (int64_t g = 0; g < groups; ++g) {
                for (int64_t c = g * group; c < (g + 1) * group; ++c) {
                    y[c] += (fixed[c] + moving[g]) * x[c];
                }
            }
        }
    }
}

void CpuBackend::walk_path(View<int32_t> path, View<float> scores, const WalkInput& in) {
    contract::walk_path(path, scores, in);
    const auto& [values, ids, projected, predecessor, successor, anchor, draws] = in;
    const int64_t rank = projected.cols;
    float* context = scratch(kAngleScratch, rank);
    float* candidate = scratch(kWeightScratch, rank);
    for (int64_t i = 0; i < path.rows; ++i) {
        int32_t before = anchor[i];
        for (int64_t t = 0; t < path.cols; ++t) {
            const int64_t slot = i * path.cols + t;
            const bool paired = rank > 0 && before >= 0;
            if (paired) {
                require(before < predecessor.n, "walk_path: the token has a codebook row");
                convert_row(context, predecessor, before);
                for (int64_t r = 0; r < rank; ++r) context[r] *= projected.row(slot)[r];
            }
            const WalkSlot place{values.row(slot),
                                 ids.row(slot),
                                 ids.cols,
                                 paired ? context : nullptr,
                                 path.row(i),
                                 t,
                                 draws == nullptr ? nullptr : draws + i};
            before = best_candidate(scores.rows == 0 ? nullptr : scores.row(slot), place, candidate,
                                    successor);
            path.row(i)[t] = before;
        }
    }
}

}  // namespace quadrille::cpu
