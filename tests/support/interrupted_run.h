// SPDX-License-Identifier: Apache-2.0
// Runs of a test that end before they are done, and what a whole one would have left.
#pragma once

#include "io/h5/schema.h"
#include "io/results/generation_reader.h"
#include "io/results/result_writer.h"
#include "tests/support/made_results.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille::test {

class InterruptedRunTest : public testing::Test {
  protected:
    ResultOptions options(int64_t records = 6) const {
        ResultOptions o;
        o.out = out_;
        o.layout.k = 2;
        o.layout.text = true;
        o.records = first_records(records);
        o.fingerprint = {{"k", int64_t{2}}, {"temperature", 0.0}, {"prompts_digest", "abc"}};
        return o;
    }
    // A start that ends before the run does: a part for each list of records.
    void start(const std::vector<std::vector<int64_t>>& parts_of_records) const {
        ResultWriter writer(options());
        for (const auto& records : parts_of_records) {
            for (const int64_t record : records) writer.add(make_generation(record, 3 + record, 2));
            writer.commit();
        }
    }
    void complete(ResultWriter& writer, int64_t records = 6) const {
        for (int64_t i = 0; i < records; ++i)
            if (!writer.is_done({.prompt_index = i})) writer.add(make_generation(i, 3 + i, 2));
        writer.finish({});
    }
    void expect_whole(int64_t records = 6) const {
        const GenerationReader reader(out_, schema::kGenerations);
        EXPECT_TRUE(reader.is_complete());
        ASSERT_EQ(reader.record_count(), records);
        const auto read = reader.read(0, records);
        for (int64_t i = 0; i < records; ++i)
            EXPECT_EQ(read[static_cast<size_t>(i)].tokens, make_generation(i, 3 + i, 2).tokens);
    }
    std::filesystem::path parts() const { return out_.string() + ".parts"; }
    std::filesystem::path part(int number) const {
        return parts() / ("part-0-00000" + std::to_string(number) + ".h5");
    }

    TempFolder folder_;
    std::filesystem::path out_ = folder_ / "generations.h5";
};

}  // namespace quadrille::test
