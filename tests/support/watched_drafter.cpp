// SPDX-License-Identifier: Apache-2.0
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

namespace quadrille::test {

void WatchedDrafter::append(View<const float> taps, std::span<const uint8_t> write,
                            const Rows& rows) {
    EXPECT_EQ(std::ssize(write), rows.m);
    EXPECT_EQ(taps.rows, rows.m);
    for (int32_t i = 0; i < rows.sequences; ++i) {
        int32_t& length = context_[rows.slot[i]];
        if (rows.position[i] == 0) length = 0;
        EXPECT_EQ(length, rows.position[i]) << "context rows begin where the last ones ended";
        bool open = true;
        for (int32_t row = rows.begin[i]; row < rows.begin[i + 1]; ++row) {
            const bool kept = write[static_cast<size_t>(row)] != 0;
            EXPECT_TRUE(open || !kept) << "a kept row behind a rejected one";
            open = kept;
            length += int32_t{kept};
        }
    }
    if (inner_ != nullptr) inner_->append(taps, write, rows);
}

void WatchedDrafter::propose(std::span<int32_t> drafts, int32_t k,
                             std::span<const DraftRequest> requests) {
    ++proposals_;
    EXPECT_EQ(std::ssize(drafts), std::ssize(requests) * k);
    if (inner_ != nullptr) inner_->propose(drafts, k, requests);
    size_t at = 0;
    for (const DraftRequest& request : requests) {
        EXPECT_EQ(context_[request.slot], request.position) << "the anchor has no context row";
        for (int32_t place = 1; place <= k; ++place, ++at) {
            if (inner_ == nullptr) drafts[at] = script_(request, place);
            drafts_[request.record].push_back(drafts[at]);
        }
    }
}

}  // namespace quadrille::test
