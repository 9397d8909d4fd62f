// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention with deferred commit (docs/design.md §6). A sequence is seen as one timeline
// of raw rows: convolution history, pending rows, own rows. The stored state is the one before the
// pending rows; they are replayed from their raw inputs by the code that runs new rows, so a row
// that is decoded, replayed, flushed or prefilled leaves the same bits.
// The stored state counts as zero as long as no row was ever committed to it, that is while
// position == pending: slots are reused without being cleared.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exponential.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace quadrille::cpu {

namespace {

constexpr float kNormEps = 1e-6f;      // of the l2 norms of q and k, added to the sum
constexpr int64_t kPreparedRows = 16;  // rows of a prefill whose inputs are prepared together

struct Sizes {
    int64_t heads;
    int64_t d;
    int64_t c;  // heads * d
    int64_t taps;
    int64_t row() const { return 4 * c + heads; }  // floats of a prepared row
};

Sizes sizes_of(const KdaParams& params) {
    return {params.heads, params.head_dim, int64_t{params.heads} * params.head_dim, params.taps};
}

// A row ready for the recurrence.
struct Prepared {
    float* q;      // (c) normed and scaled; rows that are only replayed leave it unset
    float* k;      // (c) normed
    float* v;      // (c)
    float* decay;  // (c)
    float* beta;   // (heads)
};

Prepared prepared_row(float* buffer, const Sizes& sizes, int64_t index) {
    float* row = buffer + index * sizes.row();
    return {row, row + sizes.c, row + 2 * sizes.c, row + 3 * sizes.c, row + 4 * sizes.c};
}

// Everything a pass knows of one sequence. Row t of the timeline: 0..pending-1 wait in the
// buffers of the slot, pending.. are the pass's own; negative t is history.
struct Timeline {
    float* state;    // (heads, d, d)
    float* history;  // (taps - 1, 3c)
    float* pending_qkv;
    float* pending_decay;
    float* pending_beta;
    int64_t pending;
    bool fresh;  // stored state and history count as zero
    const float* zeros;
    View<const float> qkv;  // own rows
    View<const float> f;
    View<const float> b;

    const float* raw(int64_t t, const Sizes& sizes) const {
        if (t >= pending) return qkv.row(t - pending);
        if (t >= 0) return pending_qkv + t * 3 * sizes.c;
        return fresh ? zeros : history + (sizes.taps - 1 + t) * 3 * sizes.c;
    }
};

// Scratch of one call, and the loops it runs.
struct Workspace {
    float* rows;   // prepared rows of a chunk
    float* state;  // (d, d) the state own rows of a decode run on
    float* delta;  // (d)
    const SequencePaths& loops;
};

// q (own rows only), k and v of timeline row t.
void prepare_inputs(const Prepared& row, const Timeline& line, int64_t t, const Sizes& sizes,
                    const KdaWeights& weights, const SequencePaths& loops) {
    std::array<const float*, kMaxTaps> in{};
    for (int64_t j = 0; j < sizes.taps; ++j) {
        in[static_cast<size_t>(j)] = line.raw(t - sizes.taps + 1 + j, sizes);
    }
    const bool own = t >= line.pending;
    ShortConvolution convolution{.in = in.data(), .weight = weights.conv, .taps = sizes.taps};
    convolution.first = own ? 0 : sizes.c;
    convolution.count = 3 * sizes.c - convolution.first;
    loops.convolve(own ? row.q : row.k, convolution);
    const float scale = 1.0f / std::sqrt(static_cast<float>(sizes.d));
    for (int64_t h = 0; h < sizes.heads; ++h) {
        if (own) loops.normalise(row.q + h * sizes.d, scale, kNormEps, sizes.d);
        loops.normalise(row.k + h * sizes.d, 1.0f, kNormEps, sizes.d);
    }
}

// Decay and beta of timeline row t: computed for own rows, as they were for pending ones.
void prepare_gates(const Prepared& row, const Timeline& line, int64_t t, const Sizes& sizes,
                   const KdaWeights& weights, const KdaParams& params, const SequencePaths& loops) {
    if (t < line.pending) {
        std::copy_n(line.pending_decay + t * sizes.c, sizes.c, row.decay);
        std::copy_n(line.pending_beta + t * sizes.heads, sizes.heads, row.beta);
        return;
    }
    const float* f = line.f.row(t - line.pending);
    const float* b = line.b.row(t - line.pending);
    for (int64_t h = 0; h < sizes.heads; ++h) {
        const int64_t at = h * sizes.d;
        loops.decay(row.decay + at, f + at, weights.dt_bias + at, exp_of(weights.a_log[h]),
                    params.lower_bound, sizes.d);
        row.beta[h] = sigmoid(b[h]);
    }
}

// The history becomes the taps - 1 raw rows before timeline row `t`.
void advance_history(const Timeline& line, int64_t t, const Sizes& sizes) {
    // Oldest first: a row that moves down was read before its place is written.
    const size_t bytes = static_cast<size_t>(3 * sizes.c) * sizeof(float);
    for (int64_t j = 0; j < sizes.taps - 1; ++j) {
        const float* from = line.raw(t - sizes.taps + 1 + j, sizes);
        float* to = line.history + j * 3 * sizes.c;
        if (to != from) std::memcpy(to, from, bytes);
    }
}

Timeline timeline_of(const KdaState& state, const Sizes& sizes, int64_t slot, int64_t pending,
                     bool fresh) {
    require(slot >= 0 && slot < state.state.rows, "kda: the slot exists");
    require(pending >= 0 && pending * sizes.heads <= state.pending_beta.cols,
            "kda: pending rows fit their buffer");
    Timeline line{};
    line.state = state.state.row(slot);
    line.history = state.conv.row(slot);
    line.pending_qkv = state.pending_qkv.row(slot);
    line.pending_decay = state.pending_decay.row(slot);
    line.pending_beta = state.pending_beta.row(slot);
    line.pending = pending;
    line.fresh = fresh;
    return line;
}

// One head through `count` prepared rows; the first is timeline row `start`. Rows below `stored`
// change the stored state, later ones only a copy of it (or nothing, for the last).
void run_head(const Timeline& line, const Workspace& work, const Sizes& sizes, int64_t h,
              int64_t start, int64_t count, int64_t stored, View<float> out) {
    const int64_t d = sizes.d;
    float* state = line.state + h * d * d;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t t = start + i;
        const Prepared row = prepared_row(work.rows, sizes, i);
        DeltaRule rule{.k = row.k + h * d,
                       .v = row.v + h * d,
                       .decay = row.decay + h * d,
                       .beta = row.beta[h],
                       .scratch = work.delta,
                       .d = d};
        if (t >= line.pending) {
            rule.q = row.q + h * d;
            rule.out = out.row(t - line.pending) + h * d;
            rule.store = t < stored || i + 1 < count;
            if (t == stored && rule.store) {
                std::copy_n(state, d * d, work.state);
                state = work.state;
            }
        }
        work.loops.delta_rule(state, rule);
    }
}

// The whole timeline of `total` rows. Decode passes run as one chunk: their own rows share the copy
// of the state.
void run_timeline(const Timeline& line, const Workspace& work, const Sizes& sizes,
                  const KdaWeights& weights, const KdaParams& params, int64_t total, int64_t stored,
                  View<float> out) {
    if (line.fresh) std::fill_n(line.state, sizes.c * sizes.d, 0.0f);
    const int64_t chunk = stored < total ? total : kPreparedRows;
    for (int64_t start = 0; start < total; start += chunk) {
        const int64_t count = std::min(chunk, total - start);
        for (int64_t i = 0; i < count; ++i) {
            const Prepared row = prepared_row(work.rows, sizes, i);
            prepare_inputs(row, line, start + i, sizes, weights, work.loops);
            prepare_gates(row, line, start + i, sizes, weights, params, work.loops);
        }
        for (int64_t h = 0; h < sizes.heads; ++h) {
            run_head(line, work, sizes, h, start, count, stored, out);
        }
        if (stored == total) continue;
        // Own rows of a decode wait for the next step as what the recurrence needs of them.
        for (int64_t i = line.pending; i < total; ++i) {
            const Prepared row = prepared_row(work.rows, sizes, i);
            const int64_t to = i - line.pending;
            std::copy_n(row.decay, sizes.c, line.pending_decay + to * sizes.c);
            std::copy_n(row.beta, sizes.heads, line.pending_beta + to * sizes.heads);
        }
    }
    advance_history(line, stored, sizes);
    for (int64_t i = stored; i < total; ++i) {
        const int64_t own = i - line.pending;
        std::copy_n(line.qkv.row(own), 3 * sizes.c, line.pending_qkv + own * 3 * sizes.c);
    }
}

}  // namespace

void CpuBackend::kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
                     const KdaParams& params, const Rows& rows) {
    contract::kda(pass, weights, state, params, rows);
    const auto& [out, qkv, f, b, g] = pass;
    const Sizes sizes = sizes_of(params);
    const int64_t max_pending = state.pending_beta.cols / sizes.heads;
    const int64_t chunk = rows.commit ? kPreparedRows : std::max(kPreparedRows, 2 * max_pending);
    float* prepared = scratch(kPreparedScratch, chunk * sizes.row());
    float* zeros = scratch(kZeroScratch, 3 * sizes.c);
    std::fill_n(zeros, 3 * sizes.c, 0.0f);
    float* head = scratch(kHeadScratch, sizes.d * (sizes.d + 1));
    const Workspace work{prepared, head, head + sizes.d * sizes.d, *sequence_};

    for (int32_t i = 0; i < rows.sequences; ++i) {
        const int64_t first = rows.begin[i];
        const int64_t count = rows.begin[i + 1] - first;
        const View<float> own = out.slice_rows(first, count);
        if (rows.slot[i] < 0) {
            for (int64_t r = 0; r < count; ++r) std::fill_n(own.row(r), sizes.c, 0.0f);
            continue;
        }
        if (count == 0) continue;
        const int64_t pending = rows.pending[i];
        require(rows.position[i] >= pending, "kda: pending rows are among the cached tokens");
        require(rows.commit || count <= max_pending, "kda: decoded rows fit the pending buffers");
        Timeline line =
            timeline_of(state, sizes, rows.slot[i], pending, rows.position[i] == pending);
        line.zeros = zeros;
        line.qkv = qkv.slice_rows(first, count);
        line.f = f.slice_rows(first, count);
        line.b = b.slice_rows(first, count);
        const int64_t total = pending + count;
        run_timeline(line, work, sizes, weights, params, total, rows.commit ? total : pending, own);
        for (int64_t r = 0; r < count; ++r) {
            for (int64_t c = 0; c < sizes.c; c += sizes.d) {
                sequence_->gated_norm(own.row(r) + c, weights.o_norm, g.row(first + r) + c,
                                      params.norm_eps, sizes.d);
            }
        }
    }
}

void CpuBackend::kda_flush(const KdaWeights& weights, const KdaState& state,
                           const KdaParams& params, int32_t slot, int32_t pending, bool fresh) {
    contract::kda_flush(weights, state, params, slot, pending, fresh);
    const Sizes sizes = sizes_of(params);
    Timeline line = timeline_of(state, sizes, slot, pending, fresh);
    float* prepared = scratch(kPreparedScratch, kPreparedRows * sizes.row());
    float* zeros = scratch(kZeroScratch, 3 * sizes.c);
    std::fill_n(zeros, 3 * sizes.c, 0.0f);
    float* head = scratch(kHeadScratch, sizes.d * (sizes.d + 1));
    line.zeros = zeros;
    const Workspace work{prepared, head, head + sizes.d * sizes.d, *sequence_};
    run_timeline(line, work, sizes, weights, params, pending, pending, {});
}

}  // namespace quadrille::cpu
