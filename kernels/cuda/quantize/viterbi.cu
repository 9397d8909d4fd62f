// SPDX-License-Identifier: Apache-2.0
// The search for a tile's states: one thread block a tile, 1024 threads, 64 states each. The costs
// of all nodes lie in shared memory; the decoded values of a thread's states stay in its registers
// as fp16 pairs. What every node was reached by is written to global memory, 4 KB a position, and
// read back some rows at a time to trace the path.
//
// 512 positions of 65536 transitions, each a subtraction, a fused multiply-add, a bit merge and a
// minimum: the last two run at half rate, so a multiprocessor needs about 2560 cycles a position.
#include "kernels/cuda/quantize/trellis_kernels.h"
#include "kernels/trellis_search.h"

#include <cuda_fp16.h>

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kTileSize = exl3::kTileSize;
constexpr int kRowWords = 1024;  // choices of a position

// How the states of one code are dealt out to threads.
template <int kBits>
struct Deal {
    static constexpr int kSymbols = 1 << kBits;
    static constexpr int kNodes = trellis::nodes(kBits);
    static constexpr int kParts = kBits > 6 ? 1 << (kBits - 6) : 1;  // threads that share a node
    static constexpr int kOwn = kSymbols / kParts;                   // symbols of a thread
    static constexpr int kOuts = kBits <= 3 ? kSymbols : kBits <= 6 ? 1 << (6 - kBits) : 1;
    static constexpr int kGroups = kBits == 1 ? 16 : kBits == 2 ? 4 : 1;
    static constexpr int kChoiceBits = kBits <= 2 ? kBits : kBits <= 4 ? 4 : 8;
    // 1 bit: too many nodes for two arrays of costs and for values in registers.
    static constexpr bool kInPlace = kBits == 1;
    static constexpr bool kKept = kBits > 1;
    static constexpr int kBytes = std::max(65536, (kInPlace ? 4 : 8) * kNodes);
    static_assert(kGroups * kOuts * kOwn == 64);
    static_assert(kGroups * kOuts * kThreads / kParts == kNodes);

    // The first of kOuts nodes; all are reached from node (k * kNodes + node) >> kBits by symbol k.
    static __device__ int node(int thread, int group) {
        return kOuts * (thread / kParts + kThreads / kParts * group);
    }
};

template <int kBits>
struct Values {
    using D = Deal<kBits>;
    __half2 pair[D::kKept ? 32 : 1];

    __device__ void load(const F16* table, int thread) {
        if constexpr (D::kKept) {
            const auto* values = reinterpret_cast<const __half*>(table);
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                pair[i] =
                    __halves2half2(values[state(2 * i, thread)], values[state(2 * i + 1, thread)]);
            }
        }
    }
    // The i-th state of a thread: groups, then symbols, then nodes.
    static __device__ int state(int i, int thread) {
        const int out = i % D::kOuts;
        const int own = i / D::kOuts % D::kOwn;
        const int group = i / D::kOuts / D::kOwn;
        const int symbol = own * D::kParts + thread % D::kParts;
        return symbol * D::kNodes + D::node(thread, group) + out;
    }
    __device__ float get(const F16* table, int i, int thread) const {
        if constexpr (D::kKept) {
            return i % 2 == 0 ? __low2float(pair[i / 2]) : __high2float(pair[i / 2]);
        } else {
            return __half2float(reinterpret_cast<const __half*>(table)[state(i, thread)]);
        }
    }
};

// Costs of kOuts nodes of a group behind a value.
template <int kBits>
__device__ __forceinline__ void relax(float* best, const float* from, const Values<kBits>& values,
                                      const F16* table, float x, int group) {
    using D = Deal<kBits>;
    const int thread = static_cast<int>(threadIdx.x);
    const int in = D::node(thread, group) >> kBits;
    const int part = thread % D::kParts;
#pragma unroll
    for (int r = 0; r < D::kOuts; ++r) best[r] = 2 * trellis::kUnreached;
#pragma unroll
    for (int own = 0; own < D::kOwn; ++own) {
        const int symbol = own * D::kParts + part;
        const float cost = from[symbol * (D::kNodes >> kBits) + in];
#pragma unroll
        for (int r = 0; r < D::kOuts; ++r) {
            const float d =
                __fsub_rn(values.get(table, (group * D::kOwn + own) * D::kOuts + r, thread), x);
            const float sum = __fmaf_rn(d, d, cost);
            const int tagged = (__float_as_int(sum) & ~(D::kSymbols - 1)) | symbol;
            best[r] = fminf(best[r], __int_as_float(tagged));
        }
    }
#pragma unroll
    for (int other = 1; other < D::kParts; other *= 2) {
        best[0] = fminf(best[0], __shfl_xor_sync(~0u, best[0], other));
    }
}

// Wide stores: single ones of neighbouring nodes would meet in a bank four at a time.
template <int kBits>
__device__ __forceinline__ uint32_t put(float* to, const float* best, int group) {
    using D = Deal<kBits>;
    float* place = to + D::node(static_cast<int>(threadIdx.x), group);
    if constexpr (D::kOuts >= 4) {
#pragma unroll
        for (int r = 0; r < D::kOuts; r += 4) {
            *reinterpret_cast<float4*>(place + r) =
                make_float4(best[r], best[r + 1], best[r + 2], best[r + 3]);
        }
    } else if constexpr (D::kOuts == 2) {
        *reinterpret_cast<float2*>(place) = make_float2(best[0], best[1]);
    } else {
        *place = best[0];
    }
    uint32_t chosen = 0;
#pragma unroll
    for (int r = 0; r < D::kOuts; ++r) {
        const auto symbol = static_cast<uint32_t>(__float_as_int(best[r]) & (D::kSymbols - 1));
        chosen |= symbol << ((group * D::kOuts + r) * D::kChoiceBits);
    }
    return chosen;
}

// 256 positions from `first` on. The costs lie at `costs` before and behind.
template <int kBits>
__device__ void run(float* costs, const float* s_values, uint32_t* choices,
                    const Values<kBits>& values, const F16* table, int first) {
    using D = Deal<kBits>;
    const int thread = static_cast<int>(threadIdx.x);
    float* from = costs;
    float* to = D::kInPlace ? costs : costs + D::kNodes;
    for (int i = 0; i < kTileSize; ++i) {
        const int at = (first + i) % kTileSize;
        const float x = s_values[at];
        uint32_t chosen = 0;
        if constexpr (D::kInPlace) {
            float best[D::kGroups][D::kOuts];
#pragma unroll
            for (int group = 0; group < D::kGroups; ++group) {
                relax<kBits>(best[group], from, values, table, x, group);
            }
            __syncthreads();
#pragma unroll
            for (int group = 0; group < D::kGroups; ++group) {
                chosen |= put<kBits>(to, best[group], group);
            }
        } else {
#pragma unroll
            for (int group = 0; group < D::kGroups; ++group) {
                float best[D::kOuts];
                relax<kBits>(best, from, values, table, x, group);
                chosen |= put<kBits>(to, best, group);
            }
            float* const last = from;
            from = to;
            to = last;
        }
        if (thread % D::kParts == 0) choices[at * kRowWords + thread / D::kParts] = chosen;
        __syncthreads();
    }
}

// The node with the least cost, the first of equal ones.
template <int kBits>
__device__ int best_node(const float* costs, unsigned long long* s_key) {
    const int thread = static_cast<int>(threadIdx.x);
    unsigned long long key = ~0ull;
    for (int node = thread; node < Deal<kBits>::kNodes; node += kThreads) {
        const auto cost = static_cast<unsigned long long>(__float_as_uint(costs[node]));
        key = min(key, cost << 32 | static_cast<unsigned>(node));
    }
    if (thread == 0) *s_key = ~0ull;
    __syncthreads();
    atomicMin(s_key, key);
    __syncthreads();
    return static_cast<int>(*s_key & 0xffffffffu);
}

// Follows the path to `node` in front of position `first` back over `count` positions; s_states of
// them, and the node in front of them is left in *s_node. The costs' memory is used.
template <int kBits>
__device__ void trace(uint16_t* s_states, int* s_node, void* area, const uint32_t* choices,
                      int node, int first, int count) {
    using D = Deal<kBits>;
    constexpr int kRows = D::kBytes / 4 / kRowWords;
    constexpr int kWords = kRowWords / D::kParts;
    auto* rows = static_cast<uint32_t*>(area);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) *s_node = node;
    for (int left = count; left > 0; left -= kRows) {
        const int some = min(left, kRows);  // the last `some` of `left` positions
        __syncthreads();
        for (int i = thread; i < some * kWords; i += kThreads) {
            const int at = (first + kTileSize - count + left - some + i / kWords) % kTileSize;
            rows[i] = choices[at * kRowWords + i % kWords];
        }
        __syncthreads();
        if (thread == 0) {
            int here = *s_node;
            for (int i = some - 1; i >= 0; --i) {
                const int at = (first + kTileSize - count + left - some + i) % kTileSize;
                const int unit = here / D::kOuts;
                const int field = unit / kWords * D::kOuts + here % D::kOuts;
                const uint32_t word = rows[i * kWords + unit % kWords];
                const auto symbol = static_cast<int>(word >> (field * D::kChoiceBits) &
                                                     static_cast<uint32_t>(D::kSymbols - 1));
                const int state = symbol * D::kNodes + here;
                s_states[at] = static_cast<uint16_t>(state);
                here = state >> kBits;
            }
            *s_node = here;
        }
    }
    __syncthreads();
}

template <int kBits>
__device__ void fill(float* costs, float cost, int zero) {
    for (int i = static_cast<int>(threadIdx.x); i < Deal<kBits>::kNodes; i += kThreads) {
        costs[i] = i == zero ? 0.0f : cost;
    }
    __syncthreads();
}

template <int kBits>
__global__ void __launch_bounds__(kThreads, 1)
    viterbi_kernel(uint16_t* states, const float* tiles, int64_t count, bool tied,
                   TrellisScratch scratch) {
    extern __shared__ __align__(16) float costs[];
    __shared__ float s_values[kTileSize];
    __shared__ uint16_t s_states[kTileSize];
    __shared__ unsigned long long s_key;
    __shared__ int s_node;
    const int thread = static_cast<int>(threadIdx.x);
    uint32_t* choices = scratch.choices + blockIdx.x * kChoiceWords;
    Values<kBits> values;
    values.load(scratch.table, thread);
    for (int64_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
        if (thread < kTileSize) {
            s_values[thread] =
                fminf(fmaxf(tiles[tile * kTileSize + thread], -trellis::kLargestValue),
                      trellis::kLargestValue);
        }
        int node = 0;
        if (tied) {
            node = states[tile * kTileSize] >> kBits;
        } else {
            fill<kBits>(costs, 0.0f, -1);
            run<kBits>(costs, s_values, choices, values, scratch.table, trellis::kMiddle);
            const int end = best_node<kBits>(costs, &s_key);
            trace<kBits>(s_states, &s_node, costs, choices, end, trellis::kMiddle,
                         trellis::kMiddle);
            node = s_node;
        }
        __syncthreads();
        fill<kBits>(costs, trellis::kUnreached, node);
        run<kBits>(costs, s_values, choices, values, scratch.table, 0);
        trace<kBits>(s_states, &s_node, costs, choices, node, 0, kTileSize);
        if (thread < kTileSize) states[tile * kTileSize + thread] = s_states[thread];
        __syncthreads();
    }
}

template <int kBits>
void launch(uint16_t* states, const float* tiles, int64_t count, bool tied,
            const TrellisScratch& scratch, LaunchStream stream) {
    constexpr int kBytes = Deal<kBits>::kBytes;
    CUDA_CHECK(cudaFuncSetAttribute(viterbi_kernel<kBits>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(count, scratch.blocks));
    viterbi_kernel<kBits>
        <<<blocks, kThreads, kBytes, stream>>>(states, tiles, count, tied, scratch);
    LAUNCH_CHECK();
}

}  // namespace

void viterbi(uint16_t* states, const float* tiles, int64_t count, int bits, bool tied,
             const TrellisScratch& scratch, LaunchStream stream) {
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    if (count == 0) return;
    constexpr decltype(&launch<1>) kBy[] = {launch<1>, launch<2>, launch<3>, launch<4>,
                                            launch<5>, launch<6>, launch<7>, launch<8>};
    kBy[bits - 1](states, tiles, count, tied, scratch, stream);
}

}  // namespace quadrille::cuda
