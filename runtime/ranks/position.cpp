// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/position.h"

#include <fmt/format.h>

namespace quadrille {

std::string position_text(int64_t step, int32_t layer, const char* op) {
    const std::string at = step < 0 ? "start-up" : fmt::format("step {}", step);
    const std::string in = layer < 0 ? "" : fmt::format(", layer {}", layer);
    return fmt::format("{}{}, op {}", at, in, op);
}

std::string Position::text() const {
    return position_text(step(), layer(), op());
}

}  // namespace quadrille
