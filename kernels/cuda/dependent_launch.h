// SPDX-License-Identifier: Apache-2.0
// Launches that overlap their start with the end of the kernel before them (sm_90 and up; elsewhere
// plain launches).
//
// Every thread block of a kernel launched so calls wait_for_earlier_kernels(), first of all or at
// least before it returns and before it touches anything an earlier kernel writes or still reads:
// inputs, outputs, scratch, pointers in device memory. The wait is for the end of the kernel just
// ahead, which cannot end before it has itself waited: so all earlier ones have ended. A kernel
// that can end without waiting lets the next one overtake those before it (tests/tree/rules.py).
//
// What was uploaded with the model may be read before the wait. Nothing else may be read through
// __restrict__ or __ldg: the compiler moves such loads across the wait, either way.
#pragma once

#include "kernels/cuda/handles.h"

#include <utility>

namespace quadrille::cuda {

#if defined(__CUDACC__)
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start once every thread block has come here. Behind the wait, only one later
// kernel at a time waits on the device.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// shared: bytes of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, int threads, int shared,
                      LaunchStream stream, Arguments&&... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream.stream;
    config.attrs = &attribute;
    config.numAttrs = stream.overlaps ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace quadrille::cuda
