// SPDX-License-Identifier: Apache-2.0
// Largest resident size of this process so far, in KiB.
#pragma once

#include <cstdint>
#include <sys/resource.h>

namespace quadrille::test {

inline int64_t peak_memory_kib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

}  // namespace quadrille::test
