// SPDX-License-Identifier: Apache-2.0
// Every byte of a checkpoint, read and checked: what a load does not look at (other ranks' parts,
// tensors that nothing uses), and the bits of trellises, which only a seal can judge.
#pragma once

#include "io/checkpoint/safetensors.h"

#include <cstdint>
#include <functional>
#include <string>

namespace quadrille {

// Reads every `shares`-th tensor from the share-th on, then compares the seals of every `shares`-th
// file with their data where files have one (safetensors_writer.h). Error{input} naming tensor and
// element of a value that is infinite or NaN, or a file whose seal does not hold; Error{io} where
// reading fails. `progress`: bytes done and in all, from one thread at a time.
void verify_weights(const Checkpoint& checkpoint, int64_t share, int64_t shares,
                    const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace quadrille
