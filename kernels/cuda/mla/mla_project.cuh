// SPDX-License-Identifier: Apache-2.0
// The two products of absorbed MLA with kv_b, head by head: queries into the latent space, sums of
// latents out of it.
//
// bf16 weights: on tensor cores, as good as fp32 (mla_project.cu). f16 and f32 weights, and keys of
// more than 512 numbers: fp32 sums (mla_project_plain.cu). Which of them is a matter of the model;
// either way a row has one arithmetic.
#pragma once

#include "kernels/cuda/mla/mla_tile.cuh"

namespace quadrille::cuda::mla {

// args.queries (used, heads, r) = what the queries are in the latent space.
void absorb(const Attention& args, KernelSet& kernels, LaunchStream stream);
// args.out = what args.sums (used, heads, r) are outside of it.
void expand(const Attention& args, KernelSet& kernels, LaunchStream stream);

void absorb_plain(const Attention& args, KernelSet& kernels, LaunchStream stream);
void expand_plain(const Attention& args, LaunchStream stream);

}  // namespace quadrille::cuda::mla
