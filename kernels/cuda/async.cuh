// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that go on while the thread computes (sm_80 and up), and a
// few loads whose caching matters.
#pragma once

#include <cstdint>

namespace quadrille::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    copy_async_16(shared_address(shared), global);
}
// Zeros where there is nothing: `global` is any address of the kind, and not read.
__device__ __forceinline__ void copy_async_16_or_zero(uint32_t shared, const void* global,
                                                      bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(real ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace quadrille::cuda
