// SPDX-License-Identifier: Apache-2.0
// Speed of the CUDA backend's ops at the shapes of the full model, as rows for docs/results.tsv:
// bench, shape, value, unit, fraction of the floor (docs/design.md §10). Ops are recorded as a
// graph of many calls over more weights than the L2 cache holds, and the replay is timed.
//   cuda_bench [ruler] [exl3] [native] [moe] [ops] [sequence]        no argument: all
#include "tests/bench/gpu_bench.h"

#include <cstdio>

namespace quadrille::cuda {
namespace {

// exllamav3 1.4.1 on an H200, one call per matrix, microseconds at 1, 3, 8, 16 and 64 rows.
struct Shape {
    const char* name;
    int64_t k;
    int64_t n;
    int32_t bits;
    Codebook codebook;
    double peer[5];
};
constexpr int64_t kRows[5] = {1, 3, 8, 16, 64};
constexpr Shape kShapes[] = {
    {"expert gate TP2", 4096, 1024, 2, Codebook::mcg, {15.23, 15.26, 15.47, 24.69, 86.57}},
    {"expert gate TP2", 4096, 1024, 3, Codebook::mcg, {16.58, 16.63, 16.86, 23.53, 80.58}},
    {"expert gate TP2", 4096, 1024, 4, Codebook::mcg, {15.23, 15.25, 15.47, 24.34, 85.13}},
    {"expert gate TP2", 4096, 1024, 4, Codebook::mul1, {14.68, 15.09, 15.45, 23.86, 82.6}},
    {"expert gate TP2", 4096, 1024, 6, Codebook::mul1, {16.0, 21.22, 22.04, 23.88, 82.8}},
    {"expert down TP2", 1024, 4096, 2, Codebook::mcg, {8.11, 8.2, 8.36, 15.46, 48.06}},
    {"expert down TP2", 1024, 4096, 3, Codebook::mcg, {8.48, 8.71, 8.84, 15.08, 45.93}},
    {"expert down TP2", 1024, 4096, 4, Codebook::mcg, {8.22, 8.31, 8.44, 15.43, 47.56}},
    {"expert down TP2", 1024, 4096, 4, Codebook::mul1, {11.34, 8.53, 8.42, 15.12, 46.59}},
    {"expert down TP2", 1024, 4096, 6, Codebook::mul1, {14.0, 14.03, 14.4, 15.41, 46.73}},
    {"expert gate TP1", 4096, 2048, 2, Codebook::mcg, {15.24, 15.28, 15.51, 24.96, 86.05}},
    {"expert gate TP1", 4096, 2048, 3, Codebook::mcg, {16.73, 16.78, 17.05, 23.74, 81.04}},
    {"expert gate TP1", 4096, 2048, 4, Codebook::mcg, {15.47, 15.48, 15.63, 24.71, 84.64}},
    {"expert gate TP1", 4096, 2048, 4, Codebook::mul1, {15.35, 15.43, 15.65, 24.12, 82.06}},
    {"expert gate TP1", 4096, 2048, 6, Codebook::mul1, {16.85, 21.96, 23.06, 24.71, 82.74}},
    {"kda qkv third", 4096, 8192, 2, Codebook::mcg, {21.25, 21.52, 22.18, 36.73, 131.29}},
    {"kda qkv third", 4096, 8192, 3, Codebook::mcg, {23.53, 23.71, 24.23, 36.43, 129.73}},
    {"kda qkv third", 4096, 8192, 4, Codebook::mcg, {21.72, 21.8, 22.49, 36.27, 127.8}},
    {"kda qkv third", 4096, 8192, 4, Codebook::mul1, {21.38, 20.75, 21.35, 35.12, 123.18}},
    {"kda qkv third", 4096, 8192, 6, Codebook::mul1, {27.15, 34.34, 35.95, 37.55, 132.3}},
    {"kda o", 8192, 4096, 2, Codebook::mcg, {24.77, 24.89, 24.9, 41.48, 149.95}},
    {"kda o", 8192, 4096, 3, Codebook::mcg, {28.08, 28.19, 28.54, 39.64, 142.19}},
    {"kda o", 8192, 4096, 4, Codebook::mcg, {25.78, 25.87, 26.16, 40.83, 146.7}},
    {"kda o", 8192, 4096, 4, Codebook::mul1, {24.63, 25.62, 25.97, 39.26, 140.23}},
    {"kda o", 8192, 4096, 6, Codebook::mul1, {29.58, 38.35, 39.21, 40.7, 144.8}},
    {"square", 4096, 4096, 2, Codebook::mcg, {15.44, 15.5, 15.8, 27.48, 95.21}},
    {"square", 4096, 4096, 3, Codebook::mcg, {17.07, 17.16, 17.64, 26.75, 91.39}},
    {"square", 4096, 4096, 4, Codebook::mcg, {15.91, 15.92, 16.21, 27.35, 94.13}},
    {"square", 4096, 4096, 4, Codebook::mul1, {16.87, 15.81, 15.99, 26.6, 90.61}},
    {"square", 4096, 4096, 6, Codebook::mul1, {18.31, 25.34, 25.98, 27.59, 93.2}},
    {"head TP2", 4096, 77440, 6, Codebook::mul1, {255.79, 255.65, 256.55, 258.73, 1015.76}},
};

void bench_ruler(GpuBench& bench) {
    bench.row("ruler", "read bandwidth", bench.read() * 1e-12, "TB/s", 1.0);
    for (const bool mul1 : {false, true}) {
        for (int32_t bits = 1; bits <= 8; ++bits) {
            bench.row("ruler", fmt::format("{} {} bits", mul1 ? "mul1" : "mcg", bits),
                      bench.rate(bits, mul1) * 1e-12, "T weights/s", 1.0);
        }
    }
}

void bench_exl3(GpuBench& bench) {
    for (const Shape& shape : kShapes) {
        const bool mul1 = shape.codebook == Codebook::mul1;
        const int64_t bytes = shape.n * shape.k * shape.bits / 8;
        const int64_t copies = std::clamp<int64_t>(kCold / bytes, 1, 64);
        std::vector<Matrix> matrices;
        for (int64_t i = 0; i < copies; ++i) {
            matrices.push_back(bench.exl3_matrix(shape.n, shape.k, shape.bits, shape.codebook, 1));
        }
        std::vector<int64_t> rows(kRows, kRows + 5);
        if (shape.bits == 2 || shape.bits == 6) rows.insert(rows.end(), {32, 512, 2048});
        for (size_t i = 0; i < rows.size(); ++i) {
            const View<float> in = bench.values(rows[i], shape.k);
            const View<float> out = bench.values(rows[i], shape.n);
            const int64_t calls = rows[i] > 64 ? 4 : std::max<int64_t>(copies, 16);
            const double us = bench.time(calls, [&](int64_t call) {
                bench.backend().linear(out, in, matrices[static_cast<size_t>(call % copies)]);
            });
            const double best =
                bench.floor(static_cast<double>(bytes), static_cast<double>(shape.n * shape.k),
                            shape.bits, mul1);
            bench.row("exl3",
                      fmt::format("{} {}x{} {} bits {} m{}{}", shape.name, shape.k, shape.n,
                                  shape.bits, mul1 ? "mul1" : "mcg", rows[i],
                                  i < 5 ? fmt::format(" peer/{:.2f}", shape.peer[i] / us) : ""),
                      us, "us", best * 1e6 / us);
        }
        bench.clear();
    }
}

void bench_native(GpuBench& bench) {
    struct Native {
        const char* name;
        int64_t k;
        int64_t n;
        Dtype dtype;
    };
    for (const Native& shape :
         {Native{"kda qkv TP2", 4096, 12288, Dtype::bf16},
          Native{"kda o TP2", 4096, 4096, Dtype::bf16}, Native{"kda f_a", 4096, 128, Dtype::bf16},
          Native{"kda f_b TP2", 128, 4096, Dtype::bf16}, Native{"router", 4096, 288, Dtype::bf16},
          Native{"mla q_b TP2", 1536, 8192, Dtype::bf16},
          Native{"head TP2", 4096, 77440, Dtype::bf16}, Native{"f16 small", 4096, 128, Dtype::f16},
          Native{"f32 router", 4096, 288, Dtype::f32}}) {
        const int64_t bytes = shape.n * shape.k * size_of(shape.dtype);
        const int64_t copies = std::clamp<int64_t>(kCold / bytes, 1, 64);
        std::vector<Matrix> matrices;
        for (int64_t i = 0; i < copies; ++i) {
            matrices.push_back(bench.native_matrix(shape.n, shape.k, shape.dtype));
        }
        for (const int64_t m : {1, 3, 8, 16, 64, 192, 2048}) {
            if (m == 2048 && shape.n > 20000) continue;
            const View<float> in = bench.values(m, shape.k);
            const View<float> out = bench.values(m, shape.n);
            const int64_t calls = m > 64 ? 4 : std::max<int64_t>(copies, 16);
            const double us = bench.time(calls, [&](int64_t call) {
                bench.backend().linear(out, in, matrices[static_cast<size_t>(call % copies)]);
            });
            bench.row("native",
                      fmt::format("{} {}x{} {} m{} ({:.1f} TFLOP/s)", shape.name, shape.k, shape.n,
                                  quadrille::name(shape.dtype), m,
                                  2e-6 * static_cast<double>(m * shape.n * shape.k) / us),
                      us, "us", bench.floor(static_cast<double>(bytes), 0, 0, false) * 1e6 / us);
        }
        bench.clear();
    }
}

// Draws `topk` of `experts` for each of m rows, uniformly, and appends them to `ids`. Returns how
// many experts some row chose.
double route_rows(std::mt19937& random, int64_t m, int64_t topk, int32_t experts,
                  std::vector<int32_t>& ids) {
    std::vector<bool> seen(static_cast<size_t>(experts));
    for (int64_t r = 0; r < m; ++r) {
        std::vector<int32_t> order(static_cast<size_t>(experts));
        for (int32_t e = 0; e < experts; ++e) order[static_cast<size_t>(e)] = e;
        for (int64_t s = 0; s < topk; ++s) {
            const auto at = static_cast<size_t>(
                s + static_cast<int64_t>(random() % static_cast<uint32_t>(experts - s)));
            std::swap(order[static_cast<size_t>(s)], order[at]);
            ids.push_back(order[static_cast<size_t>(s)]);
            seen[static_cast<size_t>(ids.back())] = true;
        }
    }
    return static_cast<double>(std::count(seen.begin(), seen.end(), true));
}

void bench_moe(GpuBench& bench) {
    constexpr int64_t kHidden = 4096;
    constexpr int64_t kWidth = 1024;  // 2 ranks
    constexpr int32_t kExperts = 288;
    constexpr int64_t kTopk = 8;
    for (const int32_t bits : {2, 4}) {
        std::vector<Mlp> table;
        for (int32_t e = 0; e < kExperts; ++e) {
            table.push_back({bench.exl3_matrix(kWidth, kHidden, bits, Codebook::mcg, 1),
                             bench.exl3_matrix(kWidth, kHidden, bits, Codebook::mcg, 1),
                             bench.exl3_matrix(kHidden, kWidth, bits, Codebook::mcg, 2)});
        }
        MoeWeights weights;
        Array<unsigned char> device(bench.backend(), 1,
                                    kExperts * static_cast<int64_t>(sizeof(Mlp)));
        bench.backend().upload(device.data(), table.data(), device.bytes());
        weights.experts = reinterpret_cast<const Mlp*>(device.data());
        weights.host_experts = table.data();
        weights.count = kExperts;
        weights.max_width = kWidth;
        std::mt19937 random(5);
        for (const int64_t m : {1, 3, 8, 24, 64, 192, 1024, 4096}) {
            const View<float> in = bench.values(m, kHidden);
            const View<float> out = bench.values(m, kHidden);
            constexpr int kRoutings = 8;
            std::vector<int32_t> ids;
            double distinct = 0;
            for (int i = 0; i < kRoutings; ++i) {
                distinct += route_rows(random, m, kTopk, kExperts, ids);
            }
            distinct /= kRoutings;
            Array<int32_t> id(bench.backend(), kRoutings * m, kTopk);
            id.upload(ids);
            const View<float> weight = bench.values(m, kTopk);
            const double us = bench.time(m > 192 ? 4 : 16, [&](int64_t call) {
                bench.backend().moe(out, in, id.view().slice_rows(call % kRoutings * m, m), weight,
                                    weights);
            });
            const double expert = 3.0 * kHidden * kWidth * distinct;
            bench.row(
                "moe",
                fmt::format("288 experts {} bits TP2 m{} ({:.1f} distinct, {:.2f} T weights/s)",
                            bits, m, distinct, expert / us * 1e-6),
                us, "us", bench.floor(expert * bits / 8, expert, bits, false) * 1e6 / us);
        }
        bench.clear();
    }
}

}  // namespace
}  // namespace quadrille::cuda

int main(int argc, char** argv) {
    using namespace quadrille::cuda;
    if (quadrille::gpu_count() == 0) {
        std::puts("no GPU: skipped");
        return 77;
    }
    const std::map<std::string, void (*)(GpuBench&)> all = {
        {"ruler", bench_ruler}, {"exl3", bench_exl3}, {"native", bench_native},
        {"moe", bench_moe},     {"ops", bench_ops},   {"sequence", bench_sequence}};
    GpuBench bench;
    for (int i = 1; i < argc; ++i) {
        const auto found = all.find(argv[i]);
        if (found == all.end()) {
            fmt::print(stderr, "cuda_bench: no bench named {}\n", argv[i]);
            return 2;
        }
        found->second(bench);
    }
    if (argc == 1) {
        for (const auto& [name, run] : all) run(bench);
    }
    return 0;
}
