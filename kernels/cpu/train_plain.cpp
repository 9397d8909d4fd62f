// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/paths.h"
#include "kernels/cpu/train_loops.h"
#include "kernels/cpu/train_ops_cpu.h"

namespace quadrille::cpu {

std::unique_ptr<TrainOps<float>> make_train_ops_plain() {
    return std::make_unique<CpuTrainOps<float>>();
}

template <>
std::unique_ptr<TrainOps<double>> make_train_ops() {
    return std::make_unique<CpuTrainOps<double>>();
}

template <>
std::unique_ptr<TrainOps<float>> make_train_ops() {
#if defined(QUADRILLE_X86)
    if (has_isa(Isa::avx512)) return make_train_ops_avx512();
    if (has_isa(Isa::avx2)) return make_train_ops_avx2();
#endif
    return make_train_ops_plain();
}

}  // namespace quadrille::cpu
