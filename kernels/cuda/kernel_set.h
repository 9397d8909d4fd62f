// SPDX-License-Identifier: Apache-2.0
// KernelSet: raises the limit of dynamic shared memory of a kernel once per device and kernel.
#pragma once

#include "kernels/cuda/handles.h"

#include <set>

namespace quadrille::cuda {

// Dynamic and static shared memory count together; beyond 48 KB the limit must be raised.
class KernelSet {
  public:
    // overlaps: the device can start a kernel before the one before it has ended.
    explicit KernelSet(bool overlaps) : overlaps_(overlaps) {}
    bool overlaps() const { return overlaps_; }

    template <class... Parameters>
    void allow_shared(void (*kernel)(Parameters...), int bytes) {
        const auto* key = reinterpret_cast<const void*>(kernel);
        if (bytes <= 32 * 1024 || ready_.contains(key)) return;
        CUDA_CHECK(cudaFuncSetAttribute(key, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        ready_.insert(key);
    }

  private:
    bool overlaps_;
    std::set<const void*> ready_;
};

}  // namespace quadrille::cuda
