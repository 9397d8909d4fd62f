// SPDX-License-Identifier: Apache-2.0
// moe on the GPU, slab by slab: what bounds the scratch, and the order of the steps.
#include "kernels/cuda/moe/moe.h"

#include "kernels/contract.h"
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/exl3/exl3_rotate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/moe_pass.h"
#include "kernels/cuda/native/native_product.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace quadrille::cuda {

namespace {

// Pairs of a slab: bound the scratch, about 36 KB a pair with 4096 hidden and 2048 expert channels.
// Large tiles want a hundred rows an expert (exl3_large.cuh).
constexpr int64_t kPairs = 8192;
constexpr int64_t kPairsLarge = 32768;
constexpr int64_t kEarlyRows = 16;  // whose sum over slots begins while a kernel ends
constexpr int64_t kPairFloats = int64_t{64} << 20;  // of the down products held at once

Member over_all(std::span<const Mlp> table, int32_t member) {
    Member all;
    for (const Mlp& mlp : table) {
        const Matrix& w = member_of(mlp, member);
        const Kind kind = kind_of(w);
        if (std::find(all.kinds.begin(), all.kinds.end(), kind) == all.kinds.end()) {
            all.kinds.push_back(kind);
        }
        all.k = std::max(all.k, w.k);
        all.n = std::max(all.n, w.n);
        if (!w.is_exl3()) {
            all.fragments = all.fragments && native_fragments(w);
            continue;
        }
        all.aligned = all.aligned && reinterpret_cast<uintptr_t>(w.suh) % 8 == 0;
        all.k_padded = std::max(all.k_padded, w.k_padded);
        all.n_padded = std::max(all.n_padded, w.n_padded);
        if (w.n_padded * w.k_padded >= all.widest.n_padded * all.widest.k_padded) all.widest = w;
    }
    return all;
}

void require_experts(std::span<const Mlp> table, const MoeWeights& experts, int64_t hidden,
                     int32_t segments) {
    require(hidden < kMostChannels && experts.max_width < kMostChannels,
            "moe: experts of fewer than 2^30 inputs, outputs");
    for (const Mlp& mlp : table) {
        require(mlp.gate.n <= experts.max_width && mlp.up.n == mlp.gate.n &&
                    mlp.down.k == mlp.gate.n && mlp.gate.k == hidden && mlp.up.k == hidden &&
                    mlp.down.n == table.front().down.n && mlp.down.segments == segments &&
                    mlp.down.bias == nullptr,
                "moe: experts of one kind, no wider than max_width, down without bias");
    }
}

// Rows of a tile that the kernels of all members take; plan: of EXL3 ones.
int32_t tile_rows_for(const Exl3Plan& plan, const MoePass& pass) {
    // Native kernels take 8 or 16 rows; 64 from fragments.
    if (!pass.has_native() || plan.rows() <= kStreamRows) return plan.rows();
    const bool fragments = pass.gate.fragments && pass.up.fragments && pass.down.fragments;
    return fragments ? kNativeTileRows : kStreamRows;
}

}  // namespace

// by_segment (segments, m, n): the shared expert.
void Moe::shared_expert(float* by_segment, const MoePass& pass) {
    const Mlp& mlp = pass.experts.shared;
    const int64_t m = pass.in.rows;
    Workspace::Scope scope(workspace_);
    const View<float> gate(scope.take<float>(m * mlp.gate.n), m, mlp.gate.n);
    if (pass.shared_gate.rows > 0) {
        ops_.swiglu(gate, pass.shared_gate, pass.shared_up, pass.experts.limit);
    } else {
        const View<float> up(scope.take<float>(m * mlp.gate.n), m, mlp.gate.n);
        const std::array<Product, 2> hidden = {{{gate, pass.in, mlp.gate}, {up, pass.in, mlp.up}}};
        products_.group(hidden);
        ops_.swiglu(gate, gate, up, pass.experts.limit);
    }
    products_.product({.data = by_segment,
                       .row_stride = mlp.down.n,
                       .segment_stride = m * mlp.down.n,
                       .by_segment = true},
                      gate, mlp.down);
}

// One slab: the routed experts column chunk by column chunk, each combined at once.
void Moe::routed_experts(MoePass& pass) {
    const int64_t n = pass.out.cols;
    Combination parts{.ids = pass.ids, .weights = pass.weights};
    parts.experts = pass.experts.count;
    parts.segments = pass.segments;
    parts.shared = pass.shared;
    parts.shared_stride = n;
    parts.shared_segment_stride = pass.in.rows * n;
    // EXL3 products wait before they let the next kernel start.
    parts.early =
        pass.in.rows <= kEarlyRows && !pass.down.kinds.empty() && pass.down.kinds.back().exl3;
    if (pass.pairs() == 0 || pass.experts.count == 0) {
        parts.experts = 0;
        parts.early = false;
        return cuda::combine(pass.out, parts, stream_.get());
    }
    hidden_products(pass);
    prepare_down(pass);
    int64_t chunk = n;
    if (!pass.down.has_native()) {
        const int64_t blocks = kPairFloats / (pass.pairs() * pass.segments * exl3::kBlock);
        chunk = std::min(n, std::max<int64_t>(blocks, 1) * exl3::kBlock);
    }
    for (int64_t first = 0; first < n; first += chunk) {
        const int64_t columns = std::min(chunk, n - first);
        down_products(pass, first, columns);
        parts.by_pair = pass.by_pair;
        parts.pair_stride = columns;
        Combination part = parts;
        if (part.shared != nullptr) part.shared += first;
        cuda::combine(pass.out.slice_cols(first, columns), part, stream_.get());
    }
}

void Moe::run_slab(MoePass& pass) {
    const MoeWeights& experts = pass.experts;
    const int64_t n = pass.out.cols;
    const int64_t pairs = pass.pairs();
    Workspace::Scope scope(workspace_);
    pass.tiles_early = false;
    if (pairs > 0 && experts.count > 0) {
        const Exl3Plan plan =
            plan_exl3_experts(pass.gate.widest, pairs, experts.count, 2, products_.exl3_device());
        pass.tile_rows = tile_rows_for(plan, pass);
        Grouping& grouping = pass.grouping;
        grouping.align = pass.has_native() ? kNativeGroupRows : 8;
        grouping.capacity = grouped_positions(pairs, experts.count, grouping.align);
        grouping.most_tiles = grouped_tiles(pairs, experts.count, pass.tile_rows);
        grouping.tiles = scope.take<RowTile>(grouping.most_tiles);
        grouping.tile_count = scope.take<int32_t>(1);
        grouping.order = scope.take<int32_t>(grouping.capacity);
        group_pairs(grouping, pass.ids, experts.count, pass.tile_rows, stream_.get());
        pass.hidden = scope.take<float>(2 * pass.hidden_stride());
        pass.rotated = scope.take<uint2>(rotated_size(grouping.capacity, pass.down.k_padded));
        pass.by_pair = scope.take<float>(
            std::max(pairs * pass.segments * exl3::kBlock,
                     pass.down.has_native() ? pairs * pass.segments * n
                                            : std::min(kPairFloats, pairs * pass.segments * n)));
    }
    if (experts.shared.down.n > 0) {
        pass.shared = scope.take<float>(pass.segments * pass.in.rows * n);
        shared_expert(pass.shared, pass);
        // Its swiglu waits for all before it, and what follows waits for that.
        pass.tiles_early = experts.shared.gate.n > 0;
    }
    routed_experts(pass);
}

void Moe::run(View<float> out, View<const float> in, View<const int32_t> ids,
              View<const float> weights, const MoeWeights& experts, View<const float> shared_gate,
              View<const float> shared_up) {
    contract::moe(out, in, ids, weights, experts, shared_gate, shared_up);
    if (in.rows == 0) return;
    const auto count = static_cast<size_t>(experts.count);
    std::vector<Mlp> copy;
    if (experts.host_experts == nullptr && count > 0) {
        copy.resize(count);
        ops_.download(copy.data(), experts.experts,
                      experts.count * static_cast<int64_t>(sizeof(Mlp)));
    }
    const std::span<const Mlp> table(copy.empty() ? experts.host_experts : copy.data(), count);
    MoePass pass{.experts = experts};
    if (experts.shared.down.n > 0) {
        pass.segments = experts.shared.down.segments;
        require(experts.shared.down.bias == nullptr && experts.shared.down.n == out.cols,
                "moe: shared expert as wide as out, down without bias");
    } else if (!table.empty()) {
        pass.segments = table.front().down.segments;
    }
    require_experts(table, experts, in.cols, pass.segments);
    pass.gate = over_all(table, 0);
    pass.up = over_all(table, 1);
    pass.down = over_all(table, 2);
    require(table.empty() || pass.down.n == out.cols, "moe: experts as wide as out");
    const bool large =
        !pass.has_native() &&
        products_.exl3_device().shared >= large_shared_bytes(pass.gate.widest.bits, kLargeGroups);
    const int64_t slab =
        std::max<int64_t>((large ? kPairsLarge : kPairs) / std::max<int64_t>(ids.cols, 1), 1);
    for (int64_t first = 0; first < in.rows; first += slab) {
        const int64_t rows = std::min(slab, in.rows - first);
        pass.out = out.slice_rows(first, rows);
        pass.in = in.slice_rows(first, rows);
        pass.ids = ids.slice_rows(first, rows);
        pass.weights = weights.slice_rows(first, rows);
        if (shared_gate.rows > 0) {
            pass.shared_gate = shared_gate.slice_rows(first, rows);
            pass.shared_up = shared_up.slice_rows(first, rows);
        }
        run_slab(pass);
    }
}

void CudaBackend::moe(View<float> out, View<const float> in, View<const int32_t> ids,
                      View<const float> weights, const MoeWeights& experts,
                      View<const float> shared_gate, View<const float> shared_up) {
    moe_.run(out, in, ids, weights, experts, shared_gate, shared_up);
}

}  // namespace quadrille::cuda
