// SPDX-License-Identifier: Apache-2.0
// Workspace: scratch memory of ops that follow each other on one stream. A Scope takes pieces and
// gives all of them back at its end; scopes nest. Memory only grows, between outermost scopes into
// one block, so that a pass that has run before allocates nothing and may be captured.
#pragma once

#include "kernels/cuda/handles.h"

#include <cstdint>
#include <vector>

namespace quadrille::cuda {

class Workspace {
  public:
    explicit Workspace(const Stream& stream) : stream_(stream) {}

    class Scope {
      public:
        explicit Scope(Workspace& workspace);
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

        // 256-byte aligned, not initialised.
        template <class T>
        T* take(int64_t count) {
            return static_cast<T*>(workspace_.take(count * static_cast<int64_t>(sizeof(T))));
        }

      private:
        Workspace& workspace_;
        size_t block_;
        int64_t used_;
    };

    // Numbers that are zero here and that every kernel leaves zero. One array for all ops: they
    // follow each other.
    int32_t* counters(int64_t count);
    // Numbers that are kMissing (exl3_product.h) here and that every kernel leaves so.
    float* awaited_sums(int64_t count);

    // From now on no memory is given back before this ends: graphs may work on it.
    void keep() { keeps_ = true; }

    int64_t bytes() const;

  private:
    void* take(int64_t bytes);
    void require_free_stream() const;
    void* grown(DeviceBuffer& array, int64_t bytes, int fill);

    const Stream& stream_;
    std::vector<DeviceBuffer> blocks_;
    size_t block_ = 0;  // the one that is being used
    int64_t used_ = 0;  // of it
    int32_t depth_ = 0;
    bool keeps_ = false;
    DeviceBuffer counters_;
    DeviceBuffer awaited_sums_;
    std::vector<DeviceBuffer> old_arrays_;  // that graphs may still use
};

}  // namespace quadrille::cuda
