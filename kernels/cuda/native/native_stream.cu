// SPDX-License-Identifier: Apache-2.0
// Launches of the streaming kernel (native_stream.cuh): one product, experts by table, or a group
// of products in one launch.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/native/native_stream.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

using stream::kWarps;

// Thread blocks along the columns: as many as the device holds, each with the same number of column
// tiles but the last.
int64_t column_blocks(int64_t tiles, int64_t limit) {
    return ceil_div(tiles, ceil_div(tiles, std::max<int64_t>(limit, 1)));
}

template <Dtype kDtype, int kGroups, int kColumns, bool kFew>
void launch(const NativeProduct& product, int64_t n, dim3 grid, int32_t processors,
            LaunchStream stream) {
    constexpr int64_t kResident = stream::resident(kGroups, kColumns, kFew);
    const int64_t tiles = ceil_div(n, 16 * kColumns);
    const int64_t limit = processors * kResident / (int64_t{grid.x} * grid.z);
    grid.y = static_cast<unsigned>(product.table != nullptr ? tiles : column_blocks(tiles, limit));
    launch_dependent(stream::native_stream_kernel<NativeProduct, kDtype, kGroups, kColumns, kFew>,
                     grid, kWarps * 32, 0, stream, product);
}

template <Dtype kDtype>
void launch(const NativeProduct& product, int64_t n, dim3 grid, int32_t groups, int32_t columns,
            int32_t processors, LaunchStream stream) {
    const bool few = product.table == nullptr && (n + 15) / 16 * int64_t{grid.x} <= processors;
    if (groups == 1 && columns == 1 && few) {
        launch<kDtype, 1, 1, true>(product, n, grid, processors, stream);
    } else if (groups == 1 && columns == 1) {
        launch<kDtype, 1, 1, false>(product, n, grid, processors, stream);
    } else if (groups == 1) {
        launch<kDtype, 1, 2, false>(product, n, grid, processors, stream);
    } else if (columns == 1) {
        launch<kDtype, 2, 1, false>(product, n, grid, processors, stream);
    } else {
        launch<kDtype, 2, 2, false>(product, n, grid, processors, stream);
    }
}

template <Dtype kDtype, int kGroups, bool kFew>
void launch_group(const NativeGroup& group, dim3 grid, int32_t processors, LaunchStream stream) {
    const int64_t limit = processors * int64_t{stream::resident(kGroups, 1, kFew)} / grid.x;
    grid.y = static_cast<unsigned>(column_blocks(group.tiles, limit));
    launch_dependent(stream::native_stream_kernel<NativeGroup, kDtype, kGroups, 1, kFew>, grid,
                     kWarps * 32, 0, stream, group);
}

template <Dtype kDtype>
void launch_group(const NativeGroup& group, int32_t tile_rows, int32_t processors,
                  LaunchStream stream) {
    const dim3 grid(static_cast<unsigned>(ceil_div(group.m, tile_rows)));
    if (tile_rows == kStreamRows) {
        launch_group<kDtype, 2, false>(group, grid, processors, stream);
    } else if (group.tiles * int64_t{grid.x} <= processors) {
        launch_group<kDtype, 1, true>(group, grid, processors, stream);
    } else {
        launch_group<kDtype, 1, false>(group, grid, processors, stream);
    }
}

}  // namespace

void NativeGroup::add(const Matrix& matrix, View<float> out, View<const float> in) {
    require(count < kNativeGroup, "native group: not full");
    const auto n = static_cast<int32_t>(matrix.n);
    const int32_t end = tiles + static_cast<int32_t>(ceil_div(n, 16));
    members[count++] = {.weights = matrix.weights,
                        .bias = matrix.bias,
                        .x = in.data,
                        .x_stride = in.stride,
                        .out = out.data,
                        .out_stride = out.stride,
                        .n = n,
                        .first_tile = tiles,
                        .end_tile = end};
    tiles = end;
    k = static_cast<int32_t>(matrix.k);
    m = static_cast<int32_t>(in.rows);
}

bool native_groups(const Matrix& w, View<const float> in) {
    const auto aligned = [](const void* pointer) {
        return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
    };
    return w.segments == 1 && w.k % 8 == 0 && aligned(w.weights) && aligned(in.data) &&
           in.stride % 4 == 0;
}

void native_group(const NativeGroup& group, Dtype dtype, int32_t tile_rows, int32_t processors,
                  LaunchStream stream) {
    if (group.tiles == 0 || group.m == 0) return;
    require(tile_rows == 8 || tile_rows == kStreamRows, "native_group: tiles of 8 or 16 rows");
    switch (dtype) {
        case Dtype::bf16:
            return launch_group<Dtype::bf16>(group, tile_rows, processors, stream);
        case Dtype::f16:
            return launch_group<Dtype::f16>(group, tile_rows, processors, stream);
        case Dtype::f32:
            return launch_group<Dtype::f32>(group, tile_rows, processors, stream);
        default:
            require(false, "native weights are bf16, f16 or f32");
    }
}

void native_stream(const NativeProduct& product, Dtype dtype, int64_t n, int32_t tiles,
                   int32_t tile_rows, int32_t members, int32_t processors, LaunchStream stream) {
    if (tiles == 0 || n == 0) return;
    require(tile_rows == 8 || tile_rows == 16, "native_stream: tiles of 8 or 16 rows");
    const dim3 grid(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(members));
    const int32_t groups = tile_rows / 8;
    // Two column tiles a warp halve the reads of the activations, which count with more than eight
    // rows.
    const bool many = product.table != nullptr || tiles > 1 || groups > 1;
    const int32_t columns = many && n / 32 * tiles * members >= processors ? 2 : 1;
    switch (dtype) {
        case Dtype::bf16:
            return launch<Dtype::bf16>(product, n, grid, groups, columns, processors, stream);
        case Dtype::f16:
            return launch<Dtype::f16>(product, n, grid, groups, columns, processors, stream);
        case Dtype::f32:
            return launch<Dtype::f32>(product, n, grid, groups, columns, processors, stream);
        default:
            require(false, "native weights are bf16, f16 or f32");
    }
}

}  // namespace quadrille::cuda
