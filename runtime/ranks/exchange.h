// SPDX-License-Identifier: Apache-2.0
// One all-gather for many small results of ops: each rank's results lie in one block of backend
// memory at the same offsets, and all blocks come to the host of every rank at once.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/ranks/comm.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quadrille {

class Exchange {
  public:
    // `capacity`: bytes of a rank's block.
    Exchange(Backend& backend, Communicator& comm, int64_t capacity)
        : backend_(backend),
          comm_(comm),
          capacity_(capacity),
          mine_(backend, capacity),
          all_(backend, capacity * comm.size()),
          host_(static_cast<size_t>(capacity * comm.size())) {}

    void clear() { size_ = 0; }
    // Room for `count` values: their offset in the block.
    template <class T>
    int64_t place(int64_t count) {
        const int64_t offset = size_;
        size_ = (offset + count * static_cast<int64_t>(sizeof(T)) + 7) / 8 * 8;
        require(size_ <= capacity_, "an exchange within its capacity");
        return offset;
    }
    template <class T>
    T* mine(int64_t offset) const {
        return reinterpret_cast<T*>(static_cast<std::byte*>(mine_.data()) + offset);
    }
    void run() {
        if (size_ == 0) return;
        comm_.all_gather(all_.data(), mine_.data(), size_);
        backend_.download(host_.data(), all_.data(), size_ * comm_.size());
    }
    // Host memory, after run().
    template <class T>
    const T* of(int rank, int64_t offset) const {
        return reinterpret_cast<const T*>(host_.data() + rank * size_ + offset);
    }

  private:
    Backend& backend_;
    Communicator& comm_;
    int64_t capacity_;
    int64_t size_ = 0;
    Buffer mine_;
    Buffer all_;
    std::vector<std::byte> host_;
};

}  // namespace quadrille
