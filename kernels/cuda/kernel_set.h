// SPDX-License-Identifier: Apache-2.0
// KernelSet: raises the limit of dynamic shared memory of a kernel once per device and kernel, and
// knows what the device has.
#pragma once

#include "kernels/cuda/handles.h"

#include <algorithm>
#include <set>

namespace quadrille::cuda {

// Dynamic and static shared memory count together; beyond 48 KB the limit must be raised.
class KernelSet {
  public:
    // Settings are per device: the current one's are made here.
    KernelSet() {
        int device = 0;
        CUDA_CHECK(cudaGetDevice(&device));
        CUDA_CHECK(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                          device));
        CUDA_CHECK(cudaDeviceGetAttribute(&shared_of_processor_,
                                          cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
        CUDA_CHECK(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device));
    }
    int32_t processors() const { return processors_; }  // multiprocessors
    // The most dynamic shared memory of a thread block, less 1 KB for its static part.
    int32_t shared_limit() const { return shared_limit_ - 1024; }
    // Shared memory of a multiprocessor, for all its thread blocks.
    int32_t shared_of_processor() const { return shared_of_processor_; }
    // At least `bytes`, and so much that no more than `blocks` thread blocks fit on a
    // multiprocessor.
    int32_t shared_for(int32_t bytes, int32_t blocks) const {
        return std::max(bytes, std::min(shared_of_processor_ / (blocks + 1), shared_limit()));
    }

    template <class... Parameters>
    void allow_shared(void (*kernel)(Parameters...), int bytes) {
        const auto* key = reinterpret_cast<const void*>(kernel);
        if (bytes <= 32 * 1024 || ready_.contains(key)) return;
        CUDA_CHECK(cudaFuncSetAttribute(key, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        ready_.insert(key);
    }

  private:
    int32_t shared_limit_ = 0;
    int32_t shared_of_processor_ = 0;
    int32_t processors_ = 0;
    std::set<const void*> ready_;
};

}  // namespace quadrille::cuda
