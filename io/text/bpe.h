// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text: from single bytes, always merge the adjacent pair of
// lowest rank, leftmost first, until no pair has a rank. O(n log n) in the piece's length.
#pragma once

#include "io/text/tokenizer_file.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quadrille {

class Bpe {
  public:
    // `file` must outlive the object. Throws Error{input} (naming `place`) when a byte has no
    // token.
    Bpe(const TokenizerFile& file, const std::string& place);

    // Appends the ids of `piece` (any bytes).
    void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  private:
    struct Merge {
        int32_t rank;
        int32_t id;
    };
    // One token of a piece in the making; a chain through `next`, so that merging is O(1).
    struct Symbol {
        int32_t id;  // -1: merged into its left neighbour
        int32_t previous;
        int32_t next;
    };
    static uint64_t pair(int32_t left, int32_t right) {
        return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    }
    const Merge* find(int32_t left, int32_t right) const;
    void merge(std::vector<Symbol>& symbols) const;

    bool ignore_merges_;
    std::unordered_map<std::string_view, int32_t> tokens_;
    std::array<int32_t, 256> bytes_{};
    // Open addressing, linear probing, a power of two at most half full; key 0 with rank -1: free.
    struct Slot {
        uint64_t key;
        Merge merge;
    };
    std::vector<Slot> slots_;
};

}  // namespace quadrille
