// SPDX-License-Identifier: Apache-2.0
// Products: y = x W^T (+ bias) on the GPU (kernels/README.md) for a matrix of any kind, and the one
// launch of an EXL3 product that the experts share. A row's bits depend on its inputs alone.
#pragma once

#include "kernels/cuda/exl3/exl3_plan.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/workspace.h"
#include "kernels/op_types.h"

#include <cstdint>
#include <span>

namespace quadrille::cuda {

class Products {
  public:
    // All three outlive it.
    Products(const Stream& stream, KernelSet& kernels, Workspace& workspace)
        : stream_(stream), kernels_(kernels), workspace_(workspace) {}

    // in (m, k). out row r of segment s at out.data + r * row_stride + s * segment_stride.
    void product(const ProductOut& out, View<const float> in, const Matrix& weight);

    // The products of Backend::linears: native ones that are streamed share launches.
    void group(std::span<const Product> products);

    // One launch over `tiles` row tiles and `column_blocks` blocks of 128 columns of `members`
    // matrices, in the plan's cut. shape: the matrix, or one of the launch's kind and as large as
    // the largest of its table. args: all but what follows from the plan.
    void run_exl3(const Exl3Plan& plan, Exl3Product args, const Matrix& shape,
                  int32_t column_blocks, int64_t tiles, int32_t members);

    Exl3Device exl3_device() const {
        return {kernels_.processors(), kernels_.shared_limit(), kernels_.shared_of_processor()};
    }

    // A native product that is made from fragments.
    struct Tiled {
        ProductOut out;
        const Matrix* weight = nullptr;
    };

  private:
    void exl3_product(const ProductOut& out, View<const float> in, const Matrix& weight);
    bool streams(const Product& product) const;
    bool tiles(const Product& product) const;
    void native_product(const ProductOut& out, View<const float> in, const Matrix& weight);
    void native_tiles(std::span<const Tiled> products, View<const float> in);
    void native_tree(const ProductOut& out, View<const float> in, const Matrix& weight);

    const Stream& stream_;
    KernelSet& kernels_;
    Workspace& workspace_;
};

}  // namespace quadrille::cuda
