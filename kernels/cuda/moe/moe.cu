// SPDX-License-Identifier: Apache-2.0
// What surrounds the products of the experts: the rows of each expert, and the sum over slots and
// segments. Where two rows of one expert come to lie is a race, what they compute is not: a row's
// arithmetic does not depend on its position.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kGroupThreads = 1024;
constexpr int kIdsTogether = 8;  // of a thread that groups, whose loads are under way together
constexpr int64_t kStageBytes = int64_t{40} << 10;  // of a staged order, with experts' numbers
constexpr uint16_t kNobody = 0xffff;                // in it
constexpr int kThreads = 256;
// Outputs from which a thread takes four columns: as many threads as two thread blocks of each
// multiprocessor have.
constexpr int64_t kManyOutputs = int64_t{1} << 18;

struct PairGrouping {
    Grouping out;
    View<const int32_t> ids;
    int32_t experts;
    int32_t tile_rows;
    bool staged;  // the order is put together in shared memory, as 16-bit numbers

    // The expert of a pair; -1: nobody.
    __device__ int32_t expert(int32_t pair) const {
        int64_t at = pair;
        if (ids.stride != ids.cols) {
            const auto slots = static_cast<uint32_t>(ids.cols);
            const uint32_t row = static_cast<uint32_t>(pair) / slots;
            at = row * ids.stride + static_cast<uint32_t>(pair) % slots;
        }
        const int32_t e = ids.data[at];
        return e >= 0 && e < experts ? e : -1;
    }
    __device__ int32_t padded(int32_t rows) const {
        return (rows + out.align - 1) / out.align * out.align;
    }
    __device__ int32_t tiles_of(int32_t rows) const { return (rows + tile_rows - 1) / tile_rows; }
};

struct Place {
    int32_t position;
    int32_t tile;
};

// The thread's experts begin here, which have `own` positions and tiles: sums over the threads
// before it. totals: one of each warp, in shared memory.
__device__ Place place_of_thread(Place own, Place* totals) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    Place end = own;
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2) {
        const int32_t position = __shfl_up_sync(0xffffffffu, end.position, stride);
        const int32_t tile = __shfl_up_sync(0xffffffffu, end.tile, stride);
        if (lane >= stride) end = {end.position + position, end.tile + tile};
    }
    if (lane == 31) totals[warp] = end;
    __syncthreads();
    Place before = {end.position - own.position, end.tile - own.tile};
#pragma unroll 8
    for (int w = 0; w < warp; ++w) {
        before.position += totals[w].position;
        before.tile += totals[w].tile;
    }
    return before;
}

// work(pair, expert) for the thread's pairs that have one.
template <class Work>
__device__ void for_pairs(const PairGrouping& args, int32_t pairs, Work&& work) {
    for (auto first = static_cast<int32_t>(threadIdx.x); first < pairs;
         first += kIdsTogether * kGroupThreads) {
        int32_t expert[kIdsTogether];
#pragma unroll
        for (int i = 0; i < kIdsTogether; ++i) {
            const int32_t pair = first + i * kGroupThreads;
            expert[i] = pair < pairs ? args.expert(pair) : -1;
        }
#pragma unroll
        for (int i = 0; i < kIdsTogether; ++i) {
            if (expert[i] >= 0) work(first + i * kGroupThreads, expert[i]);
        }
    }
}

// The tiles of every expert, and where its rows begin.
__device__ void place_experts(const PairGrouping& args, const int32_t* rows, int32_t* position) {
    __shared__ Place totals[kGroupThreads / 32];
    const auto thread = static_cast<int32_t>(threadIdx.x);
    // Neighbouring experts to a thread.
    const int32_t each = (args.experts + kGroupThreads - 1) / kGroupThreads;
    const int32_t first = min(thread * each, args.experts);
    const int32_t last = min(first + each, args.experts);
    Place own = {0, 0};
    for (int32_t e = first; e < last; ++e) {
        own.position += args.padded(rows[e]);
        own.tile += args.tiles_of(rows[e]);
    }
    Place place = place_of_thread(own, totals);
    for (int32_t e = first; e < last; ++e) {
        position[e] = place.position;
        for (int32_t r = 0; r < rows[e]; r += args.tile_rows) {
            args.out.tiles[place.tile++] = {e, place.position + r,
                                            min(args.tile_rows, rows[e] - r)};
        }
        place.position += args.padded(rows[e]);
    }
    if (thread == kGroupThreads - 1) *args.out.tile_count = place.tile;
}

// One block, all of whose time is latency where there are few pairs. Shared: rows and first
// position of every expert, the order if it is staged: one multiprocessor writes the scattered
// numbers of many pairs slowly.
__global__ void __launch_bounds__(kGroupThreads)
    group_pairs_kernel(const __grid_constant__ PairGrouping args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ int32_t shared[];
    int32_t* rows = shared;
    int32_t* position = shared + args.experts;
    auto* staged = reinterpret_cast<uint16_t*>(position + args.experts);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t e = thread; e < args.experts; e += kGroupThreads) rows[e] = 0;
    __syncthreads();
    const auto pairs = static_cast<int32_t>(args.ids.rows * args.ids.cols);
    const bool few = pairs <= kGroupThreads;
    int32_t expert = -1;  // few: of the thread's pair
    int32_t rank = 0;     // among the expert's rows
    if (few) {
        if (thread < pairs) expert = args.expert(thread);
        if (expert >= 0) rank = atomicAdd(&rows[expert], 1);
    } else {
        for_pairs(args, pairs, [&](int32_t, int32_t e) { atomicAdd(&rows[e], 1); });
    }
    for (int64_t p = thread; p < args.out.capacity; p += kGroupThreads) {
        if (args.staged) {
            staged[p] = kNobody;
        } else {
            args.out.order[p] = -1;
        }
    }
    for (int32_t t = thread; t < args.out.most_tiles; t += kGroupThreads) {
        args.out.tiles[t] = {-1, 0, 0};
    }
    __syncthreads();
    place_experts(args, rows, position);
    __syncthreads();
    if (few) {
        if (expert >= 0) args.out.order[position[expert] + rank] = thread;
        return;
    }
    for_pairs(args, pairs, [&](int32_t pair, int32_t e) {
        const int32_t at = atomicAdd(&position[e], 1);
        if (args.staged) {
            staged[at] = static_cast<uint16_t>(pair);
        } else {
            args.out.order[at] = pair;
        }
    });
    if (!args.staged) return;
    __syncthreads();
    for (int64_t p = thread; p < args.out.capacity; p += kGroupThreads) {
        args.out.order[p] = staged[p] == kNobody ? -1 : staged[p];
    }
}

struct CombineArgs {
    View<float> out;
    Combination in;
};

// One number, or four where they may be loaded at once. kCached: through the multiprocessor's own
// cache.
template <bool kCached, int kColumns>
__device__ __forceinline__ void load_columns(float (&v)[kColumns], const float* from) {
    if constexpr (kColumns == 4) {
        const auto* four = reinterpret_cast<const float4*>(from);
        const float4 in = kCached ? *four : __ldcg(four);
        v[0] = in.x;
        v[1] = in.y;
        v[2] = in.z;
        v[3] = in.w;
    } else {
        static_assert(kColumns == 1);
        v[0] = kCached ? *from : __ldcg(from);
    }
}

template <int kSegments, int kColumns>
__device__ __forceinline__ void add_scaled(float (&sum)[kSegments][kColumns], float scale,
                                           const float (&part)[kSegments][kColumns]) {
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum[s][i] = __fmaf_rn(scale, part[s][i], sum[s][i]);
    }
}

template <int kSegments, class Of>
__device__ __forceinline__ float tree(Of&& of) {
    if constexpr (kSegments == 4) return (of(0) + of(1)) + (of(2) + of(3));
    if constexpr (kSegments == 2) return of(0) + of(1);
    return of(0);
}

// Outputs c .. of row r. All loads of kSlots slots are under way together: their latency is what
// this costs where there are few rows. Waits for earlier kernels before it reads by_pair.
template <int kSegments, int kColumns>
__device__ void combined(float (&out)[kColumns], const Combination& in, int64_t r, int64_t c) {
    constexpr int kSlots = kSegments * kColumns == 16 ? 4 : 8;  // no more than registers hold
    float sum[kSegments][kColumns] = {};
    float shared[kSegments][kColumns] = {};
    if (in.shared != nullptr) {
#pragma unroll
        for (int s = 0; s < kSegments; ++s) {
            load_columns<false>(
                shared[s], in.shared + s * in.shared_segment_stride + r * in.shared_stride + c);
        }
    }
    const int32_t* id = in.ids.data + r * in.ids.stride;
    const float* weight = in.weights.data + r * in.weights.stride;
    const int32_t slots = in.experts > 0 ? static_cast<int32_t>(in.ids.cols) : 0;
    const int64_t step = kSegments * in.pair_stride;  // from a slot to the next
    for (int32_t first = 0; first < slots; first += kSlots) {
        int32_t expert[kSlots];
        float scale[kSlots];
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            const int32_t slot = min(first + i, slots - 1);
            // Early, a multiprocessor's cache may hold what was there before; else it saves as many
            // requests as there are data.
            expert[i] = in.early ? __ldcg(id + slot) : id[slot];
            scale[i] = in.early ? __ldcg(weight + slot) : weight[slot];
        }
        bool busy[kSlots];
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            busy[i] = first + i < slots && expert[i] >= 0 && expert[i] < in.experts;
        }
        wait_for_earlier_kernels();
        // Also of slots that have none, whose numbers are of no use: a branch would part the loads.
        float part[kSlots][kSegments][kColumns];
        const float* from = in.by_pair + r * slots * step + c;
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            const int32_t slot = min(first + i, slots - 1);
#pragma unroll
            for (int s = 0; s < kSegments; ++s) {
                load_columns<true>(part[i][s], from + slot * step + s * in.pair_stride);
            }
        }
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            if (busy[i]) add_scaled<kSegments, kColumns>(sum, scale[i], part[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        if (in.shared != nullptr) {
#pragma unroll
            for (int s = 0; s < kSegments; ++s) sum[s][i] += shared[s][i];
        }
        out[i] = tree<kSegments>([&](int s) { return sum[s][i]; });
    }
}

// Few thread blocks to a multiprocessor: else the compiler saves registers, and loads one after the
// other.
template <int kSegments, int kColumns>
__global__ void __launch_bounds__(kThreads, kSegments* kColumns < 4 ? 4 : 2)
    combine_kernel(const __grid_constant__ CombineArgs args) {
    if (!args.in.early) wait_for_earlier_kernels();
    const int64_t c = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kColumns;
    for (int64_t r = blockIdx.y; r < args.out.rows && c < args.out.cols; r += gridDim.y) {
        float sum[kColumns];
        combined<kSegments>(sum, args.in, r, c);
        wait_for_earlier_kernels();  // also where there are no slots
        float* to = args.out.data + r * args.out.stride + c;
        if constexpr (kColumns == 4) {
            *reinterpret_cast<float4*>(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        } else {
            *to = sum[0];
        }
    }
    wait_for_earlier_kernels();
    let_next_kernel_start();
}

template <int kColumns>
void launch_combine(const CombineArgs& args, LaunchStream stream) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.out.cols, kThreads * kColumns)),
                    static_cast<unsigned>(std::min<int64_t>(args.out.rows, 65535)));
    const auto kernel = args.in.segments == 1   ? combine_kernel<1, kColumns>
                        : args.in.segments == 2 ? combine_kernel<2, kColumns>
                                                : combine_kernel<4, kColumns>;
    launch_dependent(kernel, grid, kThreads, 0, stream, args);
}

struct SwigluTiles {
    float* gate;
    const float* up;
    int64_t stride;
    const Mlp* table;
    Grouping grouping;
    float limit;
};

__global__ void __launch_bounds__(kThreads)
    swiglu_tiles_kernel(const __grid_constant__ SwigluTiles args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    if (static_cast<int32_t>(blockIdx.y) >= *args.grouping.tile_count) return;
    const RowTile tile = args.grouping.tiles[blockIdx.y];
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= args.table[tile.expert].down.k) return;
    for (int32_t r = 0; r < tile.rows; ++r) {
        const int64_t at = (tile.first + r) * args.stride + c;
        args.gate[at] = swiglu(args.gate[at], args.up[at], args.limit);
    }
}

}  // namespace

int64_t grouped_positions(int64_t pairs, int32_t experts, int32_t align) {
    const int64_t most = pairs + (align - 1) * std::min<int64_t>(pairs, experts);
    return (most + align - 1) / align * align;
}

int32_t grouped_tiles(int64_t pairs, int32_t experts, int32_t tile_rows) {
    // An expert's last tile may be short: one more than the whole ones for each busy expert.
    const int64_t busy = std::min<int64_t>(pairs, experts);
    return static_cast<int32_t>(std::min(pairs, busy + (pairs - busy) / tile_rows));
}

void group_pairs(const Grouping& grouping, View<const int32_t> ids, int32_t experts,
                 int32_t tile_rows, LaunchStream stream) {
    require(experts <= 4096, "moe: at most 4096 experts");
    require(tile_rows % 8 == 0, "moe: tiles of whole groups of 8 rows");
    const int64_t pairs = ids.rows * ids.cols;
    int64_t shared = experts * int64_t{2 * sizeof(int32_t)};
    const int64_t order = grouping.capacity * int64_t{sizeof(uint16_t)};
    const bool staged = pairs > kGroupThreads && pairs < kNobody && shared + order <= kStageBytes;
    if (staged) shared += order;
    launch_dependent(group_pairs_kernel, dim3(1), kGroupThreads, static_cast<int>(shared), stream,
                     PairGrouping{grouping, ids, experts, tile_rows, staged});
}

void combine(View<float> out, const Combination& parts, LaunchStream stream) {
    require(parts.segments == 1 || parts.segments == 2 || parts.segments == 4,
            "moe: 1, 2 or 4 segments");
    if (out.rows == 0 || out.cols == 0) return;
    const CombineArgs args{out, parts};
    const bool fours = out.cols % 4 == 0 && loads_four(out.data, out.stride) &&
                       loads_four(parts.by_pair, parts.pair_stride) &&
                       loads_four(parts.shared, parts.shared_stride) &&
                       parts.shared_segment_stride % 4 == 0;
    if (fours && out.rows * out.cols >= kManyOutputs) return launch_combine<4>(args, stream);
    launch_combine<1>(args, stream);
}

void swiglu_tiles(float* gate, const float* up, int64_t stride, const Mlp* table,
                  const Grouping& grouping, float limit, LaunchStream stream) {
    if (grouping.most_tiles == 0) return;
    const dim3 grid(static_cast<unsigned>((stride + kThreads - 1) / kThreads),
                    static_cast<unsigned>(grouping.most_tiles));
    launch_dependent(swiglu_tiles_kernel, grid, kThreads, 0, stream,
                     SwigluTiles{gate, up, stride, table, grouping, limit});
}

}  // namespace quadrille::cuda
