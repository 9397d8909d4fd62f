// SPDX-License-Identifier: Apache-2.0
// One pass of the experts over a slab of rows: what moe knows of them, and where its steps leave
// what they make. Internal to moe (moe.cpp, moe_products.cpp).
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quadrille::cuda {

// What decides the kernel of a matrix. A pack may mix kinds; each gets launches of its own.
struct Kind {
    bool exl3;
    int32_t bits;
    bool mul1;
    Dtype dtype;

    bool operator==(const Kind&) const = default;
};
inline Kind kind_of(const Matrix& w) {
    if (w.is_exl3()) return {true, w.bits, w.codebook == Codebook::mul1, Dtype::f32};
    return {false, 0, false, w.dtype};
}

// The shape of w with the bits and codebook of a kind.
inline Matrix of_kind(Matrix w, const Kind& kind) {
    w.bits = kind.bits;
    w.codebook = kind.mul1 ? Codebook::mul1 : Codebook::mcg;
    return w;
}

inline const Matrix& member_of(const Mlp& mlp, int32_t member) {
    return member == 0 ? mlp.gate : member == 1 ? mlp.up : mlp.down;
}

// One member (gate, up or down) over all experts.
struct Member {
    std::vector<Kind> kinds;
    int64_t k = 0;  // the most of any expert
    int64_t n = 0;
    int64_t k_padded = 0;
    int64_t n_padded = 0;
    Matrix widest;          // of the EXL3 ones, for plans
    bool aligned = true;    // their input scales, as products want them that rotate
    bool fragments = true;  // of the native ones: native_fragments

    bool has_exl3() const { return widest.is_exl3(); }
    bool has_native() const {
        return std::any_of(kinds.begin(), kinds.end(), [](const Kind& k1) { return !k1.exl3; });
    }
};

struct MoePass {
    View<float> out{};
    View<const float> in{};
    View<const int32_t> ids{};
    View<const float> weights{};
    View<const float> shared_gate{};  // no rows: to be made
    View<const float> shared_up{};
    const MoeWeights& experts;
    int32_t segments = 1;
    Member gate{};
    Member up{};
    Member down{};

    int32_t tile_rows = 8;
    Grouping grouping{};
    float* hidden = nullptr;   // gate, then up: (positions, max_width) each
    uint2* rotated = nullptr;  // inputs of down
    float* by_pair = nullptr;
    float* shared = nullptr;  // (segments, m, n)
    // Exl3Product::tiles_early, of a product that is launched now.
    bool tiles_early = false;
    bool down_inside = false;  // its EXL3 products rotate their inputs

    bool has_native() const { return gate.has_native() || up.has_native() || down.has_native(); }
    int64_t pairs() const { return ids.rows * ids.cols; }
    int64_t hidden_stride() const { return grouping.capacity * experts.max_width; }
};

}  // namespace quadrille::cuda
