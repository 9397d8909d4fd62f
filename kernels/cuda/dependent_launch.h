// SPDX-License-Identifier: Apache-2.0
// Launches that overlap their start with the end of the kernel before them (sm_90 and up; elsewhere
// plain launches). A kernel launched so must call wait_for_earlier_kernels() before it touches
// anything an earlier kernel writes or still reads: inputs, outputs, scratch. What was uploaded
// with the model may be read before.
#pragma once

#include "kernels/cuda/handles.h"

namespace quadrille::cuda {

#if defined(__CUDACC__)
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start once every thread block has come here.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

template <class Argument>
void launch_dependent(void (*kernel)(Argument), dim3 grid, int threads, int shared, bool overlap,
                      cudaStream_t stream, const Argument& argument) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, argument));
}

}  // namespace quadrille::cuda
