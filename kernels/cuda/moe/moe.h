// SPDX-License-Identifier: Apache-2.0
// Moe: the op `moe` on the GPU (kernels/README.md). The pairs (row, slot) of a slab of rows are
// grouped by expert on the device; one grouped launch per stage covers all experts, gate and up
// together. Results stay apart per pair and segment and are summed in slot order, so a row's bits
// do not depend on the grouping.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/products.h"

#include <cstdint>

namespace quadrille::cuda {

struct Kind;  // moe_pass.h
struct Member;
struct MoePass;

class Moe {
  public:
    // ops: of the same stream, for the shared expert. All outlive it.
    Moe(Backend& ops, Products& products, const Stream& stream, KernelSet& kernels,
        Workspace& workspace)
        : ops_(ops),
          products_(products),
          stream_(stream),
          kernels_(kernels),
          workspace_(workspace) {}

    // Backend::moe.
    void run(View<float> out, View<const float> in, View<const int32_t> ids,
             View<const float> weights, const MoeWeights& experts, View<const float> shared_gate,
             View<const float> shared_up);

  private:
    // moe.cpp: a slab of rows, its routed experts, its shared expert.
    void run_slab(MoePass& pass);
    void routed_experts(MoePass& pass);
    void shared_expert(float* by_segment, const MoePass& pass);

    // moe_products.cpp: how the experts' products are cut, and their launches.
    Exl3Plan plan_for(const MoePass& pass, const Member& shape, const Kind& kind,
                      int32_t members) const;
    bool rotates_inside(const MoePass& pass, const Member& shape, int32_t members) const;
    void hidden_products(MoePass& pass);
    void native_hidden(const MoePass& pass, int32_t member, int32_t members, const Kind& kind,
                       const uint4*& fragments, Workspace::Scope& scope);
    void prepare_down(MoePass& pass);
    void down_products(MoePass& pass, int64_t first_column, int64_t columns);

    Backend& ops_;
    Products& products_;
    const Stream& stream_;
    KernelSet& kernels_;
    Workspace& workspace_;
};

}  // namespace quadrille::cuda
