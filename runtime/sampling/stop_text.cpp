// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/stop_text.h"

#include <algorithm>

namespace quadrille {

int64_t StopText::add(std::string_view bytes, std::span<const std::string> stops) {
    held_ += bytes;
    size_t first = std::string::npos;
    size_t longest = 1;
    for (const std::string& stop : stops) {
        first = std::min(first, held_.find(stop));
        longest = std::max(longest, stop.size());
    }
    if (first != std::string::npos) return before_ + static_cast<int64_t>(first);
    // A stop string that is not complete needs at most its length less one.
    if (held_.size() >= longest) {
        const size_t gone = held_.size() - (longest - 1);
        held_.erase(0, gone);
        before_ += static_cast<int64_t>(gone);
    }
    return kNone;
}

}  // namespace quadrille
