// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quadrille {

// Offset of the first byte that does not belong to a well-formed sequence; npos: all is well.
size_t find_broken_utf8(std::string_view text);

// Each maximal ill-formed subpart becomes one U+FFFD, as Python's errors="replace" and the Unicode
// standard's recommended practice do.
std::string replace_broken_utf8(std::string_view bytes);

// Text that HDF5 can hold: as above, and NUL, where its strings end, becomes U+FFFD as well.
std::string storable_text(std::string_view text);

// Bytes of the longest prefix that does not end inside a character: what may be printed of a text
// that is still growing. Ill-formed bytes that no continuation can mend count as characters.
size_t complete_utf8(std::string_view bytes);

void append_utf8(std::string& text, char32_t character);  // a Unicode scalar value

}  // namespace quadrille
