// SPDX-License-Identifier: Apache-2.0
// MatrixData: an owned random weight matrix, native or EXL3, its slices as ranks hold them, and its
// exact product. Pad rows and columns of EXL3 matrices hold noise, as old files do.
#pragma once

#include "kernels/matrix.h"
#include "tests/support/op_case.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille::test {

class MatrixData {
  public:
    static MatrixData native(Random& random, int64_t n, int64_t k, Dtype dtype);
    static MatrixData exl3(Random& random, int64_t n, int64_t k, int bits, Codebook codebook);
    // From stored parts; k and n are the padded sizes.
    static MatrixData exl3(std::vector<uint16_t> trellis, std::vector<F16> suh,
                           std::vector<F16> svh, int bits, Codebook codebook);

    void add_bias(Random& random);
    // Cuts the inputs in `count` segments of whole blocks of 128, earlier ones one block larger.
    void cut_segments(int32_t count);

    // Outputs [first, first + count) and inputs [first, first + count); EXL3: multiples of 128,
    // except at the end. Slices of the inputs lose bias and segments.
    MatrixData outputs(int64_t first, int64_t count) const;
    MatrixData inputs(int64_t first, int64_t count) const;

    // Points into this object.
    Matrix matrix() const;
    int64_t n() const { return shape_.n; }
    int64_t k() const { return shape_.k; }

    // x (m, k) gapless times the matrix, (m, n), in fp64, with bias.
    std::vector<double> exact(std::span<const float> x) const;

  private:
    std::vector<double> exact_rotated(std::span<const float> x) const;

    Matrix shape_;  // sizes only; the pointers are filled in by matrix()
    std::vector<float> f32_;
    std::vector<uint16_t> half_;  // f16 or bf16 bits
    std::vector<uint16_t> trellis_;
    std::vector<F16> suh_;
    std::vector<F16> svh_;
    std::vector<float> bias_;
};

}  // namespace quadrille::test
