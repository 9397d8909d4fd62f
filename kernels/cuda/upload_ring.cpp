// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>

namespace quadrille::cuda {

namespace {
constexpr int64_t kAlign = 64;
}

UploadRing::UploadRing(const Stream& stream) : stream_(stream) {}

void UploadRing::next_chunk() {
    chunks_[current_].copied.record(stream_);
    chunks_[current_].under_way = true;
    current_ = (current_ + 1) % chunks_.size();
    Chunk& chunk = chunks_[current_];
    if (chunk.under_way) chunk.copied.synchronize();
    chunk.under_way = false;
    used_ = 0;
}

void UploadRing::upload(void* to, const void* host, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        if (used_ == kChunkBytes) next_chunk();
        const int64_t part = std::min(bytes - done, kChunkBytes - used_);
        auto* const staged = static_cast<std::byte*>(chunks_[current_].memory.data()) + used_;
        const auto size = static_cast<size_t>(part);
        std::memcpy(staged, static_cast<const std::byte*>(host) + done, size);
        CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, size,
                                   cudaMemcpyHostToDevice, stream_.get()));
        used_ = std::min((used_ + part + kAlign - 1) / kAlign * kAlign, kChunkBytes);
        done += part;
    }
}

}  // namespace quadrille::cuda
