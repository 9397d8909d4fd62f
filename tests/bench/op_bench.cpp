// SPDX-License-Identifier: Apache-2.0
// Speed of the CPU backend's ops, one thread. Counters of products: weights/s, bytes of weights/s,
// and `blas`: how many times as fast as OpenBLAS (sgemv for one row, sgemm for more, one thread) on
// the same matrix in fp32, measured in the same run.
//   op_bench --benchmark_filter='exl3.*n8192_k4096'
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <benchmark/benchmark.h>
#include <ctime>
#include <map>
#include <tuple>
#if defined(QUADRILLE_OPENBLAS)
#include <cblas.h>
#endif

namespace quadrille::test {
namespace {

// Processor time of this thread: what else runs on the machine costs little of it.
double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

struct Shape {
    int64_t m;
    int64_t n;
    int64_t k;
    auto operator<=>(const Shape&) const = default;
};

// Median seconds of OpenBLAS; 0 without it.
double blas_seconds([[maybe_unused]] const Shape& shape) {
#if defined(QUADRILLE_OPENBLAS)
    static std::map<Shape, double> known;
    if (known.contains(shape)) return known[shape];
    const auto [m, n, k] = std::tuple{static_cast<blasint>(shape.m), static_cast<blasint>(shape.n),
                                      static_cast<blasint>(shape.k)};
    openblas_set_num_threads(1);
    Random random(1);
    const std::vector<float> w = random.uniforms(shape.n * shape.k, -1, 1);
    const std::vector<float> x = random.uniforms(shape.m * shape.k, -1, 1);
    std::vector<float> y(static_cast<size_t>(shape.m * shape.n));
    std::vector<double> times;
    for (const double begin = thread_seconds();
         times.size() < 21 || thread_seconds() < begin + 0.2;) {
        const double start = thread_seconds();
        if (m == 1) {
            cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, w.data(), k, x.data(), 1, 0, y.data(),
                        1);
        } else {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x.data(), k, w.data(),
                        k, 0, y.data(), n);
        }
        times.push_back(thread_seconds() - start);
    }
    return known[shape] = median(times);
#else
    return 0;
#endif
}

void linear(benchmark::State& state, cpu::Isa isa, const Shape& shape, const MatrixData& data) {
    cpu::CpuBackend backend(isa);
    Random random(2);
    const std::vector<float> x = random.normals(shape.m * shape.k);
    std::vector<float> y(static_cast<size_t>(shape.m * shape.n));
    const Matrix matrix = data.matrix();
    std::vector<double> times;
    for (auto _ : state) {
        const double start = thread_seconds();
        backend.linear({y.data(), shape.m, shape.n}, {x.data(), shape.m, shape.k}, matrix);
        times.push_back(thread_seconds() - start);
    }
    const double seconds = median(times);
    const auto weights = static_cast<double>(shape.n * shape.k);
    const double bits = matrix.is_exl3() ? static_cast<double>(matrix.bits)
                                         : 8 * static_cast<double>(size_of(matrix.dtype));
    state.counters["weights/s"] = weights / seconds;
    state.counters["GB/s"] = weights * bits / 8e9 / seconds;
    if (const double blas = blas_seconds(shape); blas > 0) state.counters["blas"] = blas / seconds;
}

std::vector<cpu::Isa> paths() {
    std::vector<cpu::Isa> out;
    for (const cpu::Isa isa : {cpu::Isa::plain, cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (cpu::has_isa(isa)) out.push_back(isa);
    }
    return out;
}

// The matrix is made when its benchmark runs, not when it is registered.
template <class Make>
void add_linear(const std::string& kind, const Shape& shape, const Make& make) {
    for (const cpu::Isa isa : paths()) {
        const std::string title =
            fmt::format("linear/{}/{}/m{}_n{}_k{}", kind, name(isa), shape.m, shape.n, shape.k);
        benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
            Random random(3);
            linear(state, isa, shape, make(random));
        })->Unit(benchmark::kMicrosecond);
    }
}

void add_linears() {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 4096}, {2048, 4096}, {256, 256}}) {
        for (const int64_t m : {1, 3, 8, 64}) {
            const Shape shape{m, n, k};
            for (const int bits : {2, 4, 6}) {
                const auto add = [&](const char* title, Codebook codebook) {
                    add_linear(
                        fmt::format("exl3_{}_{}bit", title, bits), shape, [=](Random& random) {
                            return MatrixData::exl3(random, shape.n, shape.k, bits, codebook);
                        });
                };
                add("mul1", Codebook::mul1);
                add("mcg", Codebook::mcg);
                add("3inst", Codebook::three_inst);
            }
            for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
                add_linear(name(dtype), shape, [=](Random& random) {
                    return MatrixData::native(random, shape.n, shape.k, dtype);
                });
            }
        }
    }
}

// One layer of the demo model: 8 experts of 256 x 256, 2 of them and a shared one per row.
void moe(benchmark::State& state, cpu::Isa isa, int64_t m) {
    constexpr int64_t kWidth = 256;
    cpu::CpuBackend backend(isa);
    Random random(4);
    std::vector<MatrixData> data;
    std::vector<Mlp> table;
    for (int i = 0; i < 27; ++i) {
        data.push_back(MatrixData::exl3(random, kWidth, kWidth, 4, Codebook::mul1));
        if (i % 3 == 2) data.back().cut_segments(2);
    }
    for (size_t i = 0; i < 27; i += 3) {
        table.push_back({data[i].matrix(), data[i + 1].matrix(), data[i + 2].matrix()});
    }
    MoeWeights experts{.experts = table.data(), .count = 8, .shared = table[8]};
    experts.max_width = kWidth;
    const std::vector<float> x = random.normals(m * kWidth);
    std::vector<float> y(x.size());
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < m; ++r) {
        ids.push_back(static_cast<int32_t>(r % 8));
        ids.push_back(static_cast<int32_t>((r + 1) % 8));
    }
    const std::vector<float> weights(ids.size(), 0.5f);
    for (auto _ : state) {
        backend.moe({y.data(), m, kWidth}, {x.data(), m, kWidth}, {ids.data(), m, 2},
                    {weights.data(), m, 2}, experts);
    }
}

// One row op over rows of 4096.
template <class Op>
void add_rows(const char* title, const Op& op) {
    benchmark::RegisterBenchmark(title, [op](benchmark::State& state) {
        cpu::CpuBackend backend;
        Random random(5);
        constexpr int64_t kWidth = 4096;
        const std::vector<float> a = random.normals(8 * kWidth);
        std::vector<float> y(8 * kWidth);
        for (auto _ : state) {
            op(backend, View<float>(y.data(), 8, kWidth), View<const float>(a.data(), 8, kWidth));
        }
        state.counters["elements/s"] =
            benchmark::Counter(8.0 * kWidth, benchmark::Counter::kIsIterationInvariantRate);
    });
}

void add_others() {
    for (const cpu::Isa isa : paths()) {
        for (const int64_t m : {1, 3, 64}) {
            benchmark::RegisterBenchmark(fmt::format("moe/{}/m{}", name(isa), m).c_str(),
                                         [=](benchmark::State& state) { moe(state, isa, m); })
                ->Unit(benchmark::kMicrosecond);
        }
    }
    using Out = View<float>;
    using In = View<const float>;
    add_rows("rms_norm",
             [](cpu::CpuBackend& backend, Out y, In a) { backend.rms_norm(y, a, a.data, 1e-5f); });
    add_rows("swiglu",
             [](cpu::CpuBackend& backend, Out y, In a) { backend.swiglu(y, a, a, 10.0f); });
    add_rows("argmax", [](cpu::CpuBackend& backend, Out y, In a) {
        std::array<int32_t, 8> id{};
        backend.argmax(y.data, id.data(), a, 0, static_cast<int32_t>(a.cols));
    });
}

}  // namespace
}  // namespace quadrille::test

int main(int argc, char** argv) {
    quadrille::test::add_linears();
    quadrille::test::add_others();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
