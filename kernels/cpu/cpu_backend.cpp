// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU backend, and what it makes once: the path it takes and the codebooks.
#include "kernels/cpu/cpu_backend.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

namespace quadrille::cpu {

CpuBackend::CpuBackend(Isa isa)
    : paths_(&paths_of(isa)),
      sequence_(&sequence_paths_of(isa)),
      codebooks_{codebook_table(Codebook::three_inst), codebook_table(Codebook::mcg),
                 codebook_table(Codebook::mul1)} {}

std::string CpuBackend::device() const {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
    }
    return "CPU";
}

void* CpuBackend::allocate(int64_t bytes) {
    require(bytes >= 0, "allocate a non-negative number of bytes");
    if (bytes == 0) return nullptr;
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    void* pointer = std::aligned_alloc(64, rounded);
    if (pointer == nullptr) {
        throw Error(ErrorKind::device, fmt::format("host memory: cannot allocate {} bytes", bytes));
    }
    std::memset(pointer, 0, rounded);
    return pointer;
}

void CpuBackend::release(void* pointer) noexcept {
    std::free(pointer);
}
void* CpuBackend::allocate_host(int64_t bytes) {
    return allocate(bytes);
}
void CpuBackend::release_host(void* pointer) noexcept {
    release(pointer);
}

void CpuBackend::upload(void* to, const void* host, int64_t bytes) {
    copy(to, host, bytes);
}
void CpuBackend::download(void* host, const void* from, int64_t bytes) {
    copy(host, from, bytes);
}

void CpuBackend::copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuBackend::fill_zero(void* to, int64_t bytes) {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}

float* CpuBackend::scratch(size_t which, int64_t floats) {
    constexpr size_t kAlignment = 64;
    std::vector<float>& buffer = scratch_.at(which);
    const size_t needed = static_cast<size_t>(floats) + kAlignment / sizeof(float);
    if (buffer.size() < needed) buffer.resize(needed);
    void* first = buffer.data();
    size_t space = buffer.size() * sizeof(float);
    return static_cast<float*>(std::align(kAlignment, 1, first, space));
}

}  // namespace quadrille::cpu
