// SPDX-License-Identifier: Apache-2.0
// Memory of this machine, as Linux tells it. -1: it does not.
#pragma once

#include <cstdint>

namespace quadrille {

// Bytes that processes may still take without anything being swapped: MemAvailable, or less where a
// control group limits this process.
int64_t available_host_memory();

}  // namespace quadrille
