// SPDX-License-Identifier: Apache-2.0
// The products of MLA with a bf16 kv_b on tensor cores. Weights are exact; activations enter as
// three bf16 terms that add up to all 24 bits of them. A warp has the weights of 64 outputs and one
// span of 64 inputs in registers, loaded before the kernel ahead has ended, and all rows pass by.
// The warps with all spans of 64 outputs are a team; the teams of a thread block read the same
// activations and otherwise know nothing of each other.
//
// One arithmetic per row: a span is one chain of MMAs from zero, the smallest terms first, inputs
// ascending; the spans are added in order. How many rows share a thread block changes nothing.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/mla/mla_project.cuh"
#include "kernels/cuda/native/native_tile.cuh"

#include <algorithm>
#include <type_traits>

namespace quadrille::cuda::mla {

namespace {

constexpr int kSpan = 64;      // inputs of a warp
constexpr int kOutputs = 64;   // of a team
constexpr int kMostSpans = 8;  // of a team, and warps of a thread block
constexpr int kTerms = 3;
constexpr int kPairs = kOutputs / 2;

struct Product {
    const uint16_t* weights;  // bf16, of head 0
    int64_t head_weights;     // from a head to the next
    int64_t pitch;            // from a row of kv_b to the next
    int32_t inputs, outputs;  // of a head
    const float* in;          // (rows, heads inputs)
    int64_t in_stride;
    float* out;  // (rows, heads outputs)
    int64_t out_stride;
    int32_t rows;
    int32_t spans;         // of all inputs
    int32_t buffers;       // 2, or 1 where a thread block has one tile
    bool weights_aligned;  // eight, to 16 bytes
    bool out_aligned;      // two, to 8 bytes
};

// kAcross: the rows of kv_b are inputs, else outputs. kWhole: all spans are, and begin at
// multiples of 16 bytes in the activations. kGroups: of eight rows, a tile; 1: there are no more
// than eight rows.
//
// Lanes (c = lane / 4, q = lane % 4) hold outputs 8c .. 8c+7 and inputs 8q .. 8q+7 of each half of
// the span: 16 neighbouring bytes, whichever way the weights lie. Half h, output 8c + i: row
// c + i % 2 * 8 of the MMA with tile i / 2; inputs 8q + 4j .. 8q + 4j + 3: its step 2h + j.
template <bool kAcross, bool kWhole, int kGroups>
class Project {
    static constexpr int kRows = kGroups * 8;
    static constexpr int kTile = kRows / 2 * kPairs;  // pieces
    static constexpr int kTiles = kOutputs / 16;
    static constexpr int kSteps = kSpan / 16;

    using Inputs = float[2][8];
    using Terms = uint32_t[kTerms][2][4];

  public:
    // shared: pieces (teams, 1 or 2 tiles, spans, kTile).
    __device__ Project(const Product& args, float4* shared)
        : args_(args),
          spans_(args.spans),
          team_(static_cast<int>(threadIdx.x) / 32 / spans_),
          span_(static_cast<int>(threadIdx.x) / 32 % spans_),
          c_(static_cast<int>(threadIdx.x) % 32 / 4),
          q_(static_cast<int>(threadIdx.x) % 4),
          head_(static_cast<int32_t>(blockIdx.y)),
          output_((static_cast<int32_t>(blockIdx.x * blockDim.x) / 32 / spans_ + team_) * kOutputs),
          input_(span_ * kSpan + 8 * q_) {
        const int32_t tiles = (args.rows + kRows - 1) / kRows;
        const auto part = static_cast<int32_t>(blockIdx.z);
        const auto parts = static_cast<int32_t>(gridDim.z);
        first_ = part * tiles / parts * kRows;
        last_ = min((part + 1) * tiles / parts * kRows, args.rows);
        shared_ = shared + team_ * args.buffers * spans_ * kTile;
    }

    __device__ void run() {
        uint32_t raw[2][8][4];
        load(raw);
        wait_for_earlier_kernels();
        let_next_kernel_start();
        Inputs x[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) fetch(x[g], first_ + 8 * g);
        Terms terms[2];
#pragma unroll
        for (int i = 0; i < 8; ++i) split(terms[0], x[0], i);
        fetch(x[0], first_ + kRows);
        arrange(raw);
        int buffer = 0;
        int32_t row = first_;
        do {
            // One barrier a tile: who writes to a buffer has passed that of the tile in between,
            // which all reach behind their reading.
            float4* parts = shared_ + buffer * spans_ * kTile;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                Inputs& next = x[(g + 1) % kGroups];
                multiply(parts + span_ * kTile + 4 * g * kPairs, terms[g % 2], terms[(g + 1) % 2],
                         next);
                fetch(next, row + kRows + 8 * (g + 1));
            }
            asm volatile("bar.sync %0, %1;" ::"r"(team_ + 1), "r"(spans_ * 32) : "memory");
            finish(parts, row);
            buffer ^= 1;
            row += kRows;
        } while (kGroups > 1 && row < last_);
    }

  private:
    // Eight neighbouring weights of eight neighbouring rows of kv_b for each half of the span; zero
    // what does not exist. Plain loads: they may not move behind the wait.
    __device__ void load(uint32_t (&raw)[2][8][4]) const {
        const uint16_t* matrix = args_.weights + head_ * args_.head_weights;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t input = input_ + 32 * h;
            const int32_t output = output_ + 8 * c_;
            const int32_t row = kAcross ? input : output;
            const int32_t column = kAcross ? output : input;
            const int32_t rows = (kAcross ? args_.inputs : args_.outputs) - row;
            const int32_t columns = (kAcross ? args_.outputs : args_.inputs) - column;
            const uint16_t* from = matrix + row * args_.pitch + column;
            if (args_.weights_aligned && rows >= 8 && columns >= 8) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const uint4 all = *reinterpret_cast<const uint4*>(from + i * args_.pitch);
                    raw[h][i][0] = all.x, raw[h][i][1] = all.y;
                    raw[h][i][2] = all.z, raw[h][i][3] = all.w;
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const uint16_t* pair = from + i * args_.pitch + 2 * p;
                    const uint32_t x = i < rows && 2 * p < columns ? pair[0] : 0;
                    const uint32_t y = i < rows && 2 * p + 1 < columns ? pair[1] : 0;
                    raw[h][i][p] = x | y << 16;
                }
            }
        }
    }

    // weights_ = `raw` as fragments.
    __device__ void arrange(const uint32_t (&raw)[2][8][4]) {
#pragma unroll
        for (int i = 0; i < kTiles * kSteps * 2; ++i) {
            const int t = i / (kSteps * 2);
            const int h = i / 4 % 2;
            const int pair = i % 4;  // of the eight inputs
            uint32_t* to = &weights_[t][2 * h + pair / 2][pair % 2 * 2];
            if constexpr (kAcross) {
                const uint32_t x = raw[h][2 * pair][t];
                const uint32_t y = raw[h][2 * pair + 1][t];
                to[0] = __byte_perm(x, y, 0x5410);
                to[1] = __byte_perm(x, y, 0x7632);
            } else {
                to[0] = raw[h][2 * t][pair];
                to[1] = raw[h][2 * t + 1][pair];
            }
        }
    }

    // This lane's inputs of one of the eight rows from `first` on; zero what does not exist. A row
    // beyond the last is the last: its sums go nowhere.
    __device__ void fetch(Inputs& x, int32_t first) const {
        const int64_t row = min(first + c_, last_ - 1);
        const float* from =
            args_.in + row * args_.in_stride + int64_t{head_} * args_.inputs + input_;
#pragma unroll
        for (int i = 0; i < 16; i += kWhole ? 4 : 1) {
            const int at = i / 8 * 32 + i % 8;
            float* to = &x[i / 8][i % 8];
            if constexpr (kWhole) {
                const float4 all = *reinterpret_cast<const float4*>(from + at);
                to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
            } else {
                to[0] = input_ + at < args_.inputs ? from[at] : 0.0f;
            }
        }
    }

    // Pair i of the inputs. Three times the upper half of what is left: nothing remains.
    __device__ static void split(Terms& terms, const Inputs& x, int i) {
        float left[2] = {x[i / 4][i % 4 * 2], x[i / 4][i % 4 * 2 + 1]};
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
            const uint32_t bits[2] = {__float_as_uint(left[0]), __float_as_uint(left[1])};
            uint32_t& term = terms[t][i / 4][i % 4];
            term = __byte_perm(bits[0], bits[1], 0x7632);
            asm volatile("" : "+r"(term));  // here, not behind the next barrier
            left[0] -= __uint_as_float(bits[0] & 0xffff0000u);
            left[1] -= __uint_as_float(bits[1] & 0xffff0000u);
        }
    }

    // A piece is two outputs of two rows. Eight lanes that write (two c, all q) or read
    // together (neighbours) touch different banks.
    __device__ static int place(int rows, int outputs) {
        return rows * kPairs + (outputs ^ rows % 4);
    }

    // to (4 pairs of rows, kPairs) = the span's products with eight rows. The MMAs leave time to
    // split the next rows.
    __device__ void multiply(float4* to, const Terms& x, Terms& next_terms,
                             const Inputs& next) const {
        float sum[kTiles][4] = {};
#pragma unroll
        for (int i = 0; i < kTerms * kSteps; ++i) {
            const int t = kTerms - 1 - i / kSteps;
            const int s = i % kSteps;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                mma_bf16(sum[tile], weights_[tile][s], x[t][s / 2][s % 2 * 2],
                         x[t][s / 2][s % 2 * 2 + 1]);
            }
            if (kGroups > 1 && i < 8) split(next_terms, next, i);
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            to[place(q_, 4 * c_ + i)] = {sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        }
    }

    // Adds the spans of a tile and stores its rows from `first` on.
    __device__ void finish(const float4* parts, int32_t first) const {
        for (int i = static_cast<int>(threadIdx.x) - team_ * spans_ * 32; i < kTile;
             i += spans_ * 32) {
            const float4* from = parts + place(i / kPairs, i % kPairs);
            float4 part[kMostSpans];
#pragma unroll
            for (int s = 0; s < kMostSpans; ++s) {
                if (s < spans_) part[s] = from[s * kTile];
            }
            float4 sum = part[0];
#pragma unroll
            for (int s = 1; s < kMostSpans; ++s) {
                if (s >= spans_) continue;
                sum = {sum.x + part[s].x, sum.y + part[s].y, sum.z + part[s].z, sum.w + part[s].w};
            }
            const int32_t row = first + i / kPairs * 2;
            const int32_t output = output_ + i % kPairs * 2;
            store(row, output, {sum.x, sum.z});
            store(row + 1, output, {sum.y, sum.w});
        }
    }
    __device__ void store(int32_t row, int32_t output, float2 sum) const {
        if (row >= last_ || output >= args_.outputs) return;
        float* to = args_.out + row * args_.out_stride + int64_t{head_} * args_.outputs + output;
        if (args_.out_aligned) {
            *reinterpret_cast<float2*>(to) = sum;
            return;
        }
        to[0] = sum.x;
        if (output + 1 < args_.outputs) to[1] = sum.y;
    }

    const Product& args_;
    float4* shared_;  // the team's
    const int spans_;
    const int team_;
    const int span_;
    const int c_, q_;
    const int32_t head_;
    const int32_t output_;  // the team's first
    const int32_t input_;   // the lane's first
    int32_t first_, last_;  // rows
    uint32_t weights_[kTiles][kSteps][4];
};

template <bool kAcross, bool kWhole, int kGroups>
__global__ void __launch_bounds__(kMostSpans * 32, 1)
    project_kernel(const __grid_constant__ Product args) {
    extern __shared__ __align__(16) float4 shared[];
    Project<kAcross, kWhole, kGroups>(args, shared).run();
}

// The parts the rows are cut into, for the shortest time: rounds of thread blocks, one on each
// multiprocessor, which begin with the time of two tiles.
int64_t parts_of(int64_t blocks, int64_t processors, int64_t tiles) {
    int64_t best = 1;
    int64_t least = INT64_MAX;
    for (int64_t parts = 1; parts <= std::min<int64_t>(tiles, kMostSpans); ++parts) {
        const int64_t time = ceil_div(blocks * parts, processors) * (ceil_div(tiles, parts) + 2);
        if (time < least) best = parts;
        least = std::min(least, time);
    }
    return best;
}

template <bool kAcross, bool kWhole, int kGroups>
void launch(Product args, int32_t heads, KernelSet& kernels, LaunchStream stream) {
    constexpr int kTileBytes = kGroups * 8 * kOutputs * static_cast<int>(sizeof(float));
    static_assert(2 * kMostSpans * kTileBytes <= 98 * 1024);  // what the smallest devices have
    const auto kernel = project_kernel<kAcross, kWhole, kGroups>;
    kernels.allow_shared(kernel, 2 * kMostSpans * kTileBytes);
    args.spans = static_cast<int32_t>(ceil_div(args.inputs, kSpan));
    const int64_t outputs = ceil_div(args.outputs, kOutputs);
    const int64_t teams = std::min<int64_t>(kMostSpans / args.spans, outputs);
    const int64_t columns = ceil_div(outputs, teams);
    const int64_t tiles = ceil_div(args.rows, kGroups * 8);
    const int64_t parts = parts_of(columns * heads, kernels.processors(), tiles);
    args.buffers = tiles > parts ? 2 : 1;
    const auto warps = static_cast<int>(teams * args.spans);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(heads),
                    static_cast<unsigned>(parts));
    launch_dependent(kernel, grid, warps * 32, warps * args.buffers * kTileBytes, stream, args);
}

bool aligned(const void* pointer, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <bool kAcross>
void project(Product args, const MlaParams& params, KernelSet& kernels, LaunchStream stream) {
    args.pitch = params.latent_dim;
    args.head_weights = int64_t{params.key_dim + params.value_dim} * args.pitch;
    args.weights_aligned = aligned(args.weights, 16) && args.pitch % 8 == 0;
    args.out_aligned = aligned(args.out, 8) && args.out_stride % 2 == 0 && args.outputs % 2 == 0;
    const bool whole = aligned(args.in, 16) && args.in_stride % 4 == 0 && args.inputs % kSpan == 0;
    const auto of_rows = [&](auto groups) {
        const auto run = whole ? launch<kAcross, true, groups()> : launch<kAcross, false, groups()>;
        run(args, params.heads, kernels, stream);
    };
    if (args.rows <= 8) return of_rows(std::integral_constant<int, 1>());
    of_rows(std::integral_constant<int, 2>());
}

bool on_tensor_cores(const Attention& args) {
    static_assert(kMaxLatent <= kMostSpans * kSpan);
    return args.kv_b.dtype == Dtype::bf16 && args.params.key_dim <= kMostSpans * kSpan;
}

}  // namespace

void absorb(const Attention& args, KernelSet& kernels, LaunchStream stream) {
    if (!on_tensor_cores(args)) return absorb_plain(args, kernels, stream);
    const MlaParams& params = args.params;
    Product product{};
    product.weights = static_cast<const uint16_t*>(args.kv_b.weights);
    product.inputs = params.key_dim;
    product.outputs = params.latent_dim;
    product.in = args.query.data + args.first * args.query.stride;
    product.in_stride = args.query.stride;
    product.out = args.queries;
    product.out_stride = int64_t{params.heads} * params.latent_dim;
    product.rows = static_cast<int32_t>(args.used);
    project<true>(product, params, kernels, stream);
}

void expand(const Attention& args, KernelSet& kernels, LaunchStream stream) {
    if (!on_tensor_cores(args)) return expand_plain(args, stream);
    const MlaParams& params = args.params;
    Product product{};
    product.weights = static_cast<const uint16_t*>(args.kv_b.weights) +
                      int64_t{params.key_dim} * params.latent_dim;
    product.inputs = params.latent_dim;
    product.outputs = params.value_dim;
    product.in = args.sums;
    product.in_stride = int64_t{params.heads} * params.latent_dim;
    product.out = args.out.data + args.first * args.out.stride;
    product.out_stride = args.out.stride;
    product.rows = static_cast<int32_t>(args.used);
    project<false>(product, params, kernels, stream);
}

}  // namespace quadrille::cuda::mla
