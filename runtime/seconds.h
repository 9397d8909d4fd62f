// SPDX-License-Identifier: Apache-2.0
// Durations as they are counted and reported: seconds on the steady clock.
#pragma once

#include <chrono>

namespace quadrille {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace quadrille
