// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/token_history.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {

TokenHistory::TokenHistory(Backend& backend, int32_t slots, int64_t vocab_size)
    : backend_(backend),
      words_((vocab_size + 31) / 32),
      host_(static_cast<size_t>(slots * words_)),
      device_(backend, slots, words_),
      marks_(backend, 2, kMarks) {}

const uint32_t* TokenHistory::on_host(int32_t slot) const {
    return host_.data() + slot * words_;
}

void TokenHistory::start(int32_t slot, std::span<const int32_t> tokens) {
    flush();  // marks of the slot's last record
    std::fill_n(host_.begin() + slot * words_, words_, 0u);
    backend_.fill_zero(device_.view().row(slot), words_ * int64_t{sizeof(uint32_t)});
    add(slot, tokens);
}

void TokenHistory::add(int32_t slot, std::span<const int32_t> tokens) {
    uint32_t* const words = host_.data() + slot * words_;
    for (const int32_t token : tokens) {
        require(token >= 0 && token / 32 < words_, "a token of the vocabulary");
        const uint32_t bit = 1u << (token % 32);
        if ((words[token / 32] & bit) != 0) continue;
        words[token / 32] |= bit;
        slots_.push_back(slot);
        tokens_.push_back(token);
    }
}

void TokenHistory::flush() {
    for (size_t first = 0; first < tokens_.size(); first += kMarks) {
        const size_t count = std::min<size_t>(kMarks, tokens_.size() - first);
        const auto at = static_cast<int64_t>(first);
        const auto size = static_cast<int64_t>(count);
        staged_.assign(slots_.begin() + at, slots_.begin() + at + size);
        staged_.insert(staged_.end(), tokens_.begin() + at, tokens_.begin() + at + size);
        marks_.upload(staged_);
        backend_.mark_seen(device_.view(), marks_.data(), marks_.data() + count,
                           static_cast<int32_t>(count));
    }
    slots_.clear();
    tokens_.clear();
}

}  // namespace quadrille
