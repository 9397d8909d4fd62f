// SPDX-License-Identifier: Apache-2.0
// The tokens that a record's repetition penalty concerns, a bitmap over the vocabulary for each
// slot: on the host, and in backend memory for the sampling ops.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

class TokenHistory {
  public:
    TokenHistory(Backend& backend, int32_t slots, int64_t vocab_size);

    void start(int32_t slot, std::span<const int32_t> tokens);  // forgets what the slot held
    void add(int32_t slot, std::span<const int32_t> tokens);
    void flush();  // makes host and backend memory equal

    const uint32_t* on_host(int32_t slot) const;
    const uint32_t* on_backend(int32_t slot) const { return device_.view().row(slot); }

  private:
    static constexpr int64_t kMarks = 1024;  // tokens of one upload

    Backend& backend_;
    int64_t words_;
    std::vector<uint32_t> host_;           // (slots, words)
    Array<uint32_t> device_;               // (slots, words)
    std::vector<int32_t> slots_, tokens_;  // not yet in backend memory
    std::vector<int32_t> staged_;
    Array<int32_t> marks_;  // slots | tokens
};

}  // namespace quadrille
