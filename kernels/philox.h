// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) and the two
// things drawn from it: the bits behind one token's noise at one position of one record, and the
// seeds of records. A pure function of its arguments: no state, no order.
#pragma once

#include "kernels/host_device.h"

#include <cstdint>

namespace quadrille {

struct Words4 {
    uint32_t x = 0, y = 0, z = 0, w = 0;

    friend constexpr bool operator==(const Words4&, const Words4&) = default;
};

QUADRILLE_HOST_DEVICE constexpr Words4 philox4x32(Words4 counter, uint64_t key) {
    auto low = static_cast<uint32_t>(key);
    auto high = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xD2511F53u} * counter.x;
        const uint64_t second = uint64_t{0xCD9E8D57u} * counter.z;
        counter = {
            static_cast<uint32_t>(second >> 32) ^ counter.y ^ low, static_cast<uint32_t>(second),
            static_cast<uint32_t>(first >> 32) ^ counter.w ^ high, static_cast<uint32_t>(first)};
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return counter;
}

// Independent streams of one record. Coupled draws use `token` alone, in the target and in the
// draft; rejection draws the drafts, the decisions and the residual from streams of their own.
enum class Stream : uint32_t { token = 0, draft = 1, accept = 2, residual = 3 };

struct NoiseBits {
    uint64_t even = 0;  // of token 2i
    uint64_t odd = 0;   // of token 2i + 1
};

// Bits of the tokens 2 * pair and 2 * pair + 1 at an absolute position.
QUADRILLE_HOST_DEVICE constexpr NoiseBits noise_bits(uint64_t seed, int64_t position, Stream stream,
                                                     uint32_t pair) {
    const auto place = static_cast<uint64_t>(position);
    const Words4 words =
        philox4x32({pair, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
                    static_cast<uint32_t>(stream)},
                   seed);
    return {uint64_t{words.x} << 32 | words.y, uint64_t{words.z} << 32 | words.w};
}

QUADRILLE_HOST_DEVICE constexpr uint64_t noise_bits_of(uint64_t seed, int64_t position,
                                                       Stream stream, int32_t token) {
    const auto id = static_cast<uint32_t>(token);
    const NoiseBits bits = noise_bits(seed, position, stream, id >> 1);
    return (id & 1u) == 0 ? bits.even : bits.odd;
}

// The seed of sample `sample` of record `index` of prompt file `source`, for a run's seed: 63 bits,
// so that -1 can stand for "not set".
constexpr int64_t record_seed(uint64_t seed, int64_t index, int32_t source, int32_t sample) {
    const auto place = static_cast<uint64_t>(index);
    const Words4 words =
        philox4x32({static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
                    static_cast<uint32_t>(source), static_cast<uint32_t>(sample)},
                   seed);
    return static_cast<int64_t>((uint64_t{words.x} << 32 | words.y) >> 1);
}

}  // namespace quadrille
