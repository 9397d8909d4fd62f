// SPDX-License-Identifier: Apache-2.0
// UploadRing: uploads from memory whose owner may reuse it at once. A plain asynchronous copy from
// pageable memory may read it later, where the device reaches the host's page tables (GB10 does).
// Bytes go through page-locked chunks in turn; a chunk is filled again when its copies have run.
#pragma once

#include "kernels/cuda/handles.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace quadrille::cuda {

class UploadRing {
  public:
    // `stream` outlives it.
    explicit UploadRing(const Stream& stream);

    // In stream order. Waits only while all chunks are under way.
    void upload(void* to, const void* host, int64_t bytes);

  private:
    static constexpr int64_t kChunkBytes = int64_t{4} << 20;
    struct Chunk {
        PinnedBuffer memory{kChunkBytes};
        Event copied;  // behind the last copy out of it
        bool under_way = false;
    };
    void next_chunk();

    const Stream& stream_;
    std::array<Chunk, 4> chunks_;
    size_t current_ = 0;
    int64_t used_ = 0;  // bytes of the current chunk
};

}  // namespace quadrille::cuda
