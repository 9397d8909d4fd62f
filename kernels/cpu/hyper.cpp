// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections: the gates of one site and the two mixes of the residual
// streams. Everything fp32; a row of `streams` holds its s streams one after another.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/lanes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace quadrille::cpu {

namespace {

using Mix = std::array<float, kMaxStreams * kMaxStreams>;

// Each row of c (s, s): softmax + eps.
void softmax_rows(Mix& c, int32_t s, float eps) {
    for (int32_t a = 0; a < s; ++a) {
        float* row = c.data() + a * s;
        const float largest = *std::max_element(row, row + s);
        float sum = 0.0f;
        for (int32_t b = 0; b < s; ++b) {
            row[b] = exp_of(row[b] - largest);
            sum += row[b];
        }
        for (int32_t b = 0; b < s; ++b) row[b] = row[b] / sum + eps;
    }
}

// Divides the lines of c by their sums (+ eps): columns (step s inside, 1 across) or rows.
void normalise_lines(Mix& c, int32_t s, int32_t inside, int32_t across, float eps) {
    for (int32_t line = 0; line < s; ++line) {
        float* first = c.data() + line * across;
        float sum = 0.0f;
        for (int32_t i = 0; i < s; ++i) sum += first[i * inside];
        sum += eps;
        const float inverse = 1.0f / sum;
        for (int32_t i = 0; i < s; ++i) first[i * inside] *= inverse;
    }
}

void sinkhorn(Mix& c, int32_t s, const HyperParams& params) {
    softmax_rows(c, s, params.sinkhorn_eps);
    normalise_lines(c, s, s, 1, params.sinkhorn_eps);
    for (int32_t i = 1; i < params.sinkhorn_iterations; ++i) {
        normalise_lines(c, s, 1, s, params.sinkhorn_eps);
        normalise_lines(c, s, s, 1, params.sinkhorn_eps);
    }
}

// The columns [first, first + count) of all streams of one row, in place. kStreams 0: any number.
template <int32_t kStreams>
void mix_block(float* streams, const float* y, const float* post, const float* mix, int32_t any,
               int64_t h, int64_t first, int32_t count) {
    const int32_t s = kStreams > 0 ? kStreams : any;
    float in[kStreams > 0 ? kStreams : kMaxStreams][kLanes] = {};
    for (int32_t i = 0; i < s; ++i) {
        for (int32_t l = 0; l < count; ++l) in[i][l] = streams[i * h + first + l];
    }
    for (int32_t j = 0; j < s; ++j) {
        float sum[kLanes];
        for (int32_t l = 0; l < count; ++l) sum[l] = post[j] * y[first + l];
        for (int32_t i = 0; i < s; ++i) {
            for (int32_t l = 0; l < count; ++l) sum[l] += mix[i * s + j] * in[i][l];
        }
        for (int32_t l = 0; l < count; ++l) streams[j * h + first + l] = sum[l];
    }
}

template <int32_t kStreams>
void mix_row(float* streams, const float* y, const float* post, const float* mix, int32_t any,
             int64_t h) {
    int64_t c = 0;
    for (; c + kLanes <= h; c += kLanes) {
        mix_block<kStreams>(streams, y, post, mix, any, h, c, int32_t{kLanes});
    }
    if (c < h) mix_block<0>(streams, y, post, mix, any, h, c, static_cast<int32_t>(h - c));
}

}  // namespace

void CpuBackend::hyper_weights(View<float> pre, View<float> post, View<float> mix,
                               View<const float> streams, const Matrix& fn, const float* base,
                               const float* scale, const HyperParams& params) {
    contract::hyper_weights(pre, post, mix, streams, fn, base, scale, params);
    const int32_t s = params.streams;
    const int64_t m = streams.rows;
    float* gates = scratch(kGateScratch, m * fn.n);  // (m, 2s + s^2)
    linear({gates, m, fn.n}, streams, fn);
    for (int64_t i = 0; i < m; ++i) {
        const float mean = sum_of_squares(streams.row(i), fn.k) / static_cast<float>(fn.k);
        const float inverse = 1.0f / std::sqrt(mean + params.norm_eps);
        const float* t = gates + i * fn.n;
        for (int32_t j = 0; j < s; ++j) {
            pre.row(i)[j] = sigmoid(t[j] * inverse * scale[0] + base[j]) + params.sinkhorn_eps;
            post.row(i)[j] = 2.0f * sigmoid(t[s + j] * inverse * scale[1] + base[s + j]);
        }
        Mix c{};
        for (int32_t j = 0; j < s * s; ++j) {
            c[static_cast<size_t>(j)] = t[2 * s + j] * inverse * scale[2] + base[2 * s + j];
        }
        sinkhorn(c, s, params);
        std::copy_n(c.data(), s * s, mix.row(i));
    }
}

void CpuBackend::hyper_in(View<float> out, View<const float> streams, View<const float> pre) {
    contract::hyper_in(out, streams, pre);
    const int64_t h = out.cols;
    const int64_t s = pre.cols;
    for (int64_t i = 0; i < out.rows; ++i) {
        float* __restrict y = out.row(i);
        const float* __restrict first = streams.row(i);
        const float* weight = pre.row(i);
        for (int64_t c = 0; c < h; ++c) y[c] = weight[0] * first[c];
        for (int64_t j = 1; j < s; ++j) {
            const float* __restrict stream = first + j * h;
            for (int64_t c = 0; c < h; ++c) y[c] += weight[j] * stream[c];
        }
    }
}

void CpuBackend::hyper_out(View<float> streams, View<const float> y, View<const float> post,
                           View<const float> mix) {
    contract::hyper_out(streams, y, post, mix);
    const int64_t h = y.cols;
    const auto s = static_cast<int32_t>(post.cols);
    for (int64_t i = 0; i < y.rows; ++i) {
        const auto mix_streams = s == 4 ? mix_row<4> : mix_row<0>;
        mix_streams(streams.row(i), y.row(i), post.row(i), mix.row(i), s, h);
    }
}

void CpuBackend::stream_mean(View<float> out, View<const float> streams, int32_t streams_count) {
    contract::stream_mean(out, streams, streams_count);
    const int64_t h = out.cols;
    const auto count = static_cast<float>(streams_count);
    for (int64_t i = 0; i < out.rows; ++i) {
        float* __restrict mean = out.row(i);
        const float* __restrict stream = streams.row(i);
        for (int64_t c = 0; c < h; ++c) mean[c] = stream[c];
        for (int64_t j = 1; j < streams_count; ++j) {
            for (int64_t c = 0; c < h; ++c) mean[c] += stream[j * h + c];
        }
        for (int64_t c = 0; c < h; ++c) mean[c] /= count;
    }
}

}  // namespace quadrille::cpu
