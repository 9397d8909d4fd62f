// SPDX-License-Identifier: Apache-2.0
// The hyper-connection ops against section 3.2 of the model's specification in double precision.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

struct Site {
    int64_t s, h, n;
    std::vector<float> fn, base, scale;
    std::vector<BF16> fn_bf16;
    HyperParams params;

    Site(int64_t streams, int64_t width, uint64_t seed)
        : s(streams), h(width), n(2 * streams + streams * streams) {
        Random random(seed);
        fn_bf16 = to_bf16s(random.normals(n * s * h, 1.0f / std::sqrt(float(s * h))));
        for (const BF16 value : fn_bf16) fn.push_back(to_float(value));
        base = random.normals(n, 0.3f);
        scale = {1.3f, 0.8f, 1.1f};
        params.streams = static_cast<int32_t>(s);
    }
    Matrix matrix() const {
        Matrix m;
        m.n = n;
        m.k = s * h;
        m.weights = fn_bf16.data();
        m.dtype = Dtype::bf16;
        return m;
    }
};

struct Gates {
    std::vector<double> pre, post, mix;
};

Gates gates(const Site& site, const float* row) {
    const int64_t s = site.s;
    const double eps = double(site.params.sinkhorn_eps);
    double mean = 0;
    for (int64_t i = 0; i < s * site.h; ++i) mean += double(row[i]) * double(row[i]);
    const double rms = std::sqrt(mean / double(s * site.h) + double(site.params.norm_eps));
    std::vector<double> t;
    for (int64_t j = 0; j < site.n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < s * site.h; ++i) {
            sum += double(site.fn[size(j * s * site.h + i)]) * double(row[i]) / rms;
        }
        const size_t part = j < s ? 0 : j < 2 * s ? 1 : 2;
        t.push_back(sum * double(site.scale[part]) + double(site.base[size(j)]));
    }
    Gates out;
    for (int64_t j = 0; j < s; ++j) {
        out.pre.push_back(1 / (1 + std::exp(-t[size(j)])) + eps);
        out.post.push_back(2 / (1 + std::exp(-t[size(s + j)])));
    }
    std::vector<double>& c = out.mix;
    for (int64_t a = 0; a < s; ++a) {
        double sum = 0;
        for (int64_t b = 0; b < s; ++b) sum += std::exp(t[size(2 * s + a * s + b)]);
        for (int64_t b = 0; b < s; ++b) {
            c.push_back(std::exp(t[size(2 * s + a * s + b)]) / sum + eps);
        }
    }
    for (int32_t pass = 0; pass < 2 * site.params.sinkhorn_iterations - 1; ++pass) {
        const bool columns = pass % 2 == 0;
        for (int64_t line = 0; line < s; ++line) {
            double sum = eps;
            for (int64_t i = 0; i < s; ++i) sum += c[size(columns ? i * s + line : line * s + i)];
            for (int64_t i = 0; i < s; ++i) c[size(columns ? i * s + line : line * s + i)] /= sum;
        }
    }
    return out;
}

TEST(Hyper, WeightsFollowTheSpecification) {
    for (const auto& [s, h] : {std::array<int64_t, 2>{4, 256}, {4, 37}, {2, 64}, {3, 5}, {1, 16}}) {
        const Site site(s, h, 3);
        const int64_t m = 9;
        Random random(4);
        Guarded<float> streams(m, s * h, random.normals(m * s * h, 2.0f), 5);
        Guarded<float> pre(m, s, 1), post(m, s, 2), mix(m, s * s, 3);
        cpu::CpuBackend backend;
        backend.hyper_weights(pre.view(), post.view(), mix.view(), streams.view(), site.matrix(),
                              site.base.data(), site.scale.data(), site.params);
        EXPECT_TRUE(pre.written() && post.written() && mix.written());
        Gates expected;
        for (int64_t i = 0; i < m; ++i) {
            const Gates row = gates(site, streams.view().row(i));
            expected.pre.insert(expected.pre.end(), row.pre.begin(), row.pre.end());
            expected.post.insert(expected.post.end(), row.post.begin(), row.post.end());
            expected.mix.insert(expected.mix.end(), row.mix.begin(), row.mix.end());
        }
        const auto floats = [](const std::vector<double>& v) {
            return std::vector<float>(v.begin(), v.end());
        };
        EXPECT_TRUE(close(pre.values(), floats(expected.pre), reduced(s * h)));
        EXPECT_TRUE(close(post.values(), floats(expected.post), reduced(s * h)));
        EXPECT_TRUE(close(mix.values(), floats(expected.mix), reduced(s * h)));
    }
}

TEST(Hyper, ColumnsOfTheMixSumToOneLast) {
    const Site site(4, 64, 5);
    Random random(6);
    Guarded<float> streams(1, 256, random.normals(256, 3.0f));
    Guarded<float> pre(1, 4), post(1, 4), mix(1, 16);
    HyperParams params = site.params;
    params.sinkhorn_iterations = 1;  // far from converged: only the last pass normalises
    cpu::CpuBackend backend;
    backend.hyper_weights(pre.view(), post.view(), mix.view(), streams.view(), site.matrix(),
                          site.base.data(), site.scale.data(), params);
    const std::vector<float> c = mix.values();
    for (size_t b = 0; b < 4; ++b) EXPECT_NEAR(c[b] + c[4 + b] + c[8 + b] + c[12 + b], 1.0, 1e-5);
    EXPECT_GT(std::abs(c[0] + c[1] + c[2] + c[3] - 1.0f), 1e-3f);
}

TEST(Hyper, MixesFollowTheSpecification) {
    for (const auto& [s, h] : {std::array<int64_t, 2>{4, 256}, {4, 37}, {2, 64}, {3, 5}, {1, 16}}) {
        const int64_t m = 5;
        Random random(7);
        const std::vector<float> in = random.normals(m * s * h);
        const std::vector<float> y = random.normals(m * h);
        const std::vector<float> pre = random.uniforms(m * s, 0, 1);
        const std::vector<float> post = random.uniforms(m * s, 0, 2);
        const std::vector<float> mix = random.uniforms(m * s * s, 0, 1);
        std::vector<float> x, out, mean;
        for (int64_t i = 0; i < m; ++i) {
            const float* row = in.data() + i * s * h;
            for (int64_t c = 0; c < h; ++c) {
                double sum = 0, total = 0;
                for (int64_t j = 0; j < s; ++j) {
                    sum += double(pre[size(i * s + j)]) * double(row[j * h + c]);
                    total += double(row[j * h + c]);
                }
                x.push_back(float(sum));
                mean.push_back(float(total / double(s)));
            }
            for (int64_t j = 0; j < s; ++j) {
                for (int64_t c = 0; c < h; ++c) {
                    double sum = double(post[size(i * s + j)]) * double(y[size(i * h + c)]);
                    for (int64_t a = 0; a < s; ++a) {
                        sum += double(mix[size((i * s + a) * s + j)]) * double(row[a * h + c]);
                    }
                    out.push_back(float(sum));
                }
            }
        }
        cpu::CpuBackend backend;
        Guarded<float> streams(m, s * h, in, 3), single(m, h, 4), average(m, h, 5);
        Guarded<float> ys(m, h, y, 2), pres(m, s, pre, 1), posts(m, s, post, 1);
        Guarded<float> mixes(m, s * s, mix, 1);
        backend.hyper_in(single.view(), streams.view(), pres.view());
        backend.stream_mean(average.view(), streams.view(), static_cast<int32_t>(s));
        backend.hyper_out(streams.view(), ys.view(), posts.view(), mixes.view());
        EXPECT_TRUE(single.written() && average.written() && streams.written());
        EXPECT_TRUE(close(single.values(), x, rounded()));
        EXPECT_TRUE(close(average.values(), mean, rounded()));
        EXPECT_TRUE(close(streams.values(), out, rounded()));
    }
}

TEST(Hyper, OneArithmeticPerRow) {
    constexpr int64_t kPool = 12, kS = 4, kH = 80;
    const Site site(kS, kH, 8);
    Random random(9);
    const std::vector<float> streams = random.normals(kPool * kS * kH);
    const std::vector<float> ys = random.normals(kPool * kH);
    cpu::CpuBackend backend;
    expect_one_arithmetic_per_row(kPool, (kS + 2) * kH, [&](auto rows, int64_t gap) {
        const int64_t m = std::ssize(rows);
        Guarded<float> state(m, kS * kH, gather_rows<float>(streams, kS * kH, rows), gap);
        Guarded<float> y(m, kH, gather_rows<float>(ys, kH, rows), gap);
        Guarded<float> pre(m, kS, gap), post(m, kS, gap), mix(m, kS * kS, gap);
        Guarded<float> x(m, kH, gap), mean(m, kH, gap);
        backend.hyper_weights(pre.view(), post.view(), mix.view(), state.view(), site.matrix(),
                              site.base.data(), site.scale.data(), site.params);
        backend.hyper_in(x.view(), state.view(), pre.view());
        backend.hyper_out(state.view(), y.view(), post.view(), mix.view());
        backend.stream_mean(mean.view(), state.view(), kS);
        std::vector<float> out;
        for (int64_t i = 0; i < m; ++i) {
            for (const auto& part : {state.view(), x.view(), mean.view()}) {
                out.insert(out.end(), part.row(i), part.row(i) + part.cols);
            }
        }
        return out;
    });
}

TEST(Hyper, RefusesWrongShapes) {
    const Site site(4, 16, 1);
    cpu::CpuBackend backend;
    Guarded<float> streams(2, 64), pre(2, 4), post(2, 4), mix(2, 16), y(2, 16);
    Matrix fn = site.matrix();
    fn.n = 23;
    expect_error(ErrorKind::internal, {"hyper_weights"}, [&] {
        backend.hyper_weights(pre.view(), post.view(), mix.view(), streams.view(), fn,
                              site.base.data(), site.scale.data(), site.params);
    });
    expect_error(ErrorKind::internal, {"hyper_in"},
                 [&] { backend.hyper_in(y.view(), mix.view(), pre.view()); });
    expect_error(ErrorKind::internal, {"hyper_out"},
                 [&] { backend.hyper_out(streams.view(), y.view(), post.view(), pre.view()); });
    expect_error(ErrorKind::internal, {"stream_mean"},
                 [&] { backend.stream_mean(y.view(), streams.view(), 3); });
}

}  // namespace
}  // namespace quadrille
