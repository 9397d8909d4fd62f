// SPDX-License-Identifier: Apache-2.0
// Row-wise ops of training on the CPU, forward and backward: norms, rotation, gated units and
// convolutions. Sums over rows go in the order of the rows. Internal linkage, as train_product.h.
#pragma once

#include "kernels/cpu/train_product.h"

#include <cmath>

namespace quadrille::cpu {
namespace {

template <class T>
inline T inverse_rms(const T* x, int64_t count, T eps) {
    return T{1} / std::sqrt(dot(x, x, count) / static_cast<T>(count) + eps);
}

template <class T>
void rms_norm_rows(View<T> y, View<const T> x, const T* weight, T eps) {
    for (int64_t i = 0; i < x.rows; ++i) {
        const T inverse = inverse_rms(x.row(i), x.cols, eps);
        for (int64_t c = 0; c < x.cols; ++c) y.row(i)[c] = x.row(i)[c] * inverse * weight[c];
    }
}

// Here n = x / rms: dx = (w dy - n mean(w dy n)) / rms.
template <class T>
void rms_norm_back_rows(View<T> dx, T* dweight, View<const T> dy, View<const T> x, const T* weight,
                        T eps, bool add) {
    const Room<T> scaled(x.cols);
    for (int64_t i = 0; i < x.rows; ++i) {
        const T inverse = inverse_rms(x.row(i), x.cols, eps);
        const T* up = dy.row(i);
        for (int64_t c = 0; c < x.cols; ++c) scaled[c] = up[c] * weight[c];
        const T mean = dot(scaled.data(), x.row(i), x.cols) * inverse / static_cast<T>(x.cols);
        for (int64_t c = 0; c < x.cols; ++c) {
            const T n = x.row(i)[c] * inverse;
            if (dweight != nullptr) dweight[c] += up[c] * n;
            const T value = (scaled[c] - n * mean) * inverse;
            dx.row(i)[c] = add ? dx.row(i)[c] + value : value;
        }
    }
}

template <class T>
void rope_rows(View<T> x, const int32_t* positions, int64_t dim, double theta, bool back) {
    const int64_t half = dim / 2;
    const Room<T> cosine(half), sine(half);
    for (int64_t i = 0; i < x.rows; ++i) {
        for (int64_t f = 0; f < half; ++f) {
            const double turn = positions[i] * std::pow(theta, -2.0 * static_cast<double>(f) /
                                                                   static_cast<double>(dim));
            cosine[f] = static_cast<T>(std::cos(turn));
            sine[f] = static_cast<T>(back ? -std::sin(turn) : std::sin(turn));
        }
        for (T* head = x.row(i); head != x.row(i) + x.cols; head += dim) {
            for (int64_t f = 0; f < half; ++f) {
                const T low = head[f];
                const T high = head[half + f];
                head[f] = low * cosine[f] - high * sine[f];
                head[half + f] = high * cosine[f] + low * sine[f];
            }
        }
    }
}

template <class T>
void swiglu_rows(View<T> y, View<const T> gate, View<const T> up) {
    for (int64_t i = 0; i < y.rows; ++i) {
        for (int64_t c = 0; c < y.cols; ++c) {
            const T g = gate.row(i)[c];
            y.row(i)[c] = g / (T{1} + std::exp(-g)) * up.row(i)[c];
        }
    }
}

template <class T>
void swiglu_back_rows(View<T> dgate, View<T> dup, View<const T> dy, View<const T> gate,
                      View<const T> up) {
    for (int64_t i = 0; i < dy.rows; ++i) {
        for (int64_t c = 0; c < dy.cols; ++c) {
            const T g = gate.row(i)[c];
            const T sigmoid = T{1} / (T{1} + std::exp(-g));
            const T d = dy.row(i)[c];
            dup.row(i)[c] = d * g * sigmoid;
            dgate.row(i)[c] = d * up.row(i)[c] * sigmoid * (T{1} + g * (T{1} - sigmoid));
        }
    }
}

// Coefficients of one side and tap in a row of `dynamic`.
inline int64_t conv_column(const ConvShape& shape, int64_t tap, int64_t groups) {
    return (shape.side * shape.taps + tap) * groups;
}

template <class T>
void conv_rows(View<T> y, View<const T> x, View<const T> dynamic, const T* base,
               const ConvShape& shape) {
    const int64_t h = x.cols;
    const int64_t groups = h / shape.group;
    for (int64_t i = 0; i < x.rows; ++i) {
        std::fill(y.row(i), y.row(i) + h, T{0});
        for (int64_t tap = 0; tap < shape.taps && tap <= i % shape.block; ++tap) {
            const T* fixed = base + (shape.side * shape.taps + tap) * h;
            const T* moving = dynamic.row(i) + conv_column(shape, tap, groups);
            const T* from = x.row(i - tap);
            for (int64_t c = 0; c < h; ++c) {
                y.row(i)[c] += (fixed[c] + moving[c / shape.group]) * from[c];
            }
        }
    }
}

template <class T>
void conv_back_rows(const typename TrainOps<T>::ConvGradients& out, View<const T> dy,
                    View<const T> x, View<const T> dynamic, const T* base, const ConvShape& shape) {
    const int64_t h = x.cols;
    const int64_t groups = h / shape.group;
    if (!out.add) {
        for (int64_t i = 0; i < x.rows; ++i) std::fill(out.x.row(i), out.x.row(i) + h, T{0});
    }
    for (int64_t i = 0; i < x.rows; ++i) {
        for (int64_t tap = 0; tap < shape.taps; ++tap) {
            const int64_t column = conv_column(shape, tap, groups);
            T* dmoving = out.dynamic.row(i) + column;
            std::fill(dmoving, dmoving + groups, T{0});
            if (tap > i % shape.block) continue;
            const int64_t row = (shape.side * shape.taps + tap) * h;
            const T* moving = dynamic.row(i) + column;
            const T* from = x.row(i - tap);
            const T* up = dy.row(i);
            T* down = out.x.row(i - tap);
            for (int64_t c = 0; c < h; ++c) {
                down[c] += (base[row + c] + moving[c / shape.group]) * up[c];
                dmoving[c / shape.group] += up[c] * from[c];
                if (out.base != nullptr) out.base[row + c] += up[c] * from[c];
            }
        }
    }
}

}  // namespace
}  // namespace quadrille::cpu
