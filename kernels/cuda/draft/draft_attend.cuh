// SPDX-License-Identifier: Apache-2.0
// Attention of a DFlash2 draft block over the context ring, in fp32. The positions that the block
// may see are cut at multiples of kPositions: a thread block weighs one piece for 32 queries that
// share its keys and values (the rows and heads of a key head), then a second kernel
// (draft_attention.cu) adds the pieces of a row in order. So the arithmetic of a row depends on its
// position only.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/op_types.h"

namespace quadrille::cuda {

inline constexpr int kPositions = 256;  // of a piece
inline constexpr int kQueries = 32;     // of a thread block
inline constexpr int kAttendThreads = 256;

struct Attention {
    View<float> out;
    View<const float> value;
    DraftCache cache;
    DraftAttentionParams params;
    Rows rows;
    const float* queries;   // (rows, heads, d) normed and rotated
    const float* keys;      // (rows, kv_heads, d)
    int32_t first = 0;      // sequences from this one on
    int32_t pieces = 0;     // the most of a sequence
    bool aligned = false;   // every row of keys, values and queries to 16 bytes, d a multiple of 4
    float* sums = nullptr;  // (sequences, heads, block, pieces, d), not divided by the totals
    float2* totals = nullptr;  // (sequences, heads, block, pieces): largest score, sum of weights
};

// The pieces of a sequence: of positions [begin, end).
struct Pieces {
    int64_t begin;
    int64_t end;
    int32_t most;

    __device__ Pieces(const Attention& args, int32_t sequence) {
        const int64_t position = args.rows.position[sequence];
        const int64_t window = args.params.window;
        begin = window > 0 ? max(int64_t{0}, position - window + 1) : 0;
        end = position + args.params.block;
        most = args.pieces;
    }
    __device__ int64_t first() const { return begin / kPositions; }
    __device__ int32_t count() const {
        return min(static_cast<int32_t>((end + kPositions - 1) / kPositions - first()), most);
    }
};

// The place of a head's piece of a row.
__device__ __forceinline__ int64_t piece_at(const Attention& args, int32_t sequence, int32_t head,
                                            int32_t row, int32_t piece) {
    const int64_t of_head = int64_t{sequence - args.first} * args.params.heads + head;
    return (of_head * args.params.block + row) * args.pieces + piece;
}

// Four channels from `from` on, zeros behind the last; nullptr: zeros.
template <bool kAligned>
__device__ __forceinline__ float4 load_channels(const float* from, int32_t left) {
    float4 v = {};
    if constexpr (kAligned) {
        if (from != nullptr && left > 0) v = *reinterpret_cast<const float4*>(from);
    } else if (from != nullptr) {
        if (left > 0) v.x = from[0];
        if (left > 1) v.y = from[1];
        if (left > 2) v.z = from[2];
        if (left > 3) v.w = from[3];
    }
    return v;
}

class PieceKernel {
  public:
    static constexpr int kChunk = 32;  // channels of keys in shared memory at a time
    static constexpr int kQueryRow = kQueries + 4;
    static constexpr int kKeyRow = kPositions + 4;

    struct Shared {
        float keys[kChunk][kKeyRow];  // channel, position; then the sums of shares
        float queries[kChunk][kQueryRow];
        float weights[kPositions][kQueryRow];
        const float* key[kPositions];    // nullptr: seen by no row
        const float* value[kPositions];  // likewise
    };

    __device__ PieceKernel(const Attention& args, Shared& shared)
        : args_(args),
          s_(shared),
          d_(args.params.head_dim),
          group_(args.params.heads / args.params.kv_heads),
          sequence_(args.first + static_cast<int32_t>(blockIdx.z)),
          kv_head_(static_cast<int32_t>(blockIdx.y) % args.params.kv_heads),
          first_query_(static_cast<int32_t>(blockIdx.y) / args.params.kv_heads * kQueries),
          slot_(args.rows.slot[sequence_]),
          position_(args.rows.position[sequence_]) {}

    __device__ void run() {
        if (slot_ < 0) return;
        const Pieces pieces(args_, sequence_);
        const auto piece = static_cast<int32_t>(blockIdx.x);
        if (piece >= pieces.count()) return;
        start_ = (pieces.first() + piece) * kPositions;
        locate(start_ + thread(), pieces);
        __syncthreads();
        if (args_.aligned) {
            attend<true>(piece);
        } else {
            attend<false>(piece);
        }
    }

  private:
    static __device__ int thread() { return static_cast<int>(threadIdx.x); }
    template <bool kAligned>
    __device__ void attend(int32_t piece) {
        score<kAligned>();
        __syncthreads();
        soften(piece);
        __syncthreads();
        weigh<kAligned>(piece);
    }
    __device__ int32_t queries() const { return group_ * args_.params.block; }
    __device__ int32_t row_of(int32_t query) const { return query / group_; }
    __device__ int32_t head_of(int32_t query) const { return kv_head_ * group_ + query % group_; }

    // True: block row j sees a position, which is at most the block's last.
    __device__ bool sees(int32_t j, int64_t at) const {
        const int64_t own = position_ + j;
        if (args_.params.causal && at > own) return false;
        return args_.params.window <= 0 || own - at < args_.params.window;
    }

    // The key and the value of a thread's position. Below every row's window they may not be in
    // the ring any more.
    __device__ void locate(int64_t at, const Pieces& pieces) {
        const int32_t kv_heads = args_.params.kv_heads;
        const float* key = nullptr;
        const float* value = nullptr;
        if (at >= position_ && at < pieces.end) {
            const int64_t row = int64_t{sequence_} * args_.params.block + at - position_;
            key = args_.keys + (row * kv_heads + kv_head_) * d_;
            value = args_.value.data + row * args_.value.stride + int64_t{kv_head_} * d_;
        } else if (at >= pieces.begin && at < position_) {
            const int64_t place = (at % args_.cache.ring_size * kv_heads + kv_head_) * d_;
            key = args_.cache.keys.data + slot_ * args_.cache.keys.stride + place;
            value = args_.cache.values.data + slot_ * args_.cache.values.stride + place;
        }
        s_.key[thread()] = key;
        s_.value[thread()] = value;
    }

    // Channels [first, first + kChunk) of the queries and of the keys, turned. All loads of a
    // thread are under way together.
    template <bool kAligned>
    __device__ void load_chunk(int32_t first) {
        constexpr int kRows = kAttendThreads / 8;
        constexpr int kPer = kPositions / kRows;
        const int32_t channel = thread() % 8 * 4;
        const int32_t left = d_ - first - channel;
        const int32_t query = first_query_ + thread() / 8;
        const float* from = nullptr;
        if (query < queries()) {
            const int64_t row = int64_t{sequence_} * args_.params.block + row_of(query);
            from =
                args_.queries + (row * args_.params.heads + head_of(query)) * d_ + first + channel;
        }
        float4 v[kPer + 1];
        v[kPer] = load_channels<kAligned>(from, left);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
            const float* key = s_.key[i * kRows + thread() / 8];
            v[i] = load_channels<kAligned>(key == nullptr ? key : key + first + channel, left);
        }
        const auto turn = [&](auto& to, int32_t column, const float4& four) {
            to[channel][column] = four.x;
            to[channel + 1][column] = four.y;
            to[channel + 2][column] = four.z;
            to[channel + 3][column] = four.w;
        };
        turn(s_.queries, thread() / 8, v[kPer]);
#pragma unroll
        for (int i = 0; i < kPer; ++i) turn(s_.keys, i * kRows + thread() / 8, v[i]);
    }

    // Scores of 8 queries and 4 positions a thread.
    template <bool kAligned>
    __device__ void score() {
        const int32_t column = thread() % 64 * 4;
        const int32_t query = thread() / 64 * 8;
        float dot[8][4] = {};
#pragma unroll 1
        for (int32_t first = 0; first < d_; first += kChunk) {
            if (first > 0) __syncthreads();
            load_chunk<kAligned>(first);
            __syncthreads();
#pragma unroll 8
            for (int c = 0; c < kChunk; ++c) {
                const float4 k = *reinterpret_cast<const float4*>(&s_.keys[c][column]);
                const float4 low = *reinterpret_cast<const float4*>(&s_.queries[c][query]);
                const float4 high = *reinterpret_cast<const float4*>(&s_.queries[c][query + 4]);
                const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    dot[i][0] += q[i] * k.x;
                    dot[i][1] += q[i] * k.y;
                    dot[i][2] += q[i] * k.z;
                    dot[i][3] += q[i] * k.w;
                }
            }
        }
        const float scale = 1.0f / sqrtf(static_cast<float>(d_));
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const bool any = s_.key[column + p] != nullptr;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool seen =
                    any && sees(row_of(first_query_ + query + i), start_ + column + p);
                s_.weights[column + p][query + i] = seen ? dot[i][p] * scale : -INFINITY;
            }
        }
    }

    // Weights of four queries a warp, against the largest score of the piece.
    __device__ void soften(int32_t piece) {
        constexpr int kPer = kPositions / 32;
        const int lane = thread() % 32;
        const int32_t query = thread() / 32 * 4;
        float x[kPer][4];
        float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int p = 0; p < kPer; ++p) {
            const float4 in = *reinterpret_cast<const float4*>(&s_.weights[p * 32 + lane][query]);
            x[p][0] = in.x;
            x[p][1] = in.y;
            x[p][2] = in.z;
            x[p][3] = in.w;
#pragma unroll
            for (int i = 0; i < 4; ++i) most[i] = fmaxf(most[i], x[p][i]);
        }
        float total[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int stride = 16; stride > 0; stride /= 2) {
                most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], stride));
            }
#pragma unroll
            for (int p = 0; p < kPer; ++p) {
                x[p][i] = x[p][i] == -INFINITY ? 0.0f : expf(x[p][i] - most[i]);
                total[i] += x[p][i];
            }
            total[i] = warp_sum(total[i]);
        }
#pragma unroll
        for (int p = 0; p < kPer; ++p) {
            *reinterpret_cast<float4*>(&s_.weights[p * 32 + lane][query]) =
                make_float4(x[p][0], x[p][1], x[p][2], x[p][3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int32_t q = first_query_ + query + i;
            if (lane != i || q >= queries()) continue;
            args_.totals[piece_at(args_, sequence_, head_of(q), row_of(q), piece)] = {most[i],
                                                                                      total[i]};
        }
    }

    // Sums of values: 8 queries and 4 channels a thread, which takes every shares-th position.
    template <bool kAligned>
    __device__ void weigh(int32_t piece) {
        constexpr int kBatch = 8;           // values under way together
        const int32_t wide = (d_ + 3) / 4;  // threads for the channels
        const int32_t shares = kAttendThreads / (4 * wide);
        const int32_t channel = thread() % wide * 4;
        const int32_t query = thread() / wide % 4 * 8;
        const int32_t share = thread() / (4 * wide);
        float sum[8][4] = {};
#pragma unroll 1
        for (int32_t first = share; first < kPositions && share < shares;
             first += kBatch * shares) {
            float4 v[kBatch];
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
                const int32_t p = first + b * shares;
                const float* from = p < kPositions ? s_.value[p] : nullptr;
                v[b] =
                    load_channels<kAligned>(from == nullptr ? from : from + channel, d_ - channel);
            }
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
                const int32_t p = min(first + b * shares, kPositions - 1);
                const float4 low = *reinterpret_cast<const float4*>(&s_.weights[p][query]);
                const float4 high = *reinterpret_cast<const float4*>(&s_.weights[p][query + 4]);
                const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    sum[i][0] += w[i] * v[b].x;
                    sum[i][1] += w[i] * v[b].y;
                    sum[i][2] += w[i] * v[b].z;
                    sum[i][3] += w[i] * v[b].w;
                }
            }
        }
        keep_sums(piece, sum, share, shares);
    }

    // The sums of the shares of thread share 0, which adds them.
    __device__ void keep_sums(int32_t piece, float (&sum)[8][4], int32_t share, int32_t shares) {
        const int32_t wide = (d_ + 3) / 4;
        const int32_t channel = thread() % wide * 4;
        const int32_t query = thread() / wide % 4 * 8;
        // The keys are done with.
        float* kept = &s_.keys[0][0] + (query * wide * 4 + channel);
        if (share > 0 && share < shares) {
            float* to = kept + (share - 1) * kQueries * wide * 4;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                *reinterpret_cast<float4*>(to + i * wide * 4) =
                    make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
            }
        }
        __syncthreads();
        if (share == 0) add_shares(sum, kept, shares, wide, piece, query, channel);
    }

    // The sums of all shares in order, to memory.
    __device__ void add_shares(float (&sum)[8][4], const float* kept, int32_t shares, int32_t wide,
                               int32_t piece, int32_t query, int32_t channel) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            for (int32_t share = 1; share < shares; ++share) {
                const float4 more = *reinterpret_cast<const float4*>(
                    kept + ((share - 1) * kQueries + i) * wide * 4);
                sum[i][0] += more.x;
                sum[i][1] += more.y;
                sum[i][2] += more.z;
                sum[i][3] += more.w;
            }
            const int32_t q = first_query_ + query + i;
            if (q >= queries()) continue;
            float* to = args_.sums + piece_at(args_, sequence_, head_of(q), row_of(q), piece) * d_ +
                        channel;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (channel + c < d_) to[c] = sum[i][c];
            }
        }
    }

    const Attention& args_;
    Shared& s_;
    int32_t d_;
    int32_t group_;  // heads of a key head
    int32_t sequence_;
    int32_t kv_head_;
    int32_t first_query_;
    int64_t slot_;
    int64_t position_;
    int64_t start_ = 0;
};

__global__ void __launch_bounds__(kAttendThreads)
    piece_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ __align__(16) unsigned char shared[];
    PieceKernel(args, *reinterpret_cast<PieceKernel::Shared*>(shared)).run();
}

}  // namespace quadrille::cuda
