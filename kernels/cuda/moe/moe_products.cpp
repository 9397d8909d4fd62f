// SPDX-License-Identifier: Apache-2.0
// The products of the experts: of each kind of matrix a launch over all experts, their inputs
// rotated by themselves where they are few, else by a kernel before.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/exl3/exl3_rotate.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/moe/moe_pass.h"
#include "kernels/cuda/native/native_product.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

void set_tiles(NativeProduct& args, const Grouping& grouping) {
    args.tiles = grouping.tiles;
    args.tile_count = grouping.tile_count;
    args.order = grouping.order;
}

// A member's product, but for inputs and outputs.
Exl3Product product_of(const MoePass& pass, int32_t member) {
    Exl3Product args;
    args.table = pass.experts.experts;
    args.member = member;
    args.tiles = pass.grouping.tiles;
    args.tile_count = pass.grouping.tile_count;
    args.tiles_early = pass.tiles_early;
    return args;
}

// Gate x, or up x, of every position.
ProductOut hidden_out(const MoePass& pass, int32_t member) {
    return {.data = pass.hidden + member * pass.hidden_stride(),
            .row_stride = pass.experts.max_width,
            .member_stride = pass.hidden_stride()};
}

Rotation rotation_of(const MoePass& pass, int64_t k_padded) {
    Rotation rotation;
    rotation.m = static_cast<int32_t>(pass.pairs());
    rotation.tiles = pass.grouping.tiles;
    rotation.tiles_early = pass.tiles_early;
    rotation.tile_rows = pass.tile_rows;
    rotation.table = pass.experts.experts;
    rotation.out_tiles = k_padded / exl3::kTile;
    return rotation;
}

}  // namespace

Exl3Plan Moe::plan_for(const MoePass& pass, const Member& shape, const Kind& kind,
                       int32_t members) const {
    // Beside native experts swiglu is done before.
    const bool gated = &shape == &pass.down && !pass.down.has_native();
    return plan_exl3_experts(of_kind(shape.widest, kind), pass.pairs(), pass.experts.count, members,
                             products_.exl3_device(), pass.tile_rows / 8, gated);
}

bool Moe::rotates_inside(const MoePass& pass, const Member& shape, int32_t members) const {
    return shape.aligned &&
           std::all_of(shape.kinds.begin(), shape.kinds.end(), [&](const Kind& kind) {
               return !kind.exl3 || plan_for(pass, shape, kind, members).rotate_inside;
           });
}

// hidden: gate x and up x of every position.
void Moe::hidden_products(MoePass& pass) {
    Workspace::Scope scope(workspace_);
    const Grouping& grouping = pass.grouping;
    const bool together = pass.gate.kinds.size() == 1 && pass.gate.kinds == pass.up.kinds;
    const int32_t members = together ? 2 : 1;
    const int64_t k_padded = std::max(pass.gate.k_padded, pass.up.k_padded);
    const int64_t rotated_stride = rotated_size(grouping.capacity, k_padded);
    const bool inside = loads_four(pass.in.data, pass.in.stride) &&
                        rotates_inside(pass, pass.gate, members) &&
                        rotates_inside(pass, pass.up, members);
    uint2* rotated = nullptr;
    if (k_padded > 0 && !inside) {
        rotated = scope.take<uint2>(2 * rotated_stride);
        Rotation rotation = rotation_of(pass, k_padded);
        rotation.x = pass.in.data;
        rotation.x_stride = pass.in.stride;
        rotation.order = grouping.order;
        rotation.slots = static_cast<int32_t>(pass.ids.cols);
        rotation.out = rotated;
        rotation.out_stride = rotated_stride;
        rotate(rotation, k_padded, grouping.most_tiles, kernels_.processors(), stream_.get());
        pass.tiles_early = true;
    }
    const uint4* fragments = nullptr;
    for (int32_t member = 0; member < 2; member += members) {
        const Member& shape = member == 0 ? pass.gate : pass.up;
        for (const Kind& kind : shape.kinds) {
            if (kind.exl3) {
                Exl3Product args = product_of(pass, member);
                if (inside) {
                    args.x = pass.in.data;
                    args.x_stride = pass.in.stride;
                    args.input_order = grouping.order;
                    args.slots = static_cast<int32_t>(pass.ids.cols);
                } else {
                    args.rotated = rotated + member * rotated_stride;
                    args.rotated_stride = rotated_stride;
                    args.rotated_tiles = k_padded / exl3::kTile;
                }
                args.out = hidden_out(pass, member);
                products_.run_exl3(plan_for(pass, shape, kind, members), args,
                                   of_kind(shape.widest, kind),
                                   static_cast<int32_t>(shape.n_padded / exl3::kBlock),
                                   grouping.most_tiles, members);
                pass.tiles_early = true;
                continue;
            }
            native_hidden(pass, member, members, kind, fragments, scope);
        }
    }
}

// fragments: of the inputs, made once where a kind asks for them.
void Moe::native_hidden(const MoePass& pass, int32_t member, int32_t members, const Kind& kind,
                        const uint4*& fragments, Workspace::Scope& scope) {
    const Member& shape = member == 0 ? pass.gate : pass.up;
    const Grouping& grouping = pass.grouping;
    NativeProduct args;
    args.table = pass.experts.experts;
    args.member = member;
    set_tiles(args, grouping);
    args.x = pass.in.data;
    args.x_stride = pass.in.stride;
    args.slots = static_cast<int32_t>(pass.ids.cols);
    args.out = hidden_out(pass, member);
    if (pass.tile_rows <= kStreamRows) {
        return native_stream(args, kind.dtype, shape.n, grouping.most_tiles, pass.tile_rows,
                             members, kernels_.processors(), stream_.get());
    }
    if (fragments == nullptr) {
        auto* split = scope.take<uint4>(split_size(grouping.capacity, shape.k));
        split_rows(split, args, shape.k, grouping.most_tiles, stream_.get());
        fragments = split;
    }
    args.fragments = fragments;
    native_tiled(args, shape.n, grouping.most_tiles, members, kernels_, stream_.get());
}

// Inputs of down, as far as its products do not make them: rotated ones, and swiglu in the place of
// gate x for native ones.
void Moe::prepare_down(MoePass& pass) {
    const Grouping& grouping = pass.grouping;
    pass.down_inside =
        loads_four(pass.hidden, pass.experts.max_width) && rotates_inside(pass, pass.down, 1);
    if (pass.down.has_exl3() && !pass.down_inside) {
        Rotation rotation = rotation_of(pass, pass.down.k_padded);
        rotation.x = pass.hidden;
        rotation.x_stride = pass.experts.max_width;
        rotation.up = pass.hidden + pass.hidden_stride();
        rotation.limit = pass.experts.limit;
        rotation.out = pass.rotated;
        rotate(rotation, pass.down.k_padded, grouping.most_tiles, kernels_.processors(),
               stream_.get());
        pass.tiles_early = true;
    }
    if (pass.down.has_native()) {
        swiglu_tiles(pass.hidden, pass.hidden + pass.hidden_stride(), pass.experts.max_width,
                     pass.experts.experts, grouping, pass.experts.limit, stream_.get());
        pass.tiles_early = true;
    }
}

// by_pair (pairs * segments, columns): columns [first_column, first_column + columns) of down.
void Moe::down_products(MoePass& pass, int64_t first_column, int64_t columns) {
    const Grouping& grouping = pass.grouping;
    const ProductOut out = {.data = pass.by_pair - first_column,
                            .row_stride = pass.segments * columns,
                            .segment_stride = columns,
                            .by_segment = true};
    for (const Kind& kind : pass.down.kinds) {
        if (kind.exl3) {
            Exl3Product args = product_of(pass, 2);
            args.order = grouping.order;
            if (pass.down_inside) {
                args.x = pass.hidden;
                args.x_stride = pass.experts.max_width;
                if (!pass.down.has_native()) args.up = pass.hidden + pass.hidden_stride();
                args.limit = pass.experts.limit;
            } else {
                args.rotated = pass.rotated;
                args.rotated_tiles = pass.down.k_padded / exl3::kTile;
            }
            args.out = out;
            args.first_block = static_cast<int32_t>(first_column / exl3::kBlock);
            products_.run_exl3(
                plan_for(pass, pass.down, kind, 1), args, of_kind(pass.down.widest, kind),
                static_cast<int32_t>(ceil_div(columns, exl3::kBlock)), grouping.most_tiles, 1);
            pass.tiles_early = true;
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
                          kernels_.processors(), stream_.get());
            continue;
        }
        auto* split = scope.take<uint4>(split_size(grouping.capacity, pass.down.k));
        split_rows(split, args, pass.down.k, grouping.most_tiles, stream_.get());
        args.fragments = split;
        native_tiled(args, pass.down.n, grouping.most_tiles, 1, kernels_, stream_.get());
    }
}

}  // namespace quadrille::cuda
