// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize/quantize_matrix.h"

#include "kernels/error.h"
#include "kernels/exl3.h"
#include "kernels/exl3_decode.h"
#include "kernels/parallel.h"
#include "kernels/quantize/regularize.h"
#include "kernels/quantize/scale_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace quadrille {

namespace {

using exl3::kTile;
using exl3::kTileSize;
using quantize::Regularised;

void check(const MatrixToQuantize& matrix, const QuantizeOptions& options) {
    require(matrix.inputs != nullptr, "a matrix to quantize has inputs");
    if (options.code.bits < 1 || options.code.bits > 8) {
        throw Error(ErrorKind::usage,
                    fmt::format("{}: {} bits, expected 1 to 8", matrix.name, options.code.bits));
    }
    if (matrix.weights.rows < 1 || matrix.weights.cols != matrix.inputs->k) {
        throw Error(
            ErrorKind::input,
            fmt::format("{}: weights ({}, {}), expected at least one row of {}", matrix.name,
                        matrix.weights.rows, matrix.weights.cols, matrix.inputs->k));
    }
    require(
        options.sweeps == 0 || !matrix.inputs->has_hessian || !matrix.inputs->sweep_metric.empty(),
        "inputs of swept matrices are factored for sweeps");
}

// One matrix between its steps.
struct Work {
    const MatrixToQuantize* matrix = nullptr;
    Regularised values;
    std::vector<uint16_t> states;  // (k/16 in the factor's order, n/16, 256)
    std::vector<double> error;     // (n/16)
    std::vector<double> energy;
    TrellisHessian hessian;
    double scale = 1;

    TrellisMatrix to_encode() {
        const InputFactor& inputs = *matrix->inputs;
        states.resize(static_cast<size_t>(values.k * values.n));
        error.resize(static_cast<size_t>(values.n / kTile));
        energy.resize(error.size());
        hessian = {.feedback = inputs.feedback.data(),
                   .metric = inputs.metric.data(),
                   .sweep_feedback = inputs.sweep_feedback.data(),
                   .sweep_metric = inputs.sweep_metric.data()};
        return {.k = values.k,
                .n = values.n,
                .weights = values.values.data(),
                .hessian = inputs.has_hessian ? &hessian : nullptr,
                .states = states.data(),
                .error = error.data(),
                .energy = energy.data()};
    }
};

// Row blocks in the order of the factor.
void reorder(Regularised& matrix, const std::vector<int32_t>& order, int32_t threads) {
    if (std::is_sorted(order.begin(), order.end())) return;
    std::vector<float> values(matrix.values.size());
    const int64_t size = kTile * matrix.n;
    parallel_for(threads, std::ssize(order), [&](int64_t i) {
        std::copy_n(matrix.values.data() + order[static_cast<size_t>(i)] * size, size,
                    values.data() + i * size);
    });
    matrix.values = std::move(values);
}

// Most significant bit first; the halves of each 32-bit word lie low half first.
void pack_tile(uint16_t* words, const uint16_t* states, int bits) {
    std::fill_n(words, kTile * bits, uint16_t{0});
    for (int p = 0; p < kTileSize * bits; ++p) {
        const int symbol_bit = bits - 1 - p % bits;
        const auto bit = static_cast<uint16_t>(states[p / bits] >> symbol_bit & 1);
        const int at = p / 32 * 2 + (p % 32 < 16 ? 1 : 0);
        words[at] = static_cast<uint16_t>(words[at] | bit << (15 - p % 16));
    }
}

double sum_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
}

QuantizedMatrix finish(Work& work, const QuantizeOptions& options) {
    const auto& [n, k] = std::pair(work.values.n, work.values.k);
    const int bits = options.code.bits;
    QuantizedMatrix out{.n = work.matrix->weights.rows,
                        .k = work.matrix->weights.cols,
                        .n_padded = n,
                        .k_padded = k,
                        .code = options.code,
                        .svh = work.values.svh,
                        .scale = work.scale};
    for (const float suh : work.values.suh) out.suh.push_back(to_f16(suh));
    const std::vector<float> table = exl3_values(options.code.codebook);
    out.trellis.resize(static_cast<size_t>(exl3::trellis_bytes(n, k, bits) / 2));
    const std::vector<int32_t>& order = work.matrix->inputs->order;
    std::vector<float>& decoded = work.values.values;
    parallel_for(options.threads, std::ssize(order), [&](int64_t i) {
        const int64_t block = order[static_cast<size_t>(i)];
        for (int64_t tile = 0; tile < n / kTile; ++tile) {
            const uint16_t* states = work.states.data() + (i * (n / kTile) + tile) * kTileSize;
            pack_tile(out.trellis.data() + (block * (n / kTile) + tile) * kTile * bits, states,
                      bits);
            for (int t = 0; t < kTileSize; ++t) {
                const int64_t row = block * kTile + exl3::tile_row(t);
                decoded[static_cast<size_t>(row * n + tile * kTile + exl3::tile_col(t))] =
                    table[states[t]];
            }
        }
    });
    const auto squares =
        quantize::squared_error(decoded, work.values, work.matrix->weights, options.threads);
    out.squared_error = squares.error;
    out.squared_weights = squares.weights;
    const double energy = sum_of(work.energy);
    out.proxy_error = work.values.is_zero || energy == 0 ? 0 : sum_of(work.error) / energy;
    return out;
}

}  // namespace

Matrix QuantizedMatrix::matrix() const {
    return {.n = n,
            .k = k,
            .trellis = trellis.data(),
            .suh = suh.data(),
            .svh = svh.data(),
            .k_padded = k_padded,
            .n_padded = n_padded,
            .bits = code.bits,
            .codebook = code.codebook};
}

std::vector<QuantizedMatrix> quantize_matrices(TrellisEncoder& encoder,
                                               std::span<const MatrixToQuantize> matrices,
                                               const QuantizeOptions& options) {
    std::vector<Regularised> regular;
    for (const MatrixToQuantize& matrix : matrices) {
        check(matrix, options);
        regular.push_back(quantize::regularise(matrix.name, matrix.weights, *matrix.inputs,
                                               matrix.seed, options.output_scales,
                                               options.threads));
    }
    const std::vector<double> scales =
        quantize::search_scales(encoder, regular, options.code, options.threads);
    std::vector<Work> works(matrices.size());
    std::map<int64_t, std::vector<TrellisMatrix>> by_k;
    for (size_t i = 0; i < works.size(); ++i) {
        Work& work = works[i];
        work.matrix = &matrices[i];
        work.values = std::move(regular[i]);
        work.scale = scales[i];
        quantize::apply_scale(work.values, work.scale, options.threads);
        reorder(work.values, work.matrix->inputs->order, options.threads);
        by_k[work.values.k].push_back(work.to_encode());
    }
    for (const auto& [k, same] : by_k) {
        encoder.encode_matrices(same, options.code, options.sweeps);
    }
    std::vector<QuantizedMatrix> results;
    for (Work& work : works) {
        results.push_back(finish(work, options));
        work = {};
    }
    return results;
}

QuantizedMatrix quantize_matrix(TrellisEncoder& encoder, const MatrixToQuantize& matrix,
                                const QuantizeOptions& options) {
    return std::move(quantize_matrices(encoder, {&matrix, 1}, options).front());
}

}  // namespace quadrille
