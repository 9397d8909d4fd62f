// SPDX-License-Identifier: Apache-2.0
// Results that a test writes to a folder of its own, and whether they came back.
#pragma once

#include "io/results/result_writer.h"
#include "tests/support/made_results.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

namespace quadrille::test {

inline void expect_equal(const Generation& a, const Generation& b) {
    EXPECT_EQ(key_of(a), key_of(b));
    EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.status, b.status);
    EXPECT_EQ(a.finish_reason, b.finish_reason);
    EXPECT_EQ(a.error, b.error);
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.acceptance.steps, b.acceptance.steps);
    EXPECT_EQ(a.acceptance.drafted, b.acceptance.drafted);
    EXPECT_EQ(a.acceptance.accepted, b.acceptance.accepted);
    EXPECT_EQ(a.acceptance.emitted, b.acceptance.emitted);
    EXPECT_EQ(a.acceptance.by_position, b.acceptance.by_position);
    EXPECT_EQ(a.acceptance.histogram, b.acceptance.histogram);
}

class ResultsFolderTest : public testing::Test {
  protected:
    ResultOptions options(int64_t records, int64_t k = 2) const {
        ResultOptions o;
        o.out = out_;
        o.layout.k = k;
        o.layout.text = true;
        o.records = first_records(records);
        o.fingerprint = {{"k", k}, {"prompts", "abc"}};
        return o;
    }
    std::filesystem::path parts() const { return out_.string() + ".parts"; }

    void write_complete(int64_t records) const {
        ResultWriter writer(options(records));
        for (int64_t i = 0; i < records; ++i) writer.add(make_generation(i, 3, 2));
        writer.finish({});
    }

    TempFolder folder_;
    std::filesystem::path out_ = folder_ / "generations.h5";
};

}  // namespace quadrille::test
