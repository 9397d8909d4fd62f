// SPDX-License-Identifier: Apache-2.0
// The ceilings of a GPU that the floors of docs/design.md §10 are made of: how fast EXL3 weights
// decode when no memory traffic slows them (the decode ruler), how fast memory is read, and how
// fast the tensor cores multiply what lies in registers.
#pragma once

#include "kernels/cuda/handles.h"

#include <cstdint>

namespace quadrille::cuda {

// EXL3 weights a second that decode from shared memory into tensor-core operands and through one
// MMA for 8 rows: the inner loop of the products without its loads. mul1 or mcg.
double decode_rate(int32_t bits, bool mul1, int32_t processors, const Stream& stream);

// Multiply-adds a second of mma.sync with bf16 operands in registers.
double multiply_rate(int32_t processors, const Stream& stream);

// Bytes a second of reading device memory, 16 bytes a lane, over `bytes` of it.
double read_rate(int64_t bytes, int32_t processors, const Stream& stream);

}  // namespace quadrille::cuda
