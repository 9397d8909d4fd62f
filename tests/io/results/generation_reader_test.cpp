// SPDX-License-Identifier: Apache-2.0
// Results come back as they were written; damaged ones are refused.
#include "io/results/generation_reader.h"

#include "io/h5/schema.h"
#include "io/results/result_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_results.h"
#include "tests/support/results_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace quadrille {
namespace {

using test::expect_equal;
using test::expect_error;
using test::make_generation;
using GenerationReaderTest = test::ResultsFolderTest;

namespace fs = std::filesystem;

// Log-probabilities with two alternatives, with one, or not even the chosen token's.
Generation generation_of(const RecordKey& key) {
    Generation g = make_generation(key.prompt_index, 4 + key.source * 9 + key.sample, 3);
    g.source = key.source;
    g.sample = key.sample;
    const int32_t alternatives = key.sample == 0 ? 2 : key.source == 0 ? 1 : -1;
    if (alternatives < 0) return g;
    for (size_t i = 0; i < g.tokens.size(); ++i) {
        g.chosen_logprobs.push_back(-0.5f * static_cast<float>(i));
        for (int32_t j = 0; j < alternatives; ++j) {
            g.top_ids.push_back(g.tokens[i] + j);
            g.top_logprobs.push_back(-0.25f * static_cast<float>(j));
        }
    }
    return g;
}

TEST_F(GenerationReaderTest, RoundTripsEverything) {
    const Ids numbers = std::vector<int64_t>{7, -5};
    const Ids none;
    ResultOptions o = options(0, 3);
    o.ids = {&numbers, &none};
    o.layout.sources = {"one.h5", "two.h5"};
    o.layout.trace = true;
    o.layout.logprobs = 2;
    for (const int32_t source : {0, 1})
        for (const int64_t index : {0, 1})
            for (const int32_t sample : {0, 1}) o.records.push_back({source, index, sample});
    std::vector<Generation> made;
    for (const RecordKey& key : o.records) made.push_back(generation_of(key));
    ResultWriter writer(o);
    EXPECT_TRUE(writer.layout().origin);
    for (size_t i = made.size(); i-- > 0;) writer.add(made[i]);
    EXPECT_TRUE(writer.is_done({1, 1, 1}));
    writer.finish({});
    const GenerationReader reader(out_, schema::kGenerations);
    EXPECT_TRUE(reader.is_complete());
    EXPECT_EQ(reader.layout(), writer.layout());
    const auto read = reader.read(0, reader.record_count());
    ASSERT_EQ(read.size(), made.size());
    for (size_t i = 0; i < made.size(); ++i) {
        expect_equal(read[i], made[i]);
        EXPECT_EQ(read[i].acceptance.trace, made[i].acceptance.trace);
        EXPECT_EQ(read[i].chosen_logprobs.size(), made[i].tokens.size());
        if (made[i].sample == 0) {
            EXPECT_EQ(read[i].chosen_logprobs, made[i].chosen_logprobs);
            EXPECT_EQ(read[i].top_ids, made[i].top_ids);
            EXPECT_EQ(read[i].top_logprobs, made[i].top_logprobs);
        } else if (made[i].source == 0) {  // asked for one alternative of the file's two
            EXPECT_EQ(read[i].chosen_logprobs, made[i].chosen_logprobs);
            for (size_t t = 0; t < made[i].tokens.size(); ++t) {
                EXPECT_EQ(read[i].top_ids[2 * t], made[i].top_ids[t]);
                EXPECT_EQ(read[i].top_ids[2 * t + 1], -1);
                EXPECT_EQ(read[i].top_logprobs[2 * t], made[i].top_logprobs[t]);
                EXPECT_TRUE(std::isnan(read[i].top_logprobs[2 * t + 1]));
            }
        } else {
            EXPECT_TRUE(std::isnan(read[i].chosen_logprobs.front()));
            EXPECT_EQ(read[i].top_ids, std::vector<int32_t>(2 * made[i].tokens.size(), -1));
        }
    }
    // Ids of different kinds become strings; a file without ids has empty ones.
    EXPECT_EQ(read[2].id, RecordId("-5"));
    EXPECT_EQ(read[4].id, RecordId(""));
    const auto slice = reader.read(3, 2);
    expect_equal(slice[0], made[3]);
    expect_equal(slice[1], made[4]);
}

TEST_F(GenerationReaderTest, RejectsDamagedResults) {
    write_complete(3);
    const auto damaged = [&](const std::function<void(h5::File&)>& change,
                             std::initializer_list<std::string> parts) {
        const auto copy = folder_ / "copy.h5";
        fs::copy_file(out_, copy, fs::copy_options::overwrite_existing);
        {
            h5::File file = h5::File::open_write(copy);
            change(file);
        }
        expect_error(ErrorKind::input, parts, [&] {
            const GenerationReader reader(copy, schema::kGenerations);
            reader.read(0, reader.record_count());
        });
    };
    damaged([](h5::File& f) { f.set_attribute("kind", "prompts"); }, {"copy.h5", "'prompts'"});
    damaged([](h5::File& f) { f.set_attribute("quadrille_format", int64_t{9}); }, {"newer"});
    damaged(
        [](h5::File& f) {
            f.dataset("generations/status").write<uint8_t>(1, std::vector<uint8_t>{3});
        },
        {"/generations/status[1]", "3", "0 to 2"});
    damaged(
        [](h5::File& f) {
            f.dataset("generations/offsets").write<int64_t>(1, std::vector<int64_t>{100});
        },
        {"/generations/offsets[2]", "falls"});
}

}  // namespace
}  // namespace quadrille
