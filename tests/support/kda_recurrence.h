// SPDX-License-Identifier: Apache-2.0
// KDA as its specification states it, in double precision, on random weights and inputs: what the
// backends' op is held against.
#pragma once

#include "kernels/backend.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille::test {

struct KdaInputs {
    std::vector<float> qkv, f, b, g;  // (tokens, ...)
};

struct KdaCase {
    KdaParams params;
    int64_t c;
    std::vector<float> conv, a_log, dt_bias, o_norm;

    KdaCase(int32_t heads, int32_t d, int32_t taps, uint64_t seed) : c(int64_t{heads} * d) {
        params.heads = heads;
        params.head_dim = d;
        params.taps = taps;
        Random random(seed);
        conv = random.normals(3 * c * taps, 0.5f);
        a_log = random.normals(heads, 0.5f);
        dt_bias = random.normals(c);
        for (float& value : dt_bias) value -= 2.0f;
        o_norm = random.uniforms(d, 0.5f, 1.5f);
    }
    KdaWeights weights() const {
        return {conv.data(), a_log.data(), dt_bias.data(), o_norm.data()};
    }
    KdaInputs tokens(int64_t count, uint64_t seed) const {
        Random random(seed);
        return {random.normals(count * 3 * c), random.normals(count * c),
                random.normals(count * params.heads), random.normals(count * c)};
    }
};

// Section 3.3 of the model's specification, one token and one head at a time, in double.
class KdaRecurrence {
  public:
    explicit KdaRecurrence(const KdaCase& of)
        : of_(of), state_(size(of.c) * size(of.params.head_dim)) {}

    std::vector<float> step(const KdaInputs& inputs, int64_t t) {
        const int64_t d = of_.params.head_dim;
        std::vector<float> out(size(of_.c));
        for (int64_t h = 0; h < of_.params.heads; ++h) {
            const std::vector<double> q =
                unit(convolved(inputs, t, h * d), 1 / std::sqrt(double(d)));
            const std::vector<double> k = unit(convolved(inputs, t, of_.c + h * d), 1);
            const std::vector<double> v = convolved(inputs, t, 2 * of_.c + h * d);
            const double beta = logistic(at(inputs.b, t * of_.params.heads + h));
            double* s = state_.data() + h * d * d;
            std::vector<double> u(size(d)), o(size(d));
            for (int64_t i = 0; i < d; ++i) {
                const double a = at(inputs.f, t * of_.c + h * d + i) + at(of_.dt_bias, h * d + i);
                const double g =
                    double(of_.params.lower_bound) * logistic(std::exp(at(of_.a_log, h)) * a);
                for (int64_t j = 0; j < d; ++j) {
                    s[i * d + j] *= std::exp(g);
                    u[size(j)] += s[i * d + j] * k[size(i)];
                }
            }
            for (int64_t i = 0; i < d; ++i) {
                for (int64_t j = 0; j < d; ++j) {
                    s[i * d + j] += k[size(i)] * beta * (v[size(j)] - u[size(j)]);
                    o[size(j)] += s[i * d + j] * q[size(i)];
                }
            }
            double mean = 0;
            for (const double x : o) mean += x * x / double(d);
            for (int64_t j = 0; j < d; ++j) {
                out[size(h * d + j)] = static_cast<float>(
                    o[size(j)] / std::sqrt(mean + double(of_.params.norm_eps)) * at(of_.o_norm, j) *
                    logistic(at(inputs.g, t * of_.c + h * d + j)));
            }
        }
        return out;
    }
    std::vector<float> state() const { return {state_.begin(), state_.end()}; }

  private:
    static size_t size(int64_t n) { return static_cast<size_t>(n); }
    static double at(const std::vector<float>& values, int64_t i) {
        return double(values.at(size(i)));
    }
    static double logistic(double x) { return 1 / (1 + std::exp(-x)); }

    std::vector<double> convolved(const KdaInputs& inputs, int64_t t, int64_t first) const {
        const int64_t taps = of_.params.taps;
        std::vector<double> u;
        for (int64_t ch = first; ch < first + of_.params.head_dim; ++ch) {
            double sum = 0;
            for (int64_t j = 0; j < taps; ++j) {
                const int64_t from = t - (taps - 1) + j;
                if (from >= 0)
                    sum += at(of_.conv, ch * taps + j) * at(inputs.qkv, from * 3 * of_.c + ch);
            }
            u.push_back(sum * logistic(sum));
        }
        return u;
    }
    static std::vector<double> unit(std::vector<double> x, double scale) {
        double sum = 1e-6;
        for (const double value : x) sum += value * value;
        for (double& value : x) value *= scale / std::sqrt(sum);
        return x;
    }

    const KdaCase& of_;
    std::vector<double> state_;
};

}  // namespace quadrille::test
