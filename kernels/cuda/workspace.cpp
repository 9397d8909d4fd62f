// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/workspace.h"

#include "kernels/cuda/exl3/exl3_product.h"

#include <algorithm>
#include <utility>

namespace quadrille::cuda {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kSmallest = int64_t{1} << 20;

int64_t round_up(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Workspace::Scope::Scope(Workspace& workspace) : workspace_(workspace) {
    // What the last passes needed together becomes one block, unless a graph is recorded: the
    // pieces hold what a pass that has run before needs.
    if (workspace.depth_ == 0 && workspace.blocks_.size() > 1 && !workspace.keeps_ &&
        !workspace.stream_.is_capturing()) {
        const int64_t total = workspace.bytes();
        workspace.require_free_stream();
        workspace.blocks_.clear();
        workspace.blocks_.emplace_back(total);
        workspace.block_ = 0;
        workspace.used_ = 0;
    }
    block_ = workspace.block_;
    used_ = workspace.used_;
    ++workspace.depth_;
}

Workspace::Scope::~Scope() {
    workspace_.block_ = block_;
    workspace_.used_ = used_;
    --workspace_.depth_;
}

void* Workspace::take(int64_t bytes) {
    require(bytes >= 0, "scratch of a non-negative size");
    if (bytes == 0) return nullptr;
    bytes = round_up(bytes);
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
        ++block_;
        used_ = 0;
    }
    if (block_ == blocks_.size()) {
        require_free_stream();
        blocks_.emplace_back(std::max(bytes, kSmallest));
        used_ = 0;
    }
    auto* memory = static_cast<unsigned char*>(blocks_[block_].data()) + used_;
    used_ += bytes;
    return memory;
}

int32_t* Workspace::counters(int64_t count) {
    return static_cast<int32_t*>(
        grown(counters_, count * static_cast<int64_t>(sizeof(int32_t)), 0));
}

float* Workspace::awaited_sums(int64_t count) {
    static_assert(kMissing == 0xffffffffu);
    return static_cast<float*>(
        grown(awaited_sums_, count * static_cast<int64_t>(sizeof(float)), 0xff));
}

// An array of `bytes` at least, each of which is `fill` between kernels.
void* Workspace::grown(DeviceBuffer& array, int64_t bytes, int fill) {
    if (bytes > array.bytes()) {
        require_free_stream();
        if (keeps_) old_arrays_.push_back(std::move(array));
        array = DeviceBuffer();  // freed before the larger one is taken
        array = DeviceBuffer(std::max(round_up(bytes), kSmallest));
        CUDA_CHECK(
            cudaMemsetAsync(array.data(), fill, static_cast<size_t>(array.bytes()), stream_.get()));
    }
    return array.data();
}

int64_t Workspace::bytes() const {
    int64_t total = 0;
    for (const DeviceBuffer& block : blocks_) total += block.bytes();
    return total;
}

// Memory that ops under way may use is about to change hands.
void Workspace::require_free_stream() const {
    if (stream_.is_capturing()) {
        throw Error(ErrorKind::internal,
                    "device scratch grew while a graph was recorded: run the pass once before");
    }
    stream_.synchronize();
}

}  // namespace quadrille::cuda
