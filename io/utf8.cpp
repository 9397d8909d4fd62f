// SPDX-License-Identifier: Apache-2.0
#include "io/utf8.h"

#include <cstdint>

namespace quadrille {
namespace {

// Length of the well-formed sequence at the start of `text`; 0: there is none.
size_t sequence_length(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (text.size() < length) return 0;
    // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < low || byte(1) > high) return 0;
    for (size_t i = 2; i < length; ++i)
        if ((byte(i) & 0xC0) != 0x80) return 0;
    return length;
}

}  // namespace

size_t find_broken_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const size_t length = sequence_length(text.substr(at));
        if (length == 0) return at;
        at += length;
    }
    return std::string_view::npos;
}

std::string storable_text(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const size_t length = sequence_length(text.substr(at));
        if (length == 0 || text[at] == '\0')
            out += "\xEF\xBF\xBD";
        else
            out += text.substr(at, length);
        at += length == 0 ? 1 : length;
    }
    return out;
}

}  // namespace quadrille
