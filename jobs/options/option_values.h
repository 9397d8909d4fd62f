// SPDX-License-Identifier: Apache-2.0
// Values of flags that several jobs have, as their options hold them.
#pragma once

#include <cstdint>

namespace quadrille {

enum class OutputExists { fail, overwrite, skip };

// Every count-th prompt, the index-th first.
struct Shard {
    int64_t index = 0;
    int64_t count = 1;
};

}  // namespace quadrille
