// SPDX-License-Identifier: Apache-2.0
// WeightReader: places pieces of a checkpoint's tensors in backend memory. They are read in the
// order of the files, by threads, into a ring of page-locked buffers, checked and converted there,
// and copied from there while the next ones are read. Host memory: the ring.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "runtime/model/weight_piece.h"
#include "runtime/ranks/position.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace quadrille {

// Told of the bytes placed so far and of all that are to be.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

class WeightReader {
  public:
    // Both outlive it.
    WeightReader(Backend& backend, const Checkpoint& checkpoint)
        : backend_(backend), checkpoint_(checkpoint) {}

    // Bytes `bytes` of `tensor` as they lie there.
    void add(const Tensor& tensor, PieceKind kind, const Range& bytes, void* to);
    void add(WeightPiece piece);
    // Bytes of tensors that `read` is going to place.
    int64_t bytes() const { return bytes_; }

    // Host memory that `read` takes at most.
    static int64_t most_host_bytes();
    // Places and forgets all pieces. Error{input} naming tensor and element of a value that is not
    // finite, Error{io} naming file, byte and tensor where reading fails; of several the first in
    // the order of the files. `position`, where there is one, is told which tensor is at hand.
    void read(Position* position, const LoadProgress& progress);

  private:
    Backend& backend_;
    const Checkpoint& checkpoint_;
    std::vector<WeightPiece> pieces_;
    int64_t bytes_ = 0;
};

}  // namespace quadrille
