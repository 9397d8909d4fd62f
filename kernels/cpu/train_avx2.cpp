// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/train_loops.h"
#include "kernels/cpu/train_ops_cpu.h"

namespace quadrille::cpu {

std::unique_ptr<TrainOps<float>> make_train_ops_avx2() {
    return std::make_unique<CpuTrainOps<float>>();
}

}  // namespace quadrille::cpu
