// SPDX-License-Identifier: Apache-2.0
// A drafter for tests: passes everything on to another one, or follows a script, and watches what
// the engine asks of it.
#pragma once

#include "runtime/drafter.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace quadrille::test {

// Passes everything on to another drafter, or drafts by `script` where there is none. Keeps the
// drafts of every record and checks what the engine promises: contexts without gaps that end where
// the anchor stands.
class WatchedDrafter final : public Drafter {
  public:
    // Draft for one position of a record; `place` counts from 1 inside the block.
    using Script = std::function<int32_t(const DraftRequest& request, int32_t place)>;
    explicit WatchedDrafter(Drafter& inner) : inner_(&inner), max_k_(inner.max_k()) {}
    WatchedDrafter(Script script, int32_t max_k) : script_(std::move(script)), max_k_(max_k) {}

    int32_t max_k() const override { return max_k_; }
    const std::vector<int64_t>& taps() const override {
        return inner_ != nullptr ? inner_->taps() : no_taps_;
    }
    void append(View<const float> taps, std::span<const uint8_t> write, const Rows& rows) override;
    void propose(std::span<int32_t> drafts, int32_t k,
                 std::span<const DraftRequest> requests) override;
    DraftCandidates candidates() const override {
        return inner_ != nullptr ? inner_->candidates() : DraftCandidates{};
    }

    // By record: its drafts in the order of its steps.
    const std::map<int64_t, std::vector<int32_t>>& drafts() const { return drafts_; }
    int64_t proposals() const { return proposals_; }

  private:
    Drafter* inner_ = nullptr;
    Script script_;
    int32_t max_k_;
    std::vector<int64_t> no_taps_;
    std::map<int32_t, int32_t> context_;  // slot -> rows
    std::map<int64_t, std::vector<int32_t>> drafts_;
    int64_t proposals_ = 0;
};

}  // namespace quadrille::test
