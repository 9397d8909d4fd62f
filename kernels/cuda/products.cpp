// SPDX-License-Identifier: Apache-2.0
// linear on the GPU: shapes, slabs of rows that bound the scratch of a long prefill, and which
// kernel takes them. A row's bits depend on none of it.
#include "kernels/cuda/products.h"

#include "kernels/contract.h"
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/exl3/exl3_launch.h"
#include "kernels/cuda/exl3/exl3_rotate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/native/native_product.h"

#include <algorithm>
#include <array>

namespace quadrille::cuda {

namespace {

constexpr int64_t kNativeSlab = 1024;  // rows multiplied at once
// Inputs split into fragments at once for few columns (64 MB), and the most slabs of rows.
constexpr int64_t kNativeSplit = int64_t{16} << 20;
constexpr int64_t kMostSlabs = 16;
constexpr size_t kMostGroups = 4;  // launches that products are gathered for

// Weights of few columns are streamed again for every 16 rows, from the cache, unless rows are
// many. Very many columns keep the deeper ring of the tiled kernel full (the head: 172 -> 154 us).
bool takes_tiles(const Matrix& weight, int64_t rows) {
    const int64_t columns = rows >= kNativeManyRows ? kNativeTileRows
                            : rows > 8              ? kNativeTiledColumns
                                                    : kNativeHeadColumns;
    return native_fragments(weight) && weight.n >= columns;
}

// The rows x, which begin at row `first` of the product.
NativeProduct native_args(const Products::Tiled& product, View<const float> x, int64_t first) {
    NativeProduct args;
    args.matrix = *product.weight;
    args.m = static_cast<int32_t>(x.rows);
    args.x = x.data;
    args.x_stride = x.stride;
    args.out = product.out;
    args.out.data += first * product.out.row_stride;
    return args;
}

int32_t row_tiles(int64_t rows) {
    return static_cast<int32_t>(ceil_div(rows, kNativeTileRows));
}

bool takes_many_rows(const Products::Tiled& product) {
    return product.weight->n < kNativeTiledColumns;
}

bool same_rows(View<const float> a, View<const float> b) {
    return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

}  // namespace

void CudaBackend::linear(View<float> out, View<const float> in, const Matrix& weight) {
    contract::linear(out, in, weight);
    products_.product({.data = out.data, .row_stride = out.stride}, in, weight);
}

void CudaBackend::linears(std::span<const Product> group) {
    contract::linears(group);
    products_.group(group);
}

void Products::product(const ProductOut& out, View<const float> in, const Matrix& weight) {
    require(weight.k < kMostChannels && weight.n < kMostChannels,
            "matrix of fewer than 2^30 inputs, outputs");
    if (in.rows == 0 || weight.n == 0) return;
    if (weight.is_exl3()) {
        exl3_product(out, in, weight);
    } else {
        native_product(out, in, weight);
    }
}

void Products::run_exl3(const Exl3Plan& plan, Exl3Product args, const Matrix& shape,
                        int32_t column_blocks, int64_t tiles, int32_t members) {
    Workspace::Scope scope(workspace_);
    const Exl3Need need =
        exl3_need(plan, shape, column_blocks, tiles, members, args.out.by_segment);
    apply_plan(args, plan, shape);
    args.column_blocks = column_blocks;
    args.partial =
        plan.waits ? workspace_.awaited_sums(need.partial) : scope.take<float>(need.partial);
    args.counters = workspace_.counters(need.counters);
    const dim3 grid(static_cast<unsigned>(column_blocks * plan.column_parts()),
                    static_cast<unsigned>(tiles), static_cast<unsigned>(members * plan.ranks));
    cuda::launch_exl3(plan, args, grid, shape, kernels_, stream_.get());
}

void Products::exl3_product(const ProductOut& out, View<const float> in, const Matrix& weight) {
    Exl3Plan plan = plan_exl3(weight, in.rows, exl3_device());
    // The product kernel loads four inputs and four scales at a time.
    if (!loads_four(in.data, in.stride) || reinterpret_cast<uintptr_t>(weight.suh) % 8 != 0) {
        plan.rotate_inside = false;
    }
    const auto column_blocks = static_cast<int32_t>(ceil_div(weight.n, exl3::kBlock));
    Exl3Product args;
    args.matrix = weight;
    const int64_t per_tile = exl3_need(plan, weight, column_blocks, 1, 1, out.by_segment).partial;
    const int64_t slab =
        std::clamp<int64_t>(kPartialLimit / std::max<int64_t>(per_tile, 1), 1, 65535) * plan.rows();
    for (int64_t first = 0; first < in.rows; first += slab) {
        const View<const float> x = in.slice_rows(first, std::min(slab, in.rows - first));
        Workspace::Scope scope(workspace_);
        args.m = static_cast<int32_t>(x.rows);
        args.out = out;
        args.out.data += first * out.row_stride;
        args.x = x.data;
        args.x_stride = x.stride;
        if (!plan.rotate_inside) {
            uint2* rotated = scope.take<uint2>(rotated_size(x.rows, weight.k_padded));
            args.rotated = rotated;
            args.rotated_tiles = weight.k_padded / exl3::kTile;
            Rotation rotation{.x = x.data, .x_stride = x.stride};
            rotation.m = args.m;
            rotation.tile_rows = plan.rows();
            rotation.matrix = weight;
            rotation.out = rotated;
            rotation.out_tiles = args.rotated_tiles;
            rotate(rotation, weight.k_padded, static_cast<int32_t>(ceil_div(x.rows, plan.rows())),
                   kernels_.processors(), stream_.get());
        }
        run_exl3(plan, args, weight, column_blocks, ceil_div(x.rows, plan.rows()), 1);
    }
}

void Products::native_product(const ProductOut& out, View<const float> in, const Matrix& weight) {
    if (takes_tiles(weight, in.rows)) {
        if (weight.segments > 1 && !out.by_segment) return native_tree(out, in, weight);
        const Tiled one{out, &weight};
        return native_tiles({&one, 1}, in);
    }
    constexpr int64_t kSlab = int64_t{65535} * kStreamRows;
    for (int64_t first = 0; first < in.rows; first += kSlab) {
        const View<const float> x = in.slice_rows(first, std::min(kSlab, in.rows - first));
        const NativeProduct args = native_args({out, &weight}, x, first);
        const bool few = ceil_div(weight.n, 16) * ceil_div(x.rows, 8) <= kernels_.processors();
        const int32_t rows = x.rows <= 8 || few ? 8 : kStreamRows;
        native_stream(args, weight.dtype, weight.n, static_cast<int32_t>(ceil_div(x.rows, rows)),
                      rows, 1, kernels_.processors(), stream_.get());
    }
}

// Products of the same rows: their fragments are made once. Many columns take a slab of rows at a
// time, whose fragments the cache holds; few take more, so that the device has enough to do.
void Products::native_tiles(std::span<const Tiled> products, View<const float> in) {
    const int64_t k = products.front().weight->k;
    const bool few = std::any_of(products.begin(), products.end(), takes_many_rows);
    const int64_t slabs = few ? kNativeSplit / std::max<int64_t>(k, 1) / kNativeSlab : 1;
    const int64_t split = std::clamp<int64_t>(slabs, 1, kMostSlabs) * kNativeSlab;
    for (int64_t first = 0; first < in.rows; first += split) {
        const View<const float> x = in.slice_rows(first, std::min(split, in.rows - first));
        Workspace::Scope scope(workspace_);
        auto* fragments = scope.take<uint4>(split_size(x.rows, k));
        split_rows(fragments, native_args(products.front(), x, first), k, row_tiles(x.rows),
                   stream_.get());
        for (const Tiled& product : products) {
            const int64_t slab = takes_many_rows(product) ? split : kNativeSlab;
            for (int64_t row = 0; row < x.rows; row += slab) {
                const View<const float> part = x.slice_rows(row, std::min(slab, x.rows - row));
                NativeProduct args = native_args(product, part, first + row);
                args.fragments = fragments + split_size(row, k);
                native_tiled(args, args.matrix.n, row_tiles(part.rows), 1, kernels_, stream_.get());
            }
        }
    }
}

// True where the product may stream in one launch with others.
bool Products::streams(const Product& product) const {
    const Matrix& w = product.weight;
    return !w.is_exl3() && native_groups(w, product.in) && product.out.rows > 0 && w.n > 0 &&
           !takes_tiles(w, product.in.rows);
}

// True where the product may share fragments with others of the same rows.
bool Products::tiles(const Product& product) const {
    const Matrix& w = product.weight;
    return !w.is_exl3() && product.in.rows > 0 && w.n > 0 && w.segments == 1 &&
           takes_tiles(w, product.in.rows);
}

void Products::group(std::span<const Product> products) {
    std::array<NativeGroup, kMostGroups> groups{};
    std::array<Dtype, kMostGroups> dtypes{};
    size_t used = 0;
    for (size_t i = 0; i < products.size(); ++i) {
        const Product& product = products[i];
        const Matrix& w = product.weight;
        const ProductOut out{.data = product.out.data, .row_stride = product.out.stride};
        if (tiles(product)) {
            std::array<Tiled, kNativeGroup> together{{{out, &w}}};
            size_t count = 1;
            while (count < together.size() && i + 1 < products.size() && tiles(products[i + 1]) &&
                   same_rows(products[i + 1].in, product.in)) {
                const Product& next = products[++i];
                together[count++] = {{.data = next.out.data, .row_stride = next.out.stride},
                                     &next.weight};
            }
            native_tiles(std::span(together).first(count), product.in);
            continue;
        }
        if (!streams(product)) {
            this->product(out, product.in, w);
            continue;
        }
        size_t g = 0;
        while (g < used && !(dtypes[g] == w.dtype && groups[g].takes(w, product.in))) ++g;
        if (g == kMostGroups) {
            this->product(out, product.in, w);
            continue;
        }
        used = std::max(used, g + 1);
        dtypes[g] = w.dtype;
        groups[g].add(w, product.out, product.in);
    }
    for (size_t g = 0; g < used; ++g) {
        const bool few = groups[g].tiles * ceil_div(groups[g].m, 8) <= kernels_.processors();
        const int32_t rows = groups[g].m <= 8 || few ? 8 : kStreamRows;
        native_group(groups[g], dtypes[g], rows, kernels_.processors(), stream_.get());
    }
}

// Many rows and several segments: the segments apart, then their tree.
void Products::native_tree(const ProductOut& out, View<const float> in, const Matrix& weight) {
    for (int64_t first = 0; first < in.rows; first += kNativeSlab) {
        const View<const float> x = in.slice_rows(first, std::min(kNativeSlab, in.rows - first));
        Workspace::Scope scope(workspace_);
        ProductOut parts{.data = scope.take<float>(weight.segments * x.rows * weight.n)};
        parts.row_stride = weight.n;
        parts.segment_stride = x.rows * weight.n;
        parts.by_segment = true;
        // The streaming kernel would be chosen for a short last slab; its bits are the same.
        native_product(parts, x, weight);
        cuda::tree_sum({out.data + first * out.row_stride, x.rows, weight.n, out.row_stride},
                       parts.data, weight.segments, parts.segment_stride, weight.bias,
                       stream_.get());
    }
}

}  // namespace quadrille::cuda
