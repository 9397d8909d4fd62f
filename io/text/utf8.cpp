// SPDX-License-Identifier: Apache-2.0
// One step of a UTF-8 decoder; the rest is loops over it.
#include "io/text/utf8.h"

#include <cstdint>

namespace quadrille {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

enum class Kind { well_formed, ill_formed, cut_short };

struct Sequence {
    size_t bytes;  // ill-formed, cut short: of the maximal subpart, at least 1
    Kind kind;
};

// The sequence at the start of `text`, which is not empty.
Sequence next(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t first = byte(0);
    if (first < 0x80) return {1, Kind::well_formed};
    if (first < 0xc2 || first > 0xf4) return {1, Kind::ill_formed};
    const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    const uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (size_t i = 1; i < length; ++i) {
        if (i == text.size()) return {i, Kind::cut_short};
        const bool fits = i == 1 ? byte(i) >= low && byte(i) <= high : (byte(i) & 0xc0) == 0x80;
        if (!fits) return {i, Kind::ill_formed};
    }
    return {length, Kind::well_formed};
}

}  // namespace

size_t find_broken_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const Sequence sequence = next(text.substr(at));
        if (sequence.kind != Kind::well_formed) return at;
        at += sequence.bytes;
    }
    return std::string_view::npos;
}

std::string replace_broken_utf8(std::string_view bytes) {
    std::string result;
    result.reserve(bytes.size());
    for (size_t at = 0; at < bytes.size();) {
        const Sequence sequence = next(bytes.substr(at));
        if (sequence.kind == Kind::well_formed) {
            result.append(bytes.substr(at, sequence.bytes));
        } else {
            result.append(kReplacement);
        }
        at += sequence.bytes;
    }
    return result;
}

std::string storable_text(std::string_view text) {
    std::string result = replace_broken_utf8(text);
    for (size_t at = 0; (at = result.find('\0', at)) != std::string::npos;) {
        result.replace(at, 1, kReplacement);
    }
    return result;
}

size_t complete_utf8(std::string_view bytes) {
    size_t at = bytes.size() > 3 ? bytes.size() - 3 : 0;
    for (; at < bytes.size(); ++at) {
        // A character that is cut short has its first byte among the last three.
        if (static_cast<uint8_t>(bytes[at]) < 0xc2) continue;
        const Sequence sequence = next(bytes.substr(at));
        if (sequence.kind == Kind::cut_short && at + sequence.bytes == bytes.size()) return at;
    }
    return bytes.size();
}

void append_utf8(std::string& text, char32_t character) {
    const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (character < 0x80) {
        put(character);
    } else if (character < 0x800) {
        put(0xc0 | character >> 6);
        put(0x80 | (character & 0x3f));
    } else if (character < 0x10000) {
        put(0xe0 | character >> 12);
        put(0x80 | (character >> 6 & 0x3f));
        put(0x80 | (character & 0x3f));
    } else {
        put(0xf0 | character >> 18);
        put(0x80 | (character >> 12 & 0x3f));
        put(0x80 | (character >> 6 & 0x3f));
        put(0x80 | (character & 0x3f));
    }
}

}  // namespace quadrille
