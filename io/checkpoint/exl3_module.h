// SPDX-License-Identifier: Apache-2.0
// EXL3 modules of a checkpoint as pure functions on host memory: find and check a module's tensors
// (headers and markers alone), read a slice of whole Hadamard blocks, decode it. Packs that store
// every matrix in four parts for four ranks (a quarter of the outputs or of the inputs each) read
// as if it were stored whole. Format: kernels/exl3.h; names: module_names.h.
#pragma once

#include "io/checkpoint/matrix_slice.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/matrix.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// Bits a weight of a trellis I16 [k/16, n/16, 16 * bits]; 0: the tensor is no such trellis.
int32_t trellis_bits(const Tensor& trellis);

// named: a codebook is taken from the name of its marker, whose value is somebody else's to check.
enum class Markers : uint8_t { read, named };

// Codebook of a module or of its part `rank`. The marker lies beside the trellis or, of a split
// module, with the module. Error{input}: two codebooks, or a marker of another value.
Codebook stored_codebook(const Checkpoint& checkpoint, const std::string& module, int32_t rank = -1,
                         Markers markers = Markers::read);

// Outputs `rows` and inputs `cols` of a module, stored together.
struct Exl3Part {
    Range rows;
    Range cols;
    int32_t bits = 0;
    Codebook codebook = Codebook::three_inst;
    const Tensor* trellis = nullptr;
    const Tensor* suh = nullptr;  // F16 scales, or packed signs I16
    const Tensor* svh = nullptr;
};

// A module whose tensors all have the right shapes; valid while the Checkpoint lives.
struct Exl3Module {
    std::string title;  // "FOLDER: module NAME", for messages
    int64_t n = 0;
    int64_t k = 0;
    std::vector<Exl3Part> parts;         // one, or kSplitRanks in order
    std::vector<const Tensor*> tensors;  // all that belong to it, the bias excepted
};

// Reads headers and markers only. Error{input} naming tensor, expected and found.
Exl3Module find_exl3_module(const Checkpoint& checkpoint, const std::string& module, int64_t n,
                            int64_t k, Markers markers = Markers::read);

// A slice that lies in one part, with F16 scales: channels relative to the part, in whole blocks.
struct Exl3Place {
    Exl3Part part;
    std::vector<Range> rows;
    Range cols;
    int64_t n_padded = 0;
};
// nullopt: read_exl3 has to join parts or to convert scales. Error{input}: as read_exl3's of a
// slice.
std::optional<Exl3Place> place_exl3(const Exl3Module& module, const MatrixSlice& slice);

// A packed matrix that owns its memory.
struct Exl3Matrix {
    int64_t n = 0;
    int64_t k = 0;
    int64_t n_padded = 0;
    int64_t k_padded = 0;
    int32_t bits = 0;
    Codebook codebook = Codebook::three_inst;
    std::vector<std::byte> trellis;  // (k_padded/16, n_padded/16, 16*bits) uint16
    std::vector<F16> suh;            // (k_padded)
    std::vector<F16> svh;            // (n_padded)

    // Points into this object; without bias, one segment.
    Matrix view() const;
    // (n, k) in the original basis, as exl3_dequantize.
    std::vector<float> decode() const;
};

// What read_exl3 returns, without trellis and scales. Error{input} for a slice.
Exl3Matrix shape_exl3(const Exl3Module& module, const MatrixSlice& slice);

// Copies a slice out of Tensor::bytes; the trellis of a made module stays empty. Error{input}: the
// slice is not one of whole blocks (only the module's last may be short), a scale is infinite or
// NaN (named by tensor and channel), or parts that it joins differ in bits, codebook or common
// scales.
Exl3Matrix read_exl3(const Exl3Module& module, const MatrixSlice& slice);

}  // namespace quadrille
