// SPDX-License-Identifier: Apache-2.0
// Training's ops of a backend.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/train_ops_cpu.h"
#include "kernels/error.h"
#include "kernels/train_ops.h"

#include <memory>
#include <string>

namespace quadrille {

// Error{device}: only the CPU trains.
inline std::unique_ptr<TrainOps<float>> make_train_ops(const Backend& backend) {
    if (!backend.name().starts_with("cpu")) {
        throw Error(ErrorKind::device,
                    "backend '" + std::string(backend.name()) + "' does not train; expected cpu");
    }
    return cpu::make_train_ops<float>();
}

}  // namespace quadrille
