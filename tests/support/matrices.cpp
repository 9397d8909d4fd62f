// SPDX-License-Identifier: Apache-2.0
#include "tests/support/matrices.h"

#include "kernels/exl3.h"

#include <algorithm>
#include <cmath>

namespace quadrille::test {

namespace {

std::vector<F16> random_scales(Random& random, int64_t count, float size) {
    std::vector<F16> out;
    for (int64_t i = 0; i < count; ++i) {
        const float sign = random.integer(0, 1) == 0 ? -size : size;
        out.push_back(to_f16(sign * random.uniform(0.5f, 1.5f)));
    }
    return out;
}

void hadamard(double* x) {
    for (int half = 1; half < exl3::kBlock; half *= 2) {
        for (int i = 0; i < exl3::kBlock; ++i) {
            if ((i & half) != 0) continue;
            const double a = x[i];
            const double b = x[i + half];
            x[i] = a + b;
            x[i + half] = a - b;
        }
    }
    for (int i = 0; i < exl3::kBlock; ++i) x[i] /= std::sqrt(128.0);
}

}  // namespace

MatrixData MatrixData::native(Random& random, int64_t n, int64_t k, Dtype dtype) {
    MatrixData data;
    data.shape_.n = n;
    data.shape_.k = k;
    data.shape_.dtype = dtype;
    const std::vector<float> values =
        random.normals(n * k, 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(k, 1))));
    for (const float value : values) {
        if (dtype == Dtype::f32) data.f32_.push_back(value);
        if (dtype == Dtype::f16) data.half_.push_back(to_f16(value).bits);
        if (dtype == Dtype::bf16) data.half_.push_back(to_bf16(value).bits);
    }
    return data;
}

MatrixData MatrixData::exl3(Random& random, int64_t n, int64_t k, int bits, Codebook codebook) {
    const int64_t k_padded = exl3::padded(k);
    const int64_t n_padded = exl3::padded(n);
    MatrixData data =
        exl3(random.words(k_padded * n_padded * bits / 16), random_scales(random, k_padded, 1.0f),
             random_scales(random, n_padded, 0.05f), bits, codebook);
    data.shape_.n = n;
    data.shape_.k = k;
    return data;
}

MatrixData MatrixData::exl3(std::vector<uint16_t> trellis, std::vector<F16> suh,
                            std::vector<F16> svh, int bits, Codebook codebook) {
    MatrixData data;
    data.shape_.k = data.shape_.k_padded = std::ssize(suh);
    data.shape_.n = data.shape_.n_padded = std::ssize(svh);
    data.shape_.bits = bits;
    data.shape_.codebook = codebook;
    data.trellis_ = std::move(trellis);
    data.suh_ = std::move(suh);
    data.svh_ = std::move(svh);
    return data;
}

void MatrixData::add_bias(Random& random) {
    bias_ = random.normals(shape_.n);
}

void MatrixData::cut_segments(int32_t count) {
    const int64_t blocks = exl3::padded(shape_.k) / exl3::kBlock;
    shape_.segments = count;
    int64_t at = 0;
    for (int32_t s = 0; s < count; ++s) {
        shape_.segment[static_cast<size_t>(s)] = std::min(at * exl3::kBlock, shape_.k);
        at += blocks / count + (s < blocks % count ? 1 : 0);
    }
    shape_.segment[static_cast<size_t>(count)] = shape_.k;
}

MatrixData MatrixData::outputs(int64_t first, int64_t count) const {
    MatrixData part = *this;
    part.shape_.n = count;
    if (!bias_.empty()) part.bias_.assign(bias_.begin() + first, bias_.begin() + first + count);
    if (trellis_.empty()) {
        const int64_t from = first * shape_.k;
        const int64_t to = (first + count) * shape_.k;
        if (!f32_.empty()) part.f32_.assign(f32_.begin() + from, f32_.begin() + to);
        if (!half_.empty()) part.half_.assign(half_.begin() + from, half_.begin() + to);
        return part;
    }
    part.shape_.n_padded = exl3::padded(count);
    part.svh_.assign(svh_.begin() + first, svh_.begin() + first + part.shape_.n_padded);
    const int64_t row = shape_.n_padded * shape_.bits;  // words of 16 inputs
    part.trellis_.clear();
    for (int64_t tile = 0; tile < shape_.k_padded / exl3::kTile; ++tile) {
        const auto from = trellis_.begin() + tile * row + first * shape_.bits;
        part.trellis_.insert(part.trellis_.end(), from, from + part.shape_.n_padded * shape_.bits);
    }
    return part;
}

MatrixData MatrixData::inputs(int64_t first, int64_t count) const {
    MatrixData part = *this;
    part.shape_.k = count;
    part.shape_.segments = 1;
    part.bias_.clear();
    if (trellis_.empty()) {
        part.f32_.clear();
        part.half_.clear();
        for (int64_t n = 0; n < shape_.n; ++n) {
            const int64_t at = n * shape_.k + first;
            if (!f32_.empty()) {
                part.f32_.insert(part.f32_.end(), f32_.begin() + at, f32_.begin() + at + count);
            } else if (!half_.empty()) {
                part.half_.insert(part.half_.end(), half_.begin() + at, half_.begin() + at + count);
            }
        }
        return part;
    }
    part.shape_.k_padded = exl3::padded(count);
    part.suh_.assign(suh_.begin() + first, suh_.begin() + first + part.shape_.k_padded);
    const int64_t row = shape_.n_padded * shape_.bits;
    const auto from = trellis_.begin() + first / exl3::kTile * row;
    part.trellis_.assign(from, from + part.shape_.k_padded / exl3::kTile * row);
    return part;
}

Matrix MatrixData::matrix() const {
    Matrix m = shape_;
    if (!trellis_.empty() || m.bits > 0) {
        m.trellis = trellis_.data();
        m.suh = suh_.data();
        m.svh = svh_.data();
    } else if (m.dtype == Dtype::f32) {
        m.weights = f32_.data();
    } else {
        m.weights = half_.data();
    }
    m.bias = bias_.empty() ? nullptr : bias_.data();
    return m;
}

std::vector<double> MatrixData::exact(std::span<const float> x) const {
    std::vector<double> y;
    if (!trellis_.empty()) {
        y = exact_rotated(x);
    } else {
        const int64_t m = std::ssize(x) / shape_.k;
        for (int64_t at = 0; at < m * shape_.n; ++at) {
            const int64_t r = at / shape_.n;
            const int64_t n = at % shape_.n;
            double sum = 0;
            for (int64_t k = 0; k < shape_.k; ++k) {
                const auto w = static_cast<size_t>(n * shape_.k + k);
                const float weight = shape_.dtype == Dtype::f32   ? f32_[w]
                                     : shape_.dtype == Dtype::f16 ? to_float(F16{half_[w]})
                                                                  : to_float(BF16{half_[w]});
                sum += static_cast<double>(x[static_cast<size_t>(r * shape_.k + k)]) *
                       static_cast<double>(weight);
            }
            y.push_back(sum);
        }
    }
    for (size_t i = 0; i < y.size() && !bias_.empty(); ++i) {
        y[i] += static_cast<double>(bias_[i % bias_.size()]);
    }
    return y;
}

std::vector<double> MatrixData::exact_rotated(std::span<const float> x) const {
    const int64_t m = std::ssize(x) / shape_.k;
    const int64_t tiles_n = shape_.n_padded / exl3::kTile;
    const int64_t words = exl3::tile_words(shape_.bits);
    std::vector<double> sums(static_cast<size_t>(m * shape_.n_padded));
    std::vector<double> rotated(static_cast<size_t>(m * shape_.k_padded));
    for (int64_t r = 0; r < m; ++r) {
        double* row = rotated.data() + r * shape_.k_padded;
        for (int64_t k = 0; k < shape_.k; ++k) {
            row[k] = static_cast<double>(x[static_cast<size_t>(r * shape_.k + k)]) *
                     static_cast<double>(to_float(suh_[static_cast<size_t>(k)]));
        }
        for (int64_t k = 0; k < shape_.k_padded; k += exl3::kBlock) hadamard(row + k);
    }
    for (int64_t tile = 0; tile < shape_.k_padded / exl3::kTile * tiles_n; ++tile) {
        std::vector<uint32_t> code;
        for (int64_t w = 0; w < words; ++w) {
            const auto at = static_cast<size_t>(2 * (tile * words + w));
            code.push_back(trellis_[at] | static_cast<uint32_t>(trellis_[at + 1]) << 16);
        }
        for (int t = 0; t < exl3::kTileSize; ++t) {
            const double weight = static_cast<double>(to_float(
                exl3::decode(shape_.codebook, exl3::tile_state(code.data(), shape_.bits, t))));
            const int64_t k = tile / tiles_n * exl3::kTile + exl3::tile_row(t);
            const int64_t n = tile % tiles_n * exl3::kTile + exl3::tile_col(t);
            for (int64_t r = 0; r < m; ++r) {
                sums[static_cast<size_t>(r * shape_.n_padded + n)] +=
                    weight * rotated[static_cast<size_t>(r * shape_.k_padded + k)];
            }
        }
    }
    std::vector<double> y;
    for (int64_t r = 0; r < m; ++r) {
        double* row = sums.data() + r * shape_.n_padded;
        for (int64_t n = 0; n < shape_.n_padded; n += exl3::kBlock) hadamard(row + n);
        for (int64_t n = 0; n < shape_.n; ++n) {
            y.push_back(row[n] * static_cast<double>(to_float(svh_[static_cast<size_t>(n)])));
        }
    }
    return y;
}

}  // namespace quadrille::test
