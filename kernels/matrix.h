// SPDX-License-Identifier: Apache-2.0
// Matrix: one weight matrix as a rank holds it, native (bf16, f16, f32) or EXL3. It owns nothing,
// is trivially copyable and may be stored in tables that live in device memory.
#pragma once

#include "kernels/dtype.h"

#include <array>
#include <cstdint>

namespace quadrille {

enum class Codebook : uint8_t { three_inst = 0, mcg = 1, mul1 = 2 };

// As the format's own tools call it: "3inst", "mcg", "mul1".
constexpr const char* name(Codebook codebook) {
    if (codebook == Codebook::mcg) return "mcg";
    return codebook == Codebook::mul1 ? "mul1" : "3inst";
}

// Row-parallel products (o_proj, down) are summed in kSegments fixed segments of the whole input
// width, as a balanced tree, so that 1, 2 and 4 ranks give the same bits (docs/design.md §6).
inline constexpr int kSegments = 4;

struct Matrix {
    int64_t n = 0;  // outputs; y (m, n) = x (m, k) W^T
    int64_t k = 0;  // inputs

    // Native: `weights` is (n, k) of `dtype`, rows contiguous. nullptr for EXL3.
    const void* weights = nullptr;
    Dtype dtype = Dtype::f32;

    // EXL3 (kernels/exl3.h): trellis (k_padded/16, n_padded/16, 16*bits) uint16, gapless.
    const uint16_t* trellis = nullptr;
    const F16* suh = nullptr;  // (k_padded)
    const F16* svh = nullptr;  // (n_padded)
    int64_t k_padded = 0;      // multiples of 128, >= k and >= n
    int64_t n_padded = 0;
    int32_t bits = 0;  // 1..8
    Codebook codebook = Codebook::three_inst;

    const float* bias = nullptr;  // (n) added last, or nullptr

    // Input channels [segment[s], segment[s+1]) form segment s; each segment's product is finished
    // (output transform included) before the tree sum. segments == 1: the whole width at once.
    int32_t segments = 1;
    std::array<int64_t, kSegments + 1> segment{};  // segment[0] = 0, segment[segments] = k

    bool is_exl3() const { return trellis != nullptr; }
};

// The three matrices of one gated MLP: down( swiglu(gate x, up x) ).
struct Mlp {
    Matrix gate;
    Matrix up;
    Matrix down;
};

}  // namespace quadrille
