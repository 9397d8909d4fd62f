// SPDX-License-Identifier: Apache-2.0
// The most scratch memory that the ops of a backend take for a model, known before it is loaded: a
// GPU's ops follow each other in one workspace, so the largest op counts; a CPU's keep what each of
// them needs.
#pragma once

#include <cstdint>
#include <string>

namespace quadrille {

// Sizes as one rank has them.
struct ScratchShape {
    int64_t rows = 0;         // of the largest pass
    int64_t decode_rows = 0;  // of the largest decode pass
    int64_t hidden = 0;
    int64_t widest = 0;    // inputs of the widest matrix
    int64_t vocab = 0;     // rows of the head
    int32_t segments = 1;  // of row-parallel products
    int64_t experts = 0;   // routed ones; 0: none
    int64_t topk = 0;      // experts of a row
    int64_t expert_width = 0;
    int64_t shared_width = 0;
    bool native_experts = false;  // not EXL3
    int64_t mla_heads = 0;
    int64_t latent_dim = 0;
    int64_t selected = 0;     // latents that a row attends to, at most
    int64_t pools = 0;        // of a sequence
    int64_t draft_rows = 0;   // of all blocks of a proposal
    int64_t draft_width = 0;  // query and key channels of the drafter
    bool filtered = false;    // draws look at whole rows of logits
};

// Bytes; `backend`: "cuda" or that of a CPU.
int64_t scratch_bound(const std::string& backend, const ScratchShape& shape);

}  // namespace quadrille
