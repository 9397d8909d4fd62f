// SPDX-License-Identifier: Apache-2.0
// RowLayout: builds the Rows of a pass for op tests, sequence by sequence.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <vector>

namespace quadrille::test {

class RowLayout {
  public:
    explicit RowLayout(bool commit = false) : commit_(commit) {}

    // Appends a sequence of `count` rows; returns its first row.
    int32_t add(int32_t slot, int32_t position, int32_t count, int32_t pending = 0) {
        const int32_t first = begin_.back();
        row_sequence_.insert(row_sequence_.end(), static_cast<size_t>(count),
                             static_cast<int32_t>(slot_.size()));
        begin_.push_back(first + count);
        slot_.push_back(slot);
        position_.push_back(position);
        pending_.push_back(pending);
        return first;
    }
    int32_t m() const { return begin_.back(); }
    Rows rows() const {
        Rows rows;
        rows.m = m();
        rows.sequences = static_cast<int32_t>(slot_.size());
        rows.begin = begin_.data();
        rows.slot = slot_.data();
        rows.position = position_.data();
        rows.pending = pending_.data();
        rows.row_sequence = row_sequence_.data();
        rows.commit = commit_;
        return rows;
    }

  private:
    bool commit_;
    std::vector<int32_t> begin_{0};
    std::vector<int32_t> slot_;
    std::vector<int32_t> position_;
    std::vector<int32_t> pending_;
    std::vector<int32_t> row_sequence_;
};

}  // namespace quadrille::test
