// SPDX-License-Identifier: Apache-2.0
// Training's ops on host memory. float: by the best instruction set of the machine; double: plain
// loops, for tests.
#pragma once

#include "kernels/train_ops.h"

#include <memory>

namespace quadrille::cpu {

template <class T>
std::unique_ptr<TrainOps<T>> make_train_ops();

std::unique_ptr<TrainOps<float>> make_train_ops_plain();
std::unique_ptr<TrainOps<float>> make_train_ops_avx2();
std::unique_ptr<TrainOps<float>> make_train_ops_avx512();

}  // namespace quadrille::cpu
