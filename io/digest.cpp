// SPDX-License-Identifier: Apache-2.0
// FNV-1a over 64-bit little-endian words, with a shift between words: FNV alone never carries a
// word's high bits downwards.
#include "io/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace quadrille {

void Digest::mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
}

void Digest::add(uint64_t value) {
    mix(sizeof value);
    mix(value);
}

void Digest::add(std::span<const std::byte> bytes) {
    mix(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
        mix(word);
    }
}

std::string Digest::hex() const {
    uint64_t value = state_;
    value = (value ^ value >> 32) * 0xd6e8feb86659fd93u;
    return fmt::format("{:016x}", value ^ value >> 32);
}

}  // namespace quadrille
