// SPDX-License-Identifier: Apache-2.0
// Paths: the inner loops of the products, one set per instruction set, chosen when a CpuBackend is
// made. The plain set is the reference. The order of every sum is part of these contracts and no
// multiply-add is fused, so all sets give the same bits, on every machine.
#pragma once

#include "kernels/matrix.h"

#include <cstdint>
#include <vector>

namespace quadrille::cpu {

// The products of one block of 128 rotated outputs.
struct Exl3Block {
    const float* x = nullptr;  // (m, 128 * blocks) rotated inputs, rows x_stride apart
    int64_t x_stride = 0;
    int64_t m = 0;
    const uint16_t* trellis = nullptr;  // tile of the first 16 inputs and outputs
    int64_t trellis_stride = 0;         // words between tiles of neighbouring 16 inputs
    int64_t blocks = 0;                 // of 128 inputs
    int bits = 0;
    Codebook codebook = Codebook::three_inst;
    const float* weights = nullptr;  // (65536) the codebook, fp32 of the fp16 values
};

// Products with consecutive rows of a native matrix.
struct NativeRows {
    const float* x = nullptr;  // (m, k), rows x_stride apart
    int64_t x_stride = 0;
    int64_t m = 0;
    const Matrix* matrix = nullptr;
    int64_t first = 0;  // input channels [first, first + k)
    int64_t k = 0;
    float* scratch = nullptr;  // kNativeScratchRows * k floats
};
inline constexpr int64_t kNativeScratchRows = 8;

struct Paths {
    const char* name = "";
    // acc (m, 128) = sum over blocks of (sum over the block's 128 inputs, ascending, from 0),
    // blocks ascending, from 0.
    void (*exl3_block)(float* acc, const Exl3Block& block) = nullptr;
    // out (m, n), rows out_stride apart = dot (kernels/cpu/lanes.h) of x with each row.
    void (*native_rows)(float* out, int64_t out_stride, const NativeRows& rows) = nullptr;
    // In place: `count` groups of 128 consecutive values, butterflies (a + b, a - b) at distances
    // 1, 2, 4 .. 64, then * exl3::kHadamardScale.
    void (*hadamard)(float* values, int64_t count) = nullptr;
};

enum class Isa : uint8_t { plain, avx2, avx512 };

constexpr const char* name(Isa isa) {
    return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "plain";
}
// What this machine and build have; detect_isa: the best of them.
bool has_isa(Isa isa);
Isa detect_isa();
// Throws Error{device} when this build or machine lacks `isa`.
const Paths& paths_of(Isa isa);

// The 65536 weights of a codebook.
std::vector<float> codebook_table(Codebook codebook);

// What each set defines.
void exl3_block_plain(float* acc, const Exl3Block& block);
void native_rows_plain(float* out, int64_t out_stride, const NativeRows& rows);
void hadamard_plain(float* values, int64_t count);
void exl3_block_avx2(float* acc, const Exl3Block& block);
void native_rows_avx2(float* out, int64_t out_stride, const NativeRows& rows);
void hadamard_avx2(float* values, int64_t count);
void exl3_block_avx512(float* acc, const Exl3Block& block);
void native_rows_avx512(float* out, int64_t out_stride, const NativeRows& rows);
void hadamard_avx512(float* values, int64_t count);

}  // namespace quadrille::cpu
