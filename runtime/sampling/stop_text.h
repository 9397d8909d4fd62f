// SPDX-License-Identifier: Apache-2.0
// Finds a record's stop strings in the bytes of its growing text. A string may begin inside one
// token and end inside another, and tokens may cut characters: what could still become a stop
// string is held. Strings are UTF-8, whose characters never match inside others, so bytes do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quadrille {

class StopText {
  public:
    static constexpr int64_t kNone = -1;

    // Appends the bytes of a token to the text. Where stop strings are complete now: the offset in
    // the text at which the first of them begins; nothing may be added then. Else kNone.
    int64_t add(std::string_view bytes, std::span<const std::string> stops);

  private:
    std::string held_;    // the end of the text, shorter than the longest stop string
    int64_t before_ = 0;  // bytes of the text before held_
};

}  // namespace quadrille
