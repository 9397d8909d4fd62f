// SPDX-License-Identifier: Apache-2.0
// What the engine asks of a drafter. Its context holds features (taps) of exactly the tokens the
// target has committed; a proposal never changes the target's output, only how many steps it takes.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// One sequence that wants a draft block.
struct DraftRequest {
    int64_t record = 0;
    int32_t slot = 0;
    int32_t position = 0;  // of the anchor = committed tokens = context rows
    int32_t anchor = 0;    // last emitted token, not yet forwarded
    // How drafts are drawn: draw.position is that of the first, the others follow; draw.row and
    // draw.drafts mean nothing. Coupled draws: the target's own noise, Stream::token; rejection:
    // Stream::draft.
    SampleRow draw{};
};

// What the drafts of a proposal were drawn from, on the host: ids and scores (drafts, per_draft).
// per_draft 0: every draft was certain.
struct DraftCandidates {
    int64_t per_draft = 0;
    std::span<const int32_t> ids;   // -1: none
    std::span<const float> scores;  // logits before temperature; -inf: none
};

// A proposal whose inputs lie in backend memory: whole blocks [anchor, MASK, ...], padded ones with
// slot -1.
struct DraftPass {
    Rows rows;
    const int32_t* tokens = nullptr;   // (sequences * block)
    const int32_t* predict = nullptr;  // (sequences * k) rows that predict the first k slots
    const int32_t* anchor = nullptr;   // (sequences); -1: padding
    const SampleRow* draws = nullptr;  // (sequences), coupled; nullptr: all greedy
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    virtual int32_t max_k() const = 0;                     // drafts per block at most
    virtual const std::vector<int64_t>& taps() const = 0;  // target layers, ascending

    // Adds rows of the target's last forward to the context: taps (m, taps * hidden). write[i] ==
    // 0: row i was rejected. `rows` is that forward's, its positions still those before the commit.
    virtual void append(View<const float> taps, std::span<const uint8_t> write,
                        const Rows& rows) = 0;

    // drafts (requests * k), request-major, the same on every rank; -1: none, never accepted.
    virtual void propose(std::span<int32_t> drafts, int32_t k,
                         std::span<const DraftRequest> requests) = 0;
    // The last proposal's, where a request of it drew from Stream::draft.
    virtual DraftCandidates candidates() const { return {}; }

    // ---- the same without the host, for a step that stays on the backend ------------------------
    // Rows of a block; 0: this drafter needs the host.
    virtual int32_t backend_block() const { return 0; }
    virtual int32_t mask_token() const { return -1; }
    // write (m) in backend memory.
    virtual void append_on_backend(View<const float>, const uint8_t*, const Rows&) {}
    // Drafts (sequences, k) in backend memory, valid until the next proposal.
    virtual View<const int32_t> propose_on_backend(int32_t, const DraftPass&) { return {}; }
};

}  // namespace quadrille
