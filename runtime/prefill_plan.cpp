// SPDX-License-Identifier: Apache-2.0
#include "runtime/prefill_plan.h"

#include <algorithm>

namespace quadrille {

int32_t prefill_chunk(int64_t length, int32_t position, int32_t room) {
    const int64_t left = length - position;
    if (left <= room) return static_cast<int32_t>(left);
    const int64_t chunk = prefill_floor(int64_t{position} + room) - position;
    return static_cast<int32_t>(std::max<int64_t>(chunk, 0));
}

int64_t prefill_floor(int64_t rows) {
    return rows / kPrefillGrid * kPrefillGrid;
}

int64_t prefill_ceiling(int64_t tokens) {
    return prefill_floor(tokens + kPrefillGrid - 1);
}

}  // namespace quadrille
