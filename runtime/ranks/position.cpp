// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/position.h"

#include <fmt/format.h>

#include <utility>

namespace quadrille {

std::string position_text(int64_t step, int32_t layer, const char* op) {
    const std::string at = step < 0 ? "start-up" : fmt::format("step {}", step);
    const std::string in = layer < 0 ? "" : fmt::format(", layer {}", layer);
    return fmt::format("{}{}, op {}", at, in, op);
}

void Position::begin(const char* phase) {
    about({});
    op_.store(phase, std::memory_order_relaxed);
    busy_.store(true, std::memory_order_relaxed);
}

void Position::about(std::string subject) {
    const std::lock_guard lock(mutex_);
    subject_ = std::move(subject);
    signs_.store(signs_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

std::string Position::text() const {
    std::string text = position_text(step(), layer(), op());
    const std::lock_guard lock(mutex_);
    if (step() < 0 && !subject_.empty()) text += ", " + subject_;
    return text;
}

}  // namespace quadrille
