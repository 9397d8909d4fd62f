// SPDX-License-Identifier: Apache-2.0
// The global scale of a matrix: the one that its tiles are encoded with the least error at.
#pragma once

#include "kernels/quantize/regularize.h"
#include "kernels/trellis_encoder.h"

#include <span>
#include <vector>

namespace quadrille::quantize {

// A scale for each matrix, from some of its tiles. 1 for matrices of zeros.
std::vector<double> search_scales(TrellisEncoder& encoder, std::span<const Regularised> matrices,
                                  TrellisCode code, int32_t threads);

}  // namespace quadrille::quantize
