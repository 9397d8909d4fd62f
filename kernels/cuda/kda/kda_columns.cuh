// SPDX-License-Identifier: Apache-2.0
// The recurrence of KDA over the columns of a head's state that a thread block has in registers.
//
// A warp owns columns (values) of the state with its keys over the lanes: rows follow one another
// without a barrier. Each sum over the keys has one order, whatever the number of columns of a
// thread: a chain over the keys of a lane, then a tree over the lanes.
#pragma once

#include "kernels/cuda/kda/kda_rows.cuh"

namespace quadrille::cuda {

constexpr int kKeyLanes = 8;             // lanes that share a column of the state
constexpr int kGroups = 32 / kKeyLanes;  // of columns, in neighbouring lanes

// A thread's part of the state: kColumns neighbouring columns, the keys of a lane.
template <int kDim, int kColumns>
class KdaColumns {
  public:
    static constexpr int kThreads = kDim / kColumns * kKeyLanes;  // for all columns
    static constexpr int kKeys = kDim / kKeyLanes;  // of a lane: kRun neighbours at a time
    static constexpr int kRun = kKeys < 4 ? kKeys : 4;
    struct alignas(4 * kColumns) Columns {
        float x[kColumns];
    };
    struct alignas(4 * kRun) Run {
        float x[kRun];
    };

    // The thread's first, of those of the thread block.
    static __device__ int column() {
        const int thread = static_cast<int>(threadIdx.x);
        return (thread / 32 * kGroups + thread % kGroups) * kColumns;
    }

    // After fold(): which of the columns is left to this lane, and whether to no other one.
    static constexpr int kCopies = kKeyLanes / kColumns;
    static __device__ int left() { return key_lane() / kCopies; }
    static __device__ bool writes() { return key_lane() % kCopies == 0; }

    // All loads are under way before any is waited for.
    __device__ void load(const float* from, bool fresh) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) s_of_key_[i] = {};
        if (fresh) return;
        if (aligned(from)) {
#pragma unroll
            for (int i = 0; i < kKeys; ++i) {
                s_of_key_[i] = load_wide(from + key(i) * kDim);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) s_of_key_[i].x[c] = from[key(i) * kDim + c];
        }
    }
    __device__ void store(float* to) const {
        if (aligned(to)) {
#pragma unroll
            for (int i = 0; i < kKeys; ++i) {
                store_wide(to + key(i) * kDim, s_of_key_[i]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) to[key(i) * kDim + c] = s_of_key_[i].x[c];
        }
    }

    // What a row needs first of all, so that it may be read ahead.
    struct Keys {
        Run decay[kKeys / kRun];
        Run k[kKeys / kRun];
    };
    template <class From>
    static __device__ Keys keys_of(const From& from, int row) {
        Keys keys;
#pragma unroll
        for (int r = 0; r < kKeys; r += kRun) {
            keys.decay[r / kRun] = run_of(from.decay[row], r);
            keys.k[r / kRun] = run_of(from.k[row], r);
        }
        return keys;
    }

    // S = diag(decay) S; S += k d^T with d = beta (v - S^T k); out = S^T q, taken as the product
    // with the decayed state plus (q k) d: so that its sum is off the path from row to row.
    // A row that is only replayed has no output. column: as column(), of v. to: the number left()
    // of those from `column` on in the row of the output.
    template <bool kOwn, class From>
    __device__ void step(const Keys& keys, const From& from, int row, int column, float* to) {
        float read[kColumns] = {};
        float out[kColumns] = {};
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                float& s = s_of_key_[i].x[c];
                s *= keys.decay[i / kRun].x[i % kRun];
                read[c] = fmaf(keys.k[i / kRun].x[i % kRun], s, read[c]);
            }
        }
        const Columns v = *reinterpret_cast<const Columns*>(&from.v[row][column]);
        const float beta = from.beta[row];
#pragma unroll
        for (int r = 0; kOwn && r < kKeys; r += kRun) {
            const Run q = run_of(from.q[row], r);
#pragma unroll
            for (int i = 0; i < kRun; ++i) {
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    out[c] = fmaf(q.x[i], s_of_key_[r + i].x[c], out[c]);
                }
            }
        }
        float delta[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) delta[c] = beta * (v.x[c] - lane_sum(read[c]));
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                s_of_key_[i].x[c] = fmaf(keys.k[i / kRun].x[i % kRun], delta[c], s_of_key_[i].x[c]);
            }
        }
        if (!kOwn) return;
        fold(out, delta);
        const float result = fmaf(from.q_dot_k[row], delta[0], out[0]);
        if (writes()) *to = result;
    }

  private:
    // One instruction each, which the copy of a struct need not be. Nothing is read twice.
    static __device__ Columns load_wide(const float* from) {
        if constexpr (kColumns == 4) {
            const float4 in = __ldcg(reinterpret_cast<const float4*>(from));
            return {{in.x, in.y, in.z, in.w}};
        } else {
            static_assert(kColumns == 2);
            const float2 in = __ldcg(reinterpret_cast<const float2*>(from));
            return {{in.x, in.y}};
        }
    }
    static __device__ void store_wide(float* to, const Columns& from) {
        if constexpr (kColumns == 4) {
            __stcg(reinterpret_cast<float4*>(to),
                   make_float4(from.x[0], from.x[1], from.x[2], from.x[3]));
        } else {
            static_assert(kColumns == 2);
            __stcg(reinterpret_cast<float2*>(to), make_float2(from.x[0], from.x[1]));
        }
    }
    static __device__ bool aligned(const float* at) {
        return reinterpret_cast<uintptr_t>(at) % sizeof(Columns) == 0;
    }
    // Place of this lane among those that share its columns. They are kGroups apart: neighbouring
    // lanes read the same keys, and a wide load of shared memory takes the fewest turns.
    static __device__ int key_lane() {
        return static_cast<int>(threadIdx.x) % 32 / kGroups;
    }
    // Key i of this lane: the lanes read kRun neighbours each, side by side.
    static __device__ int key(int i) {
        return i / kRun * kRun * kKeyLanes + key_lane() * kRun + i % kRun;
    }
    __device__ static Run run_of(const float* row, int i) {
        return *reinterpret_cast<const Run*>(row + key(i));
    }
    static __device__ float shuffle(float x, int lanes) {
        return __shfl_xor_sync(0xffffffffu, x, lanes * kGroups);
    }
    static __device__ float lane_sum(float x) {
#pragma unroll
        for (int lanes = kKeyLanes / 2; lanes > 0; lanes /= 2) x += shuffle(x, lanes);
        return x;
    }
    // lane_sum() of each out, for one lane each and with fewer shuffles: a lane hands on the half
    // of its columns that it gives up. The sum and delta of the one left become the first.
    static __device__ void fold(float (&out)[kColumns], float (&delta)[kColumns]) {
#pragma unroll
        for (int lanes = kKeyLanes / 2, left = kColumns / 2; lanes > 0; lanes /= 2, left /= 2) {
            if (left == 0) {
                out[0] += shuffle(out[0], lanes);
                continue;
            }
            const bool upper = key_lane() & lanes;
#pragma unroll
            for (int c = 0; c < left; ++c) {
                const float kept = upper ? out[c + left] : out[c];
                out[c] = kept + shuffle(upper ? out[c] : out[c + left], lanes);
                delta[c] = upper ? delta[c + left] : delta[c];
            }
        }
    }

    Columns s_of_key_[kKeys];
};

template <int kDim>
__device__ float* state_of(const KdaArgs& args, const KdaSequence& at) {
    return args.state.state.data + int64_t{at.slot} * args.state.state.stride +
           int64_t{blockIdx.x} * kDim * kDim;
}

}  // namespace quadrille::cuda
