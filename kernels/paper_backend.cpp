// SPDX-License-Identifier: Apache-2.0
#include "kernels/paper_backend.h"

#include "kernels/error.h"

namespace quadrille {

namespace {

// What allocators round to: the driver maps device memory in pieces of 2 MiB and shares one between
// small blocks; the C library maps large blocks in pages.
constexpr int64_t kDevicePiece = int64_t{2} << 20;
constexpr int64_t kDeviceSmall = 512;
constexpr int64_t kHostPage = 4096;

int64_t round_up(int64_t bytes, int64_t piece) {
    return (bytes + piece - 1) / piece * piece;
}

}  // namespace

void PaperBackend::refuse() {
    throw Error(ErrorKind::internal, "a backend on paper computes nothing");
}

void* PaperBackend::allocate_for(Memory memory, int64_t bytes) {
    require(bytes >= 0, "allocate a non-negative number of bytes");
    if (bytes == 0) return nullptr;
    const bool large = name_ == "cuda" && bytes > kDevicePiece / 2;
    const int64_t piece = large ? kDevicePiece : name_ == "cuda" ? kDeviceSmall : kHostPage;
    const int64_t taken = round_up(bytes, piece);
    held_[memory] += taken;
    void* const pointer = reinterpret_cast<void*>(next_);
    next_ += static_cast<uintptr_t>(round_up(bytes, kHostPage));
    blocks_.emplace(pointer, Block{memory, taken});
    return pointer;
}

void PaperBackend::release(void* pointer) noexcept {
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return;
    held_[found->second.memory] -= found->second.bytes;
    blocks_.erase(found);
}

void* PaperBackend::allocate_host(int64_t bytes) {
    if (bytes == 0) return nullptr;
    std::vector<std::byte> memory(static_cast<size_t>(bytes));
    void* const pointer = memory.data();
    host_.emplace(pointer, std::move(memory));
    host_bytes_ += bytes;
    return pointer;
}

void PaperBackend::release_host(void* pointer) noexcept {
    const auto found = host_.find(pointer);
    if (found == host_.end()) return;
    host_bytes_ -= std::ssize(found->second);
    host_.erase(found);
}

void PaperBackend::download(void*, const void*, int64_t) {
    refuse();
}

}  // namespace quadrille
