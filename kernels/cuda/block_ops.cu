// SPDX-License-Identifier: Apache-2.0
// What ties the parts of a decode step together: blocks from drafts, acceptance, one choice from
// those of several ranks. A thread per row: a step has at most some hundred.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 128;

__global__ void block_tokens_kernel(int32_t* tokens, const int32_t* anchor,
                                    View<const int32_t> path, const Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const auto r = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
    if (r >= rows.m) return;
    const int32_t i = rows.row_sequence[r];
    const int32_t place = r - rows.begin[i];
    int32_t token = -1;
    if (rows.slot[i] >= 0) {
        token = place == 0 ? anchor[i] : path.data[i * path.stride + place - 1];
    }
    tokens[r] = token;
}

__global__ void accept_prefix_kernel(uint8_t* write, const int32_t* tokens, const int32_t* target,
                                     const Rows rows, int32_t room) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const auto r = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
    if (r >= room) return;
    bool kept = false;
    if (r < rows.m) {
        const int32_t i = rows.row_sequence[r];
        kept = rows.slot[i] >= 0;
        for (int32_t t = rows.begin[i] + 1; kept && t <= r; ++t) kept = tokens[t] == target[t - 1];
    }
    write[r] = kept ? 1 : 0;
}

__global__ void merge_samples_kernel(int32_t* id, const double* scores, const int32_t* ids,
                                     int32_t m, int32_t count, int64_t part_words) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const auto r = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
    if (r >= m) return;
    double best = 0.0;
    int32_t chosen = -1;
    for (int32_t part = 0; part < count; ++part) {
        const double score = scores[part * part_words + r];
        const int32_t other = ids[part * part_words * 2 + r];
        if (other < 0 || (chosen >= 0 && !(score > best))) continue;
        best = score;
        chosen = other;
    }
    id[r] = chosen;
}

unsigned blocks_of(int32_t rows) {
    return static_cast<unsigned>((rows + kThreads - 1) / kThreads);
}

}  // namespace

void CudaBackend::block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                               const Rows& rows) {
    contract::block_tokens(tokens, anchor, path, rows);
    if (rows.m == 0) return;
    launch_dependent(block_tokens_kernel, blocks_of(rows.m), kThreads, 0, stream_.get(), tokens,
                     anchor, path, rows);
}

void CudaBackend::mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                                const Rows& rows) {
    contract::mark_accepted(write, tokens, target, rows);
    if (rows.m == 0) return;
    const int32_t room = (rows.m + 3) / 4 * 4;
    launch_dependent(accept_prefix_kernel, blocks_of(room), kThreads, 0, stream_.get(), write,
                     tokens, target, rows, room);
}

void CudaBackend::merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                                int32_t count, int64_t part_bytes) {
    contract::merge_samples(id, scores, ids, m, count, part_bytes);
    if (m == 0) return;
    launch_dependent(merge_samples_kernel, blocks_of(m), kThreads, 0, stream_.get(), id, scores,
                     ids, m, count, part_bytes / 8);
}

}  // namespace quadrille::cuda
