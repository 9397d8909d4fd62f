// SPDX-License-Identifier: Apache-2.0
// What the benches of GPU ops share: matrices and rows of random numbers, the time of a call, the
// floor of it, and the rows that are printed (docs/results.tsv without date, commit, hardware).
#pragma once

#include "kernels/buffer.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/machine_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace quadrille::cuda {

inline constexpr int64_t kCold = int64_t{256} << 20;  // bytes of weights that no cache holds

class GpuBench {
  public:
    GpuBench();

    CudaBackend& backend() { return backend_; }
    // Frees the matrices and rows made so far.
    void clear() { buffers_.clear(); }

    Buffer random_bytes(int64_t bytes);
    // Normal values in a 16-bit format or in fp32.
    Buffer random_values(int64_t count, Dtype dtype, float scale);
    View<float> values(int64_t rows, int64_t cols);
    Matrix exl3_matrix(int64_t n, int64_t k, int32_t bits, Codebook codebook, int32_t segments);
    Matrix native_matrix(int64_t n, int64_t k, Dtype dtype);

    // Microseconds of one of `calls` calls.
    double time(int64_t calls, const std::function<void(int64_t)>& call);
    void row(const char* bench, const std::string& shape, double value, const char* unit,
             double fraction);
    // Seconds.
    double floor(double bytes, double weights, int32_t bits, bool mul1);
    double rate(int32_t bits, bool mul1);
    double read();

  private:
    static constexpr int64_t kPattern = int64_t{8} << 20;

    CudaBackend backend_;
    std::vector<unsigned char> pattern_;
    std::vector<float> normals_;
    std::vector<Buffer> buffers_;
    std::map<std::pair<int32_t, bool>, double> rates_;
    double read_ = 0.0;
};

// cuda_op_bench.cpp
void bench_ops(GpuBench& bench);
void bench_sequence(GpuBench& bench);

}  // namespace quadrille::cuda
