// SPDX-License-Identifier: Apache-2.0
// How prompts are cut into the chunks of prefill passes. A chunk ends at a multiple of the grid,
// counted from its sequence's own first token, or at the sequence's end, so that a chunked prefill
// does not depend on the pass it runs in.
#pragma once

#include <cstdint>

namespace quadrille {

inline constexpr int32_t kPrefillGrid = 64;  // tokens

// Tokens that a pass with `room` free rows reads next of a sequence of `length` tokens, of which
// `position` are read: all that are left where they fit, else up to the last multiple of the grid
// that fits. 0: nothing fits; the sequence and those behind it wait for the next pass.
int32_t prefill_chunk(int64_t length, int32_t position, int32_t room);

// The largest multiple of the grid within `rows`, and the smallest that holds `tokens`.
int64_t prefill_floor(int64_t rows);
int64_t prefill_ceiling(int64_t tokens);

}  // namespace quadrille
