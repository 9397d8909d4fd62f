// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8 (Unicode table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quadrille {

// Offset of the first byte that does not belong to a well-formed sequence; npos: all is well.
size_t find_broken_utf8(std::string_view text);

// Text that HDF5 can hold: broken sequences and NUL, where its strings end, become U+FFFD.
std::string storable_text(std::string_view text);

}  // namespace quadrille
