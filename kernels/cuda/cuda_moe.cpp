// SPDX-License-Identifier: Apache-2.0
// moe on the GPU: the pairs (row, slot) of a slab of rows are grouped by expert on the device; one
// grouped launch per stage covers all experts, gate and up together. Results stay apart per pair
// and segment and are summed in slot order, so a row's bits do not depend on the grouping.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/exl3_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rotate.h"

#include <algorithm>
#include <vector>

namespace quadrille::cuda {

namespace {

// Pairs of a slab: bound the scratch, about 36 KB a pair with 4096 hidden and 2048 expert channels.
// Large tiles want a hundred rows an expert (exl3_large.cuh).
constexpr int64_t kPairs = 8192;
constexpr int64_t kPairsLarge = 32768;
constexpr int64_t kPairFloats = int64_t{64} << 20;  // of the down products held at once

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// What decides the kernel of a matrix. A pack may mix kinds; each gets launches of its own.
struct Kind {
    bool exl3;
    int32_t bits;
    bool mul1;
    Dtype dtype;

    bool operator==(const Kind&) const = default;
};
Kind kind_of(const Matrix& w) {
    if (w.is_exl3()) return {true, w.bits, w.codebook == Codebook::mul1, Dtype::f32};
    return {false, 0, false, w.dtype};
}

// The shape of w with the bits and codebook of a kind.
Matrix of_kind(Matrix w, const Kind& kind) {
    w.bits = kind.bits;
    w.codebook = kind.mul1 ? Codebook::mul1 : Codebook::mcg;
    return w;
}

const Matrix& member_of(const Mlp& mlp, int32_t member) {
    return member == 0 ? mlp.gate : member == 1 ? mlp.up : mlp.down;
}

// One member (gate, up or down) over all experts.
struct Member {
    std::vector<Kind> kinds;
    int64_t k = 0;  // the most of any expert
    int64_t n = 0;
    int64_t k_padded = 0;
    int64_t n_padded = 0;
    Matrix widest;  // of the EXL3 ones, for plans

    bool has_exl3() const { return widest.is_exl3(); }
    bool has_native() const {
        return std::any_of(kinds.begin(), kinds.end(), [](const Kind& k1) { return !k1.exl3; });
    }
};

Member member_of(const std::vector<Mlp>& table, int32_t member) {
    Member all;
    for (const Mlp& mlp : table) {
        const Matrix& w = member_of(mlp, member);
        const Kind kind = kind_of(w);
        if (std::find(all.kinds.begin(), all.kinds.end(), kind) == all.kinds.end()) {
            all.kinds.push_back(kind);
        }
        all.k = std::max(all.k, w.k);
        all.n = std::max(all.n, w.n);
        if (!w.is_exl3()) continue;
        all.k_padded = std::max(all.k_padded, w.k_padded);
        all.n_padded = std::max(all.n_padded, w.n_padded);
        if (w.n_padded * w.k_padded >= all.widest.n_padded * all.widest.k_padded) all.widest = w;
    }
    return all;
}

void require_experts(const std::vector<Mlp>& table, const MoeWeights& experts, int64_t hidden,
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

// Rows of a tile that the experts' kernels take, for about `rows` rows of a busy expert.
int32_t tile_rows_for(const Exl3Plan& plan, const Member& gate, const Member& down) {
    if (!gate.has_native() && !down.has_native()) return plan.rows();
    // Native kernels take 8 or 16 rows; 64 if all of them are bf16.
    if (plan.rows() <= kStreamRows) return plan.rows();
    for (const Member* member : {&gate, &down}) {
        for (const Kind& kind : member->kinds) {
            if (!kind.exl3 && kind.dtype != Dtype::bf16) return kStreamRows;
        }
    }
    return kNativeTileRows;
}

}  // namespace

struct CudaBackend::MoePass {
    View<float> out{};
    View<const float> in{};
    View<const int32_t> ids{};
    View<const float> weights{};
    const MoeWeights& experts;
    int32_t segments = 1;
    Member gate{};
    Member up{};
    Member down{};

    int32_t tile_rows = 8;
    Grouping grouping{};
    float* hidden = nullptr;   // gate, then up: (positions, max_width) each
    uint2* rotated = nullptr;  // inputs of down
    float* by_pair = nullptr;
    float* shared = nullptr;  // (segments, m, n)

    int64_t pairs() const { return ids.rows * ids.cols; }
    int64_t hidden_stride() const { return grouping.capacity * experts.max_width; }
};

namespace {

void set_tiles(NativeProduct& args, const Grouping& grouping) {
    args.tiles = grouping.tiles;
    args.tile_count = grouping.tile_count;
    args.order = grouping.order;
}

}  // namespace

// hidden: gate x and up x of every position.
void CudaBackend::moe_hidden(const MoePass& pass) {
    Workspace::Scope scope(workspace_);
    const Grouping& grouping = pass.grouping;
    const ProductOut out = {.data = pass.hidden,
                            .row_stride = pass.experts.max_width,
                            .member_stride = pass.hidden_stride()};
    const bool together = pass.gate.kinds.size() == 1 && pass.gate.kinds == pass.up.kinds;
    const int32_t members = together ? 2 : 1;
    const int64_t k_padded = std::max(pass.gate.k_padded, pass.up.k_padded);
    const int64_t rotated_stride = rotated_size(grouping.capacity, k_padded);
    uint2* rotated = nullptr;
    if (k_padded > 0) {
        rotated = scope.take<uint2>(2 * rotated_stride);
        Rotation rotation{.x = pass.in.data, .x_stride = pass.in.stride};
        rotation.order = grouping.order;
        rotation.slots = static_cast<int32_t>(pass.ids.cols);
        rotation.tiles = grouping.tiles;
        rotation.tile_count = grouping.tile_count;
        rotation.tile_rows = pass.tile_rows;
        rotation.table = pass.experts.experts;
        rotation.out = rotated;
        rotation.out_stride = rotated_stride;
        rotation.out_tiles = k_padded / exl3::kTile;
        rotate(rotation, k_padded, grouping.most_tiles, 2, kernels_.overlaps(), stream_.get());
    }
    const uint4* fragments = nullptr;
    for (int32_t member = 0; member < 2; member += members) {
        const Member& shape = member == 0 ? pass.gate : pass.up;
        for (const Kind& kind : shape.kinds) {
            if (kind.exl3) {
                const Matrix like = of_kind(shape.widest, kind);
                const Exl3Plan plan = plan_exl3_experts(like, pass.pairs(), pass.experts.count,
                                                        members, exl3_device(), pass.tile_rows / 8);
                Exl3Product args;
                args.table = pass.experts.experts;
                args.member = member;
                args.tiles = grouping.tiles;
                args.tile_count = grouping.tile_count;
                args.rotated = rotated + member * rotated_stride;
                args.rotated_stride = rotated_stride;
                args.rotated_tiles = k_padded / exl3::kTile;
                args.out = out;
                args.out.data += member * out.member_stride;
                launch_exl3(plan, args, like, static_cast<int32_t>(shape.n_padded / exl3::kBlock),
                            grouping.most_tiles, members);
                continue;
            }
            NativeProduct args;
            args.table = pass.experts.experts;
            args.member = member;
            set_tiles(args, grouping);
            args.x = pass.in.data;
            args.x_stride = pass.in.stride;
            args.slots = static_cast<int32_t>(pass.ids.cols);
            args.out = out;
            args.out.data += member * out.member_stride;
            if (pass.tile_rows <= kStreamRows) {
                native_stream(args, kind.dtype, shape.n, grouping.most_tiles, pass.tile_rows,
                              members, processors_, kernels_, stream_.get());
                continue;
            }
            if (fragments == nullptr) {
                auto* split = scope.take<uint4>(split_size(grouping.capacity, shape.k));
                split_rows(split, args, shape.k, grouping.most_tiles, stream_.get());
                fragments = split;
            }
            args.fragments = fragments;
            native_tiled(args, shape.n, grouping.most_tiles, members, kernels_, stream_.get());
        }
    }
}

// by_pair (pairs * segments, columns): columns [first_column, first_column + columns) of down.
void CudaBackend::moe_down(const MoePass& pass, int64_t first_column, int64_t columns) {
    const Grouping& grouping = pass.grouping;
    const ProductOut out = {.data = pass.by_pair - first_column,
                            .row_stride = pass.segments * columns,
                            .segment_stride = columns,
                            .by_segment = true};
    for (const Kind& kind : pass.down.kinds) {
        if (kind.exl3) {
            const Matrix like = of_kind(pass.down.widest, kind);
            const Exl3Plan plan = plan_exl3_experts(like, pass.pairs(), pass.experts.count, 1,
                                                    exl3_device(), pass.tile_rows / 8);
            Exl3Product args;
            args.table = pass.experts.experts;
            args.member = 2;
            args.tiles = grouping.tiles;
            args.tile_count = grouping.tile_count;
            args.order = grouping.order;
            args.rotated = pass.rotated;
            args.rotated_tiles = pass.down.k_padded / exl3::kTile;
            args.out = out;
            args.first_block = static_cast<int32_t>(first_column / exl3::kBlock);
            launch_exl3(plan, args, like, static_cast<int32_t>(ceil_div(columns, exl3::kBlock)),
                        grouping.most_tiles, 1);
            continue;
        }
        require(first_column == 0 && columns == pass.down.n, "moe: native columns at once");
        Workspace::Scope scope(workspace_);
        NativeProduct args;
        args.table = pass.experts.experts;
        args.member = 2;
        set_tiles(args, grouping);
        args.slots = 0;  // inputs by position
        args.scatter = true;
        args.x = pass.hidden;
        args.x_stride = pass.experts.max_width;
        args.out = out;
        if (pass.tile_rows <= kStreamRows) {
            native_stream(args, kind.dtype, pass.down.n, grouping.most_tiles, pass.tile_rows, 1,
                          processors_, kernels_, stream_.get());
            continue;
        }
        auto* split = scope.take<uint4>(split_size(grouping.capacity, pass.down.k));
        split_rows(split, args, pass.down.k, grouping.most_tiles, stream_.get());
        args.fragments = split;
        native_tiled(args, pass.down.n, grouping.most_tiles, 1, kernels_, stream_.get());
    }
}

// by_segment (segments, m, n): the shared expert.
void CudaBackend::moe_shared(float* by_segment, const MoePass& pass) {
    const Mlp& mlp = pass.experts.shared;
    const int64_t m = pass.in.rows;
    Workspace::Scope scope(workspace_);
    const View<float> gate(scope.take<float>(m * mlp.gate.n), m, mlp.gate.n);
    const View<float> up(scope.take<float>(m * mlp.gate.n), m, mlp.gate.n);
    linear(gate, pass.in, mlp.gate);
    linear(up, pass.in, mlp.up);
    swiglu(gate, gate, up, pass.experts.limit);
    product({.data = by_segment,
             .row_stride = mlp.down.n,
             .segment_stride = m * mlp.down.n,
             .by_segment = true},
            gate, mlp.down);
}

// One slab: the routed experts column chunk by column chunk, each combined at once.
void CudaBackend::moe_rows(const MoePass& pass) {
    const int64_t n = pass.out.cols;
    Combination parts{.ids = pass.ids, .weights = pass.weights};
    parts.experts = pass.experts.count;
    parts.segments = pass.segments;
    parts.shared = pass.shared;
    parts.shared_stride = n;
    parts.shared_segment_stride = pass.in.rows * n;
    if (pass.pairs() == 0 || pass.experts.count == 0) {
        parts.experts = 0;
        return cuda::combine(pass.out, parts, kernels_.overlaps(), stream_.get());
    }
    moe_hidden(pass);
    if (pass.down.has_exl3()) {
        Rotation rotation{.x = pass.hidden, .x_stride = pass.experts.max_width};
        rotation.up = pass.hidden + pass.hidden_stride();
        rotation.limit = pass.experts.limit;
        rotation.tiles = pass.grouping.tiles;
        rotation.tile_count = pass.grouping.tile_count;
        rotation.tile_rows = pass.tile_rows;
        rotation.table = pass.experts.experts;
        rotation.member = 2;
        rotation.out = pass.rotated;
        rotation.out_tiles = pass.down.k_padded / exl3::kTile;
        rotate(rotation, pass.down.k_padded, pass.grouping.most_tiles, 1, kernels_.overlaps(),
               stream_.get());
    }
    int64_t chunk = n;
    if (pass.down.has_native()) {
        swiglu_tiles(pass.hidden, pass.hidden + pass.hidden_stride(), pass.experts.max_width,
                     pass.experts.experts, pass.grouping, pass.experts.limit, kernels_.overlaps(),
                     stream_.get());
    } else {
        const int64_t blocks = kPairFloats / (pass.pairs() * pass.segments * exl3::kBlock);
        chunk = std::min(n, std::max<int64_t>(blocks, 1) * exl3::kBlock);
    }
    for (int64_t first = 0; first < n; first += chunk) {
        const int64_t columns = std::min(chunk, n - first);
        moe_down(pass, first, columns);
        parts.by_pair = pass.by_pair;
        parts.pair_stride = columns;
        Combination part = parts;
        if (part.shared != nullptr) part.shared += first;
        cuda::combine(pass.out.slice_cols(first, columns), part, kernels_.overlaps(),
                      stream_.get());
    }
}

void CudaBackend::moe(View<float> out, View<const float> in, View<const int32_t> ids,
                      View<const float> weights, const MoeWeights& experts) {
    require(out.rows == in.rows && ids.rows == in.rows && weights.rows == in.rows &&
                weights.cols == ids.cols,
            "moe: out, in, ids and weights have m rows");
    if (in.rows == 0) return;
    std::vector<Mlp> table(static_cast<size_t>(experts.count));
    if (experts.host_experts != nullptr) {
        std::copy_n(experts.host_experts, experts.count, table.begin());
    } else if (experts.count > 0) {
        download(table.data(), experts.experts, experts.count * static_cast<int64_t>(sizeof(Mlp)));
    }
    MoePass pass{.experts = experts};
    const bool shared = experts.shared.down.n > 0;
    if (shared) {
        pass.segments = experts.shared.down.segments;
        require(experts.shared.down.bias == nullptr && experts.shared.down.n == out.cols,
                "moe: shared expert as wide as out, down without bias");
    } else if (!table.empty()) {
        pass.segments = table.front().down.segments;
    }
    require_experts(table, experts, in.cols, pass.segments);
    pass.gate = member_of(table, 0);
    pass.up = member_of(table, 1);
    pass.down = member_of(table, 2);
    require(table.empty() || pass.down.n == out.cols, "moe: experts as wide as out");
    const bool large = !pass.gate.has_native() && !pass.down.has_native() &&
                       exl3_device().shared >= large_shared_bytes(pass.gate.widest.bits);
    const int64_t slab =
        std::max<int64_t>((large ? kPairsLarge : kPairs) / std::max<int64_t>(ids.cols, 1), 1);
    for (int64_t first = 0; first < in.rows; first += slab) {
        const int64_t rows = std::min(slab, in.rows - first);
        Workspace::Scope scope(workspace_);
        pass.out = out.slice_rows(first, rows);
        pass.in = in.slice_rows(first, rows);
        pass.ids = ids.slice_rows(first, rows);
        pass.weights = weights.slice_rows(first, rows);
        const int64_t pairs = pass.pairs();
        if (pairs > 0 && experts.count > 0) {
            const Exl3Plan plan =
                plan_exl3_experts(pass.gate.widest, pairs, experts.count, 2, exl3_device());
            pass.tile_rows = tile_rows_for(plan, pass.gate, pass.down);
            Grouping& grouping = pass.grouping;
            grouping.capacity = (grouped_positions(pairs, experts.count) + 7) / 8 * 8;
            grouping.most_tiles = grouped_tiles(pairs, experts.count, pass.tile_rows);
            grouping.tiles = scope.take<RowTile>(grouping.most_tiles);
            grouping.tile_count = scope.take<int32_t>(1);
            grouping.order = scope.take<int32_t>(grouping.capacity);
            group_pairs(grouping, pass.ids, experts.count, pass.tile_rows, kernels_.overlaps(),
                        stream_.get());
            pass.hidden = scope.take<float>(2 * pass.hidden_stride());
            pass.rotated = scope.take<uint2>(rotated_size(grouping.capacity, pass.down.k_padded));
            pass.by_pair = scope.take<float>(std::max(
                pairs * pass.segments * exl3::kBlock,
                pass.down.has_native() ? pairs * pass.segments * out.cols
                                       : std::min(kPairFloats, pairs * pass.segments * out.cols)));
        }
        if (shared) {
            pass.shared = scope.take<float>(pass.segments * rows * out.cols);
            moe_shared(pass.shared, pass);
        }
        moe_rows(pass);
    }
}

}  // namespace quadrille::cuda
