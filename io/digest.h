// SPDX-License-Identifier: Apache-2.0
// 64-bit digest that names files in provenance and fingerprints: tells versions apart, is not
// cryptographic. Fields are framed by their length: {"ab", "c"} and {"a", "bc"} differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quadrille {

class Digest {
  public:
    void add(std::span<const std::byte> bytes);
    void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
    void add(uint64_t value);

    std::string hex() const;  // 16 lower-case digits

  private:
    void mix(uint64_t word);

    uint64_t state_ = 0xcbf29ce484222325u;  // FNV-1a's offset basis
};

}  // namespace quadrille
