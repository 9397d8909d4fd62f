// SPDX-License-Identifier: Apache-2.0
// The inner part of absorbed MLA: 32 heads of a row attend to latents on tensor cores. Every number
// enters times a power of two as the sum of two fp16 terms, 22 to 24 bits of it, and only the
// product of the two small terms is left out: as good as fp32.
#pragma once

#include "kernels/cuda/mla/mla_tile.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quadrille::cuda::mla {

// kHeads heads of one row: all its tiles (kWhole), or every gridDim.x-th, each a part of its own.
// kAhead: there is shared memory for the latents of the next tile.
template <bool kWhole, bool kAhead>
class Attend {
    static constexpr int kWarps = kAttendThreads / 32;
    static constexpr int kGroups = kHeads / 16;          // of heads, the rows of an mma
    static constexpr int kSlices = kWarps / kGroups;     // of the channels, for scores
    static constexpr int kSlice = kMaxLatent / kSlices;  // channels
    static constexpr int kShare = kMaxLatent / kWarps;   // channels of a warp, for sums
    static constexpr int kMine = kHeads / kWarps;        // heads of a warp, for the softmax
    static constexpr int kOwn = kTile / kWarps;          // positions a warp brings
    static constexpr int kPieces = kMaxLatent / 128;     // of 16 bytes a lane brings of each
    static constexpr int kPitch = kMaxLatent + 8;        // ldmatrix: rows in different banks
    static constexpr int kTilePitch = kTile + 8;
    static_assert(kMine == 2 && kGroups == 2);

  public:
    struct Shared {
        __half high[kTile][kPitch];  // latents over `unit`
        __half low[kTile][kPitch];
        float raw[kAhead ? kTile : 1][kMaxLatent];  // latents of the next tile as they come
        float scores[kSlices / 2][kHeads][kTilePitch];
        __half weight_high[kHeads][kTilePitch];
        __half weight_low[kHeads][kTilePitch];
        float unit[kTile];  // 0: no such position
        float query_most[kSlices][kHeads];
        float2 fold[kHeads];  // what of the sums so far is kept, what of the tile is taken
        float total[kHeads];
        float sum_unit;
    };

    __device__ Attend(const Attention& args, Shared& shared)
        : args_(args),
          s_(shared),
          set_(attended(args, args.first + blockIdx.z)),
          r_(args.params.latent_dim),
          row_(blockIdx.z),
          head_(static_cast<int32_t>(blockIdx.y) * kHeads),
          used_(min(kHeads, args.params.heads - head_)),
          warp_(static_cast<int>(threadIdx.x) / 32),
          lane_(static_cast<int>(threadIdx.x) % 32),
          busy_(warp_ / kSlices * 16 < used_),
          aligned_(reinterpret_cast<uintptr_t>(set_.latents) % 16 == 0) {}

    __device__ void run() {
        const int32_t tiles = (set_.count + kTile - 1) / kTile;
        auto tile = static_cast<int32_t>(blockIdx.x);
        const auto step = static_cast<int32_t>(gridDim.x);
        if (!kWhole && tile >= tiles) return;
        look_up(tile);
        fetch(tile);
        look_up(tile + step);
        load_queries();
        for (; tile < tiles; tile += step) {
            __syncthreads();  // the tile before has been summed
            convert(tile);
            __syncthreads();
            fetch(tile + step);
            look_up(tile + 2 * step);
            score();
            weigh(tile);
            __syncthreads();
            if (used_ > 16) {
                add_up<kGroups>(tile);
            } else {
                add_up<1>(tile);
            }
        }
        if (kWhole) finish();
    }

  private:
    __device__ int64_t cell(int h) const { return row_ * args_.params.heads + head_ + h; }

    // Finds the latents of this warp's entries of a tile.
    __device__ void look_up(int32_t tile) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int32_t p = tile * kTile + warp_ * kOwn + i;
            at_[i] = p < set_.listed ? set_.list[p] : p;
        }
    }
    __device__ int channel(int j) const {
        return 4 * (lane_ + 32 * j);
    }
    // A lane reads again only what it has brought itself.
    __device__ float4* piece(int i, int j) {
        return reinterpret_cast<float4*>(&s_.raw[warp_ * kOwn + i][channel(j)]);
    }
    __device__ void fetch(int32_t tile) {
        const auto here = [&](int i) { return tile * kTile + warp_ * kOwn + i < set_.count; };
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            from_[i] = set_.latents + int64_t{here(i) ? at_[i] : 0} * r_ + channel(0);
        }
        if constexpr (kAhead) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
#pragma unroll
                for (int j = 0; j < kPieces; ++j) {
                    if (!here(i) || channel(j) >= r_) continue;
                    if (aligned_) {
                        copy_async_16(piece(i, j), from_[i] + j * 128);
                    } else {
                        *piece(i, j) = plain(i, j);
                    }
                }
            }
            copy_async_commit();
        }
    }

    __device__ float4 plain(int i, int j) const {
        const float* at = from_[i] + j * 128;
        if (aligned_) return *reinterpret_cast<const float4*>(at);
        return {at[0], at[1], at[2], at[3]};
    }
    __device__ float4 taken(int i, int j) {
        if (channel(j) >= r_) return {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (kAhead) return *piece(i, j);
        return plain(i, j);
    }

    // The fragments of 16 heads and one slice of the channels, over a power of two of each head.
    __device__ void load_queries() {
        const int group = warp_ / kSlices * 16;
        const int slice = warp_ % kSlices * kSlice;
        float q[kSlice / 16][8];
        float most[2] = {};
#pragma unroll
        for (int i = 0; i < kSlice / 16 * 8; ++i) {
            const int h = group + lane_ / 4 + i / 2 % 2 * 8;
            const int c = slice + i / 8 * 16 + i / 4 % 2 * 8 + lane_ % 4 * 2 + i % 2;
            const float x = h < used_ && c < r_ ? args_.queries[cell(h) * r_ + c] : 0.0f;
            q[i / 8][i % 8] = x;
            most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(x));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
            if (lane_ % 4 == 0) s_.query_most[warp_ % kSlices][group + lane_ / 4 + i * 8] = most[i];
        }
        __syncthreads();
        const float up[2] = {lift(query_most(group + lane_ / 4)),
                             lift(query_most(group + lane_ / 4 + 8))};
#pragma unroll
        for (int i = 0; i < kSlice / 16 * 4; ++i) {
            const float* pair = &q[i / 4][i % 4 * 2];
            split_f16(pair[0] * up[i % 2], pair[1] * up[i % 2], query_[0][i / 4][i % 4],
                      query_[1][i / 4][i % 4]);
        }
        const float scale = 1.0f / sqrtf(static_cast<float>(args_.params.key_dim));
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            query_unit_[i] = unlift(query_most(warp_ * kMine + i)) * scale;
        }
    }
    __device__ float query_most(int h) const {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < kSlices; ++i) most = fmaxf(most, s_.query_most[i][h]);
        return most;
    }

    // Latents as two terms of fp16 over a power of two of each position.
    __device__ void convert(int32_t tile) {
        if constexpr (kAhead) copy_async_wait<0>();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int p = warp_ * kOwn + i;
            const bool exists = tile * kTile + p < set_.count;
            float4 x[kPieces];
            float most = 0.0f;
#pragma unroll
            for (int j = 0; j < kPieces; ++j) {
                x[j] = exists ? taken(i, j) : float4{0.0f, 0.0f, 0.0f, 0.0f};
                most = fmaxf(most, fmaxf(fmaxf(fabsf(x[j].x), fabsf(x[j].y)),
                                         fmaxf(fabsf(x[j].z), fabsf(x[j].w))));
            }
            most = warp_largest(most);
            const float up = lift(most);
#pragma unroll
            for (int j = 0; j < kPieces; ++j) {
                uint2 high, low;
                split_f16(x[j].x * up, x[j].y * up, high.x, low.x);
                split_f16(x[j].z * up, x[j].w * up, high.y, low.y);
                *reinterpret_cast<uint2*>(&s_.high[p][channel(j)]) = high;
                *reinterpret_cast<uint2*>(&s_.low[p][channel(j)]) = low;
            }
            if (lane_ == 0) s_.unit[p] = exists ? unlift(most) : 0.0f;
        }
    }

    // scores[i] = queries . latents over slices 2 i and 2 i + 1 of the channels.
    __device__ void score() {
        float sum[kTile / 8][4] = {};
        const int row = lane_ / 16 * 8 + lane_ % 8;
        const int column = warp_ % kSlices * kSlice + lane_ / 8 % 2 * 8;
        if (busy_) {
#pragma unroll
            for (int k = 0; k < kSlice / 16; ++k) {
#pragma unroll
                for (int n = 0; n < kTile / 16; ++n) {
                    uint32_t high[4], low[4];
                    load_matrices(high, &s_.high[n * 16 + row][column + k * 16]);
                    load_matrices(low, &s_.low[n * 16 + row][column + k * 16]);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_split(sum[n * 2 + i], query_[0][k], query_[1][k], high + i * 2,
                                  low + i * 2);
                    }
                }
            }
        }
        if (warp_ % 2 != 0) store_scores<false>(sum);
        __syncthreads();
        if (warp_ % 2 == 0) store_scores<true>(sum);
        __syncthreads();
    }
    template <bool kAdd>
    __device__ void store_scores(const float (&sum)[kTile / 8][4]) {
#pragma unroll
        for (int i = 0; i < kTile / 8 * 2; ++i) {
            const int h = warp_ / kSlices * 16 + lane_ / 4 + i % 2 * 8;
            auto* at = reinterpret_cast<float2*>(
                &s_.scores[warp_ % kSlices / 2][h][i / 2 * 8 + lane_ % 4 * 2]);
            float2 value = {sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]};
            if (kAdd) value = {value.x + at->x, value.y + at->y};
            *at = value;
        }
    }

    // The softmax of a tile, the heads of this warp; a lane per position.
    __device__ void weigh(int32_t tile) {
        const int head = warp_ * kMine;
        if (head >= used_) return;
        const float unit = s_.unit[lane_];
        const float largest_unit = warp_largest(unit);
        // A weight times the unit of its position, over the largest of the units.
        const float up = unit * (1.0f / largest_unit) * 8192.0f;
        if (threadIdx.x == 0) s_.sum_unit = largest_unit / 8192.0f;
        float x[kMine] = {};
        float most[kMine];
        float total[kMine];
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
#pragma unroll
            for (int k = 0; k < kSlices / 2; ++k) x[i] += s_.scores[k][head + i][lane_];
            x[i] = unit == 0.0f ? -INFINITY : __fmul_rn(x[i], query_unit_[i] * unit);
            most[i] = x[i];
        }
#pragma unroll
        for (int stride = 16; stride > 0; stride /= 2) {
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], stride));
            }
        }
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            const float weight = expf(x[i] - most[i]);
            total[i] = unit == 0.0f ? 0.0f : weight;
            const float lifted = __fmul_rn(total[i], up);
            const __half high = __float2half_rn(lifted);
            s_.weight_high[head + i][lane_] = high;
            s_.weight_low[head + i][lane_] = __float2half_rn(lifted - __half2float(high));
        }
#pragma unroll
        for (int i = 0; i < kMine; ++i) total[i] = warp_sum(total[i]);
#pragma unroll
        for (int i = 0; i < kMine; ++i) settle(tile, i, most[i], total[i]);
    }
    // What a tile's softmax of head i of this warp does to the row's.
    __device__ void settle(int32_t tile, int i, float most, float total) {
        const int h = warp_ * kMine + i;
        if (kWhole) {
            const Fold by = fold_scale(most_[i], most);
            most_[i] = by.after;
            total_[i] = fold(total_[i], by.keep, total, by.take);
            if (lane_ == 0) s_.fold[h] = {by.keep, by.take};
        } else if (lane_ == 0 && h < used_) {
            *reinterpret_cast<float2*>(args_.part_stats + (cell(h) * args_.tiles + tile) * 2) = {
                most, total};
        }
    }

    // Weights times latents, kShare channels of a warp.
    template <int kUsedGroups>
    __device__ void add_up(int32_t tile) {
        // The part is that of head lane / 4.
        float* part = kWhole ? nullptr : args_.parts + (cell(lane_ / 4) * args_.tiles + tile) * r_;
        const int row = lane_ / 8 % 2 * 8 + lane_ % 8;
        const int column = lane_ / 16 * 8;
#pragma unroll
        for (int n = 0; n < kShare / 16; ++n) {
            float sum[kUsedGroups][2][4] = {};
#pragma unroll
            for (int k = 0; k < kTile / 16; ++k) {
                uint32_t high[4], low[4];
                const int c = warp_ * kShare + n * 16 + column;
                load_transposed(high, &s_.high[k * 16 + row][c]);
                load_transposed(low, &s_.low[k * 16 + row][c]);
#pragma unroll
                for (int g = 0; g < kUsedGroups; ++g) {
                    uint32_t a_high[4], a_low[4];
                    load_matrices(a_high, &s_.weight_high[g * 16 + row][k * 16 + column]);
                    load_matrices(a_low, &s_.weight_low[g * 16 + row][k * 16 + column]);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_split(sum[g][i], a_high, a_low, high + i * 2, low + i * 2);
                    }
                }
            }
#pragma unroll
            for (int g = 0; g < kUsedGroups; ++g) take_in(part, g, n, sum[g]);
            __syncwarp();  // the next loads stay behind: registers are few
        }
    }
    __device__ void take_in(float* part, int g, int n, const float (&sum)[2][4]) {
        const float unit = s_.sum_unit;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int more = g * 16 + half * 8;
            const int h = lane_ / 4 + more;
            if (!kWhole && h >= used_) continue;
            const float2 by = kWhole ? s_.fold[h] : float2{};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float x = __fmul_rn(sum[i][half * 2], unit);
                const float y = __fmul_rn(sum[i][half * 2 + 1], unit);
                if (kWhole) {
                    float* to = &sum_[g][n * 2 + i][half * 2];
                    to[0] = fold(to[0], by.x, x, by.y);
                    to[1] = fold(to[1], by.x, y, by.y);
                } else {
                    store(part + more * args_.tiles * r_, n * 2 + i, x, y);
                }
            }
        }
    }
    // Two channels of those of n-tile n of this warp.
    __device__ void store(float* to, int n, float x, float y) {
        const int c = warp_ * kShare + n * 8 + lane_ % 4 * 2;
        if (c < r_) *reinterpret_cast<float2*>(to + c) = {x, y};
    }
    __device__ void finish() {
        if (lane_ < kMine) s_.total[warp_ * kMine + lane_] = lane_ == 0 ? total_[0] : total_[1];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kGroups * 2; ++i) {
            const int h = i / 2 * 16 + lane_ / 4 + i % 2 * 8;
            if (h >= used_) continue;
            const float total = s_.total[h];
#pragma unroll
            for (int n = 0; n < kShare / 8; ++n) {
                const float* sum = &sum_[i / 2][n][i % 2 * 2];
                const bool any = set_.count > 0;
                store(args_.sums + cell(h) * r_, n, any ? sum[0] / total : 0.0f,
                      any ? sum[1] / total : 0.0f);
            }
        }
    }

    const Attention& args_;
    Shared& s_;
    const Attended set_;
    const int32_t r_;
    const int64_t row_;
    const int32_t head_;
    const int32_t used_;  // heads that exist
    const int warp_;
    const int lane_;
    const bool busy_;     // its slice of the scores is of heads that exist
    const bool aligned_;  // latents, to 16 bytes
    int32_t at_[kOwn];
    const float* from_[kOwn];            // of the tile that is fetched
    uint32_t query_[2][kSlice / 16][4];  // high, low
    float query_unit_[kMine];            // times the scale of the scores
    float most_[kMine] = {-INFINITY, -INFINITY};
    float total_[kMine] = {};
    float sum_[kGroups][kShare / 8][4] = {};
};

}  // namespace quadrille::cuda::mla
