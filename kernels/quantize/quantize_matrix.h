// SPDX-License-Identifier: Apache-2.0
// quantize_matrices: weight matrices to EXL3 tensors. Everything is in host memory, and a pure
// function of its arguments: the same bits for any encoder and any number of threads.
//
//   W (n, k)  ->  W^T = suh . H . codes . H . svh          H: Hadamard, blocks of 128
//
// 1. svh: the rms of each output channel over their mean, with a random sign. suh: the rms of each
//    input channel (of the rotated outputs) over the codebook's, with a random sign that is part of
//    the InputFactor. Both are rounded to fp16 first and divided by as rounded, so that the codes
//    make up for the rounding.
// 2. One global scale, by the error of some tiles at a few scales.
// 3. Codes with error feedback (kernels/trellis_encoder.h).
#pragma once

#include "kernels/quantize/input_factor.h"
#include "kernels/trellis_encoder.h"
#include "kernels/view.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

struct QuantizeOptions {
    TrellisCode code{};
    bool output_scales = true;  // false: svh is signs alone
    // Times every tile is encoded again against the errors of all others. The proxy error falls by
    // 0.7 % with the first and 0.3 % with the second; each costs half of what the rest does.
    int32_t sweeps = 1;
    int32_t threads = 1;  // of the work outside the encoder
};

struct MatrixToQuantize {
    std::string name;             // in errors
    View<const float> weights;    // (n, k)
    const InputFactor* inputs{};  // of the same k
    uint64_t seed = 0;            // signs of the outputs
};

struct QuantizedMatrix {
    int64_t n = 0;
    int64_t k = 0;
    int64_t n_padded = 0;  // multiples of 128
    int64_t k_padded = 0;
    TrellisCode code{};
    std::vector<uint16_t> trellis{};  // (k_padded/16, n_padded/16, 16*bits), as files hold it
    std::vector<F16> suh{};           // (k_padded)
    std::vector<F16> svh{};           // (n_padded), 0 for channels that are 0 or padded
    // tr(E^T H E) / tr(W^T H W) in the rotated basis, H damped; as the reference prints it. Without
    // a Hessian H is the identity. 0 for a matrix of zeros.
    double proxy_error = 0;
    // Sum of squares of (result - W) and of W, original basis, unpadded.
    double squared_error = 0;
    double squared_weights = 0;
    double scale = 0;  // the global scale that was found

    // The tensors as our ops and kernels/exl3_decode.h take them; valid while *this lives.
    Matrix matrix() const;
};

// In order of `matrices`. Those with the same k_padded are encoded together. Throws Error{input}
// with the matrix's name for weights that are not finite and for shapes that do not fit the
// inputs'; Error{usage} for bits outside 1..8.
std::vector<QuantizedMatrix> quantize_matrices(TrellisEncoder& encoder,
                                               std::span<const MatrixToQuantize> matrices,
                                               const QuantizeOptions& options);

QuantizedMatrix quantize_matrix(TrellisEncoder& encoder, const MatrixToQuantize& matrix,
                                const QuantizeOptions& options);

}  // namespace quadrille
