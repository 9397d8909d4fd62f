// SPDX-License-Identifier: Apache-2.0
// Draws among the ids that top-k, top-p and min-p keep of a row, a thread block a row, nothing
// sorted. top-k: the place of its last id, by counts of each byte of (logit, id), the highest
// first. top-p and min-p: the draw among all is the draw among those kept if it is one of them; if
// not, it and all behind it are cut, and the next draw is among those before it (as OpenDraws of
// runtime/sampling does over ranks). Sums are exact, so that the token is the CPU's.
#include "kernels/contract.h"
#include "kernels/cuda/candidate.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/sample_row.h"

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kBins = 256;
constexpr int kFloatBytes = 4;
constexpr int kIdBytes = 3;  // of 2^24 ids

using Draw = CandidateOf<double>;

// One row of logits and what of it takes part.
struct Line {
    const float* x;
    SampleRow row;
    int32_t first_id;
    int32_t valid;

    __device__ float at(int32_t column) const {
        return logit_of(row, x[column], first_id + column);
    }
};

struct Shared {
    ExpSum sums[kThreads];
    uint32_t bins[kBins];
    Draw of_warp[kThreads / 32];
    uint32_t prefix;     // of the bytes found so far
    uint32_t remaining;  // ids to keep within it
    bool whole;          // all of it stays
};

// The order of draw.before(): larger logits have larger keys; of the same the lower id.
__device__ uint32_t id_key(int32_t id) {
    return (1u << (8 * kIdBytes)) - 1 - static_cast<uint32_t>(id);
}

// Finds the byte at `shift` of the last key that stays: `prefix` and `remaining` go on by it.
__device__ void choose_bin(Shared& shared, int shift) {
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t left = shared.remaining;
        int bin = kBins - 1;
        while (bin > 0 && shared.bins[bin] < left) left -= shared.bins[bin--];
        shared.prefix |= static_cast<uint32_t>(bin) << shift;
        shared.whole = shared.bins[bin] <= left;
        shared.remaining = left;
    }
    __syncthreads();
}

// Counts the byte at `shift` of the keys that share the higher bytes with the prefix.
template <class Key>
__device__ void count_bins(Shared& shared, const Line& line, int shift, int top, Key key_of) {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
        shared.bins[bin] = 0;
    }
    __syncthreads();
    const uint32_t prefix = shared.prefix;
    for (auto c = static_cast<int32_t>(threadIdx.x); c < line.valid; c += kThreads) {
        uint32_t key = 0;
        if (!key_of(c, key)) continue;
        const bool same = shift + 8 >= top || key >> (shift + 8) == prefix >> (shift + 8);
        if (same) atomicAdd(&shared.bins[key >> shift & 0xffu], 1u);
    }
}

__device__ float value_of(uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Sets the end of the line behind its first top_k ids.
__device__ void cut_top_k(Shared& shared, Line& line) {
    if (threadIdx.x == 0) {
        shared.prefix = 0;
        shared.remaining = static_cast<uint32_t>(line.row.top_k);
        shared.whole = false;
    }
    const auto value_key = [&](int32_t c, uint32_t& key) {
        const float value = line.at(c);
        key = order_key(value);
        return value > -INFINITY;
    };
    int shift = 8 * kFloatBytes;
    do {
        shift -= 8;
        count_bins(shared, line, shift, 8 * kFloatBytes, value_key);
        choose_bin(shared, shift);
    } while (shift > 0 && !shared.whole);
    const uint32_t lowest = shared.prefix;  // of the keys that stay, where all of its bin do
    if (shared.whole) {
        // Behind the lowest key of the bin; no logit is -inf here.
        line.row.end = value_of(lowest > 0 ? lowest : 1);
        line.row.end_id = INT32_MAX;
        if (isnan(line.row.end)) line.row.end = -INFINITY;
        __syncthreads();
        return;
    }
    const float value = value_of(lowest);
    __syncthreads();  // all have read the prefix
    if (threadIdx.x == 0) shared.prefix = 0;
    const auto key_of_id = [&](int32_t c, uint32_t& key) {
        key = id_key(line.first_id + c);
        return line.at(c) == value;
    };
    shift = 8 * kIdBytes;
    do {
        shift -= 8;
        count_bins(shared, line, shift, 8 * kIdBytes, key_of_id);
        choose_bin(shared, shift);
    } while (shift > 0 && !shared.whole);
    line.row.end = value;
    line.row.end_id = static_cast<int32_t>(id_key(static_cast<int32_t>(shared.prefix))) + 1;
    __syncthreads();
}

// The sum of all weights before the line's end, the same on every thread.
__device__ ExpSum sum_of(Shared& shared, const Line& line) {
    ExpSum sum;
    for (auto c = static_cast<int32_t>(threadIdx.x); c < line.valid; c += kThreads) {
        sum.add(weight_of(static_cast<double>(line.at(c)), line.row.inverse_temperature));
    }
    shared.sums[threadIdx.x] = sum;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared.sums[threadIdx.x].add(shared.sums[threadIdx.x + half]);
    }
    __syncthreads();
    sum = shared.sums[0];
    __syncthreads();
    return sum;
}

__device__ Draw best_of(Shared& shared, Draw mine) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    mine = warp_best(lane < kThreads / 32 ? shared.of_warp[lane] : Draw{0, kNone});
    __syncthreads();
    return mine;
}

// The draw among all before the line's end; greedy: the largest logit.
__device__ Draw draw_of(Shared& shared, const Line& line, bool greedy) {
    Draw best = {0.0, kNone};
    const SampleRow& row = line.row;
    for (int32_t c = 2 * static_cast<int32_t>(threadIdx.x); c < line.valid; c += 2 * kThreads) {
        NoiseBits bits{};
        if (!greedy) {
            bits = noise_bits(row.seed, row.position, row.stream,
                              static_cast<uint32_t>(line.first_id + c) >> 1);
        }
        for (int32_t j = c; j < min(c + 2, line.valid); ++j) {
            const float value = line.at(j);
            if (greedy ? isnan(value) : !(value > -INFINITY)) continue;
            double score = static_cast<double>(value);
            if (!greedy) {
                const uint64_t noise = j == c ? bits.even : bits.odd;
                const double base = scaled(score, row.inverse_temperature);
                if (best.column != kNone && ieee::add(base, gumbel_bound(noise)) < best.value) {
                    continue;
                }
                score = ieee::add(base, gumbel_of(noise));
            }
            const Draw other = {score, j};
            if (other.beats(best)) best = other;
        }
    }
    return best_of(shared, best);
}

__global__ void __launch_bounds__(kThreads)
    sample_filtered_kernel(int32_t* id, View<const float> logits, const SampleRow* rows,
                           int32_t first_id, int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ Shared shared;
    const int64_t i = blockIdx.x;
    Line line = {nullptr, rows[i], first_id, valid};
    line.x = logits.data + line.row.row * logits.stride;
    const bool filtered = is_filtered(line.row);
    if (filtered && line.row.top_k > 0 && line.row.top_k < valid) cut_top_k(shared, line);
    float largest = 0.0f;
    if (filtered && line.row.min_p > 0.0) {
        const Draw first = draw_of(shared, line, true);
        if (first.column != kNone) largest = line.at(first.column);
    }
    ExpSum total;
    if (filtered && line.row.top_p < 1.0) total = sum_of(shared, line);
    Draw drawn = draw_of(shared, line, line.row.inverse_temperature == 0.0);
    while (filtered && drawn.column != kNone) {
        const float value = line.at(drawn.column);
        line.row.end = value;
        line.row.end_id = first_id + drawn.column;
        bool stays = true;
        if (line.row.top_p < 1.0) {
            const ExpSum sum = sum_of(shared, line);
            stays = sum.empty() || !reaches(sum, line.row.top_p, total);
        }
        if (stays && line.row.min_p > 0.0) {
            stays = value == largest ||
                    weighs(value, line.row.min_p, largest, line.row.inverse_temperature);
        }
        if (stays) break;
        drawn = draw_of(shared, line, false);
    }
    if (threadIdx.x == 0) id[i] = drawn.column == kNone ? -1 : first_id + drawn.column;
}

}  // namespace

void CudaBackend::sample_filtered(int32_t* id, const SampleInput& in) {
    contract::sample_filtered(id, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    if (count == 0) return;
    launch_dependent(sample_filtered_kernel, static_cast<unsigned>(count), kThreads, 0,
                     stream_.get(), id, logits, rows, first_id, valid);
}

}  // namespace quadrille::cuda
