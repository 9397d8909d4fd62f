// SPDX-License-Identifier: Apache-2.0
// InputFactor: what all matrices with the same inputs share: the random signs of the input channels
// and the block LDL factor of their Hessian, with which errors are fed back. Gate and up of all
// experts of a layer share one; each expert's down has its own.
#pragma once

#include "kernels/view.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct FactorOptions {
    uint64_t seed = 0;       // signs of the inputs
    double damping = 0.025;  // of the diagonal's mean, added to the diagonal
    bool sweeps = true;      // the matrices will be swept (QuantizeOptions::sweeps)
    int32_t threads = 1;     // no result depends on it
};

struct InputFactor {
    int64_t k = 0;
    int64_t k_padded = 0;        // a multiple of 128
    std::vector<float> signs{};  // (k_padded) +1 or -1
    // True: feedback and so on are there. False: no Hessian, or one without information.
    bool has_hessian = false;
    double damping = 0;  // what was added to the diagonal, over its mean
    // Row block order[i] of 16 inputs is encoded as block i, last block first: those with the
    // largest Hessian come first, so that the others make up for their errors.
    std::vector<int32_t> order{};  // (k_padded/16)
    // As TrellisHessian has them; the last two only with FactorOptions::sweeps.
    std::vector<float> feedback{};
    std::vector<float> metric{};
    std::vector<float> sweep_feedback{};
    std::vector<float> sweep_metric{};
};

// hessian (k, k): X^T X of calibration rows X (rows, k), any positive multiple of it; symmetric
// (the lower triangle is read). A Hessian whose diagonal's mean is below 1e-20 counts as none. A
// matrix that is not positive definite is damped more, at most ten times. Throws Error{input} with
// `name` for values that are not finite, and for one that stays indefinite.
InputFactor factor_inputs(const std::string& name, View<const float> hessian,
                          const FactorOptions& options);
// Without a Hessian: signs alone, every tile is encoded by itself.
InputFactor plain_inputs(int64_t k, const FactorOptions& options);

}  // namespace quadrille
