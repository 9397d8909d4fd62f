// SPDX-License-Identifier: Apache-2.0
// Options of records in prompts files: columns and attributes, what wins, what is refused.
#include "io/prompts/prompt_options.h"

#include "io/prompts/option_table.h"
#include "io/prompts/prompt_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/prompts_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace quadrille {
namespace {

using test::expect_error;
using Maker = test::PromptsMaker;
using PromptOptionsTest = test::PromptsFileTest;

const double kNaN = std::nan("");

TEST_F(PromptOptionsTest, ColumnBeatsAttributeBeatsFlagBeatsDefault) {
    RecordOptions flags;
    flags.temperature = 0.5;
    flags.top_k = 40;
    flags.max_new_tokens = 10;
    flags.stop_text = {"flag"};
    const PromptReader reader = open(
        [](Maker& m) {
            m.tokens()
                .floats("temperature", {kNaN, 0.25, 0.0})
                .attribute("temperature", 0.75)
                .ints("max_new_tokens", {-1, 7, -1})
                .attribute("top_k", int64_t{-1})
                .attribute("min_p", int64_t{0})
                .ints("ignore_eos", {-1, 1, 0})
                .attribute("ignore_eos", int64_t{1})
                .ints("seed", {-1, 0, 9})
                .ints("stop_tokens", {1, 2, 3})
                .ints("stop_tokens_offsets", {0, 2, 2, 3})
                .attribute("stop_tokens", std::vector<int64_t>{8})
                .strings("stop_text", {"a", "b"})
                .ints("stop_text_offsets", {0, 0, 2, 2});
        },
        flags);
    const auto p = reader.read(0, 3);
    EXPECT_EQ(errors(p), std::vector<std::string>(3));
    EXPECT_EQ(p[0].options.temperature, 0.75);
    EXPECT_EQ(p[1].options.temperature, 0.25);
    EXPECT_EQ(p[2].options.temperature, 0.0);
    EXPECT_EQ(p[0].options.max_new_tokens, 10);
    EXPECT_EQ(p[1].options.max_new_tokens, 7);
    EXPECT_EQ(p[0].options.top_k, 40);
    EXPECT_EQ(p[0].options.top_p, 1.0);
    EXPECT_TRUE(p[0].options.ignore_eos);
    EXPECT_TRUE(p[1].options.ignore_eos);
    EXPECT_FALSE(p[2].options.ignore_eos);
    EXPECT_EQ(p[0].options.seed, -1);
    EXPECT_EQ(p[1].options.seed, 0);
    EXPECT_EQ(p[2].options.seed, 9);
    EXPECT_EQ(p[0].options.stop_tokens, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(p[1].options.stop_tokens, (std::vector<int32_t>{8}));
    EXPECT_EQ(p[2].options.stop_tokens, (std::vector<int32_t>{3}));
    EXPECT_EQ(p[0].options.stop_text, (std::vector<std::string>{"flag"}));
    EXPECT_EQ(p[1].options.stop_text, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(reader.largest_max_new_tokens(), 10);
    EXPECT_EQ(reader.largest_total(), 13);
    // A slice sees the same as the whole.
    const auto slice = reader.read(1, 2);
    EXPECT_EQ(slice[0].options.stop_text, p[1].options.stop_text);
    EXPECT_EQ(slice[1].options.stop_tokens, p[2].options.stop_tokens);
    EXPECT_EQ(slice[1].options.seed, 9);
}

TEST_F(PromptOptionsTest, NamesBothLengthsOfAColumnThatDoesNotFit) {
    for (const std::string& name : PromptOptions::names()) {
        if (name.starts_with("stop_")) continue;
        const bool floating = name == "temperature" || name == "top_p" || name == "min_p" ||
                              name == "repetition_penalty";
        rejects({"/prompts/" + name, "length 2", "3 records"}, [&](Maker& m) {
            floating ? m.tokens().floats(name, {1, 1}) : m.tokens().ints(name, {1, 1});
        });
    }
    rejects({"/prompts/id", "length 4", "3 records"}, [](Maker& m) {
        m.tokens().ints("id", {1, 2, 3, 4});
    });
    rejects({"/prompts/top_k", "each of 3 records", "int64 [3, 1]"}, [](Maker& m) {
        m.tokens().group().create_dataset("top_k", h5::Element::i64, {3, 1});
    });
    rejects({"/prompts/stop_tokens_offsets", "length 3", "expected 4"}, [](Maker& m) {
        m.tokens().ints("stop_tokens", {}).ints("stop_tokens_offsets", {0, 0, 0});
    });
    rejects({"/prompts/stop_tokens_offsets", "no such dataset"},
            [](Maker& m) { m.tokens().ints("stop_tokens", {1}); });
    rejects({"stop_text_offsets without stop_text"}, [](Maker& m) {
        m.tokens().ints("stop_text_offsets", {0, 0, 0, 0});
    });
}

TEST_F(PromptOptionsTest, ReportsValuesOutOfRangePerRecord) {
    const double infinity = std::numeric_limits<double>::infinity();
    const std::map<std::string, std::vector<double>> bad = {
        {"max_new_tokens", {-3, -2, 1e12}},
        {"top_k", {-2, -7, 1e12}},
        {"seed", {-2, -3, -9}},
        {"logprobs", {-2, 257, 1e6}},
        {"ignore_eos", {2, -2, 9}},
        {"temperature", {-0.1, infinity, -infinity}},
        {"top_p", {0, 1.01, -1}},
        {"min_p", {-0.1, 1.1, infinity}},
        {"repetition_penalty", {0, -1, infinity}}};
    for (const auto& [name, values] : bad) {
        const bool floating = name == "temperature" || name == "top_p" || name == "min_p" ||
                              name == "repetition_penalty";
        for (size_t record = 0; record < 3; ++record) {
            std::vector<double> column(3, floating ? kNaN : -1);
            column[record] = values[record];
            const auto prompts =
                open([&](Maker& m) {
                    m.tokens();
                    floating ? m.floats(name, column)
                             : m.ints(name, std::vector<int64_t>(column.begin(), column.end()));
                }).read(0, 3);
            for (size_t i = 0; i < 3; ++i) {
                if (i == record)
                    EXPECT_TRUE(prompts[i].error.starts_with(name + " is ")) << prompts[i].error;
                else
                    EXPECT_EQ(prompts[i].error, "") << name;
            }
        }
    }
}

TEST_F(PromptOptionsTest, ReportsBadStopListsPerRecord) {
    const auto prompts = open([](Maker& m) {
                             m.tokens()
                                 .ints("stop_tokens", {900, 4})
                                 .ints("stop_tokens_offsets", {0, 1, 2, 2})
                                 .strings("stop_text", {"", "\xFF"})
                                 .ints("stop_text_offsets", {0, 0, 1, 2});
                         }).read(0, 3, {.vocab_size = 768});
    EXPECT_EQ(errors(prompts), (std::vector<std::string>{"stop token 900 is outside 0 to 767",
                                                         "stop_text holds an empty string",
                                                         "stop_text is not UTF-8"}));
}

TEST_F(PromptOptionsTest, RejectsAttributesThatNoRecordCanUse) {
    rejects({"/prompts", "attribute top_p", "1.5"},
            [](Maker& m) { m.tokens().attribute("top_p", 1.5); });
    rejects({"attribute max_new_tokens", "-2"},
            [](Maker& m) { m.tokens().attribute("max_new_tokens", int64_t{-2}); });
    rejects({"attribute top_k", "an integer", "0.5"},
            [](Maker& m) { m.tokens().attribute("top_k", 0.5); });
    rejects({"attribute temperature", "a number", "hot"},
            [](Maker& m) { m.tokens().attribute("temperature", "hot"); });
    rejects({"attribute stop_tokens", "token ids", "-4"}, [](Maker& m) {
        m.tokens().attribute("stop_tokens", std::vector<int64_t>{1, -4});
    });
    rejects({"attribute stop_text", "non-empty"},
            [](Maker& m) { m.tokens().attribute("stop_text", ""); });
}

TEST_F(PromptOptionsTest, EveryAttributeHasItsTypeAndRange) {
    const auto rejected = [&](const std::string& name, const h5::Value& value,
                              const std::string& expected, const std::string& found) {
        rejects({"/prompts, attribute " + name, "expected " + expected, "found " + found},
                [&](Maker& m) { m.tokens().attribute(name, value); });
    };
    for (const options::IntOption& option : options::kInts) {
        rejected(option.name, "1", "an integer", "\"1\"");
        rejected(option.name, 1.0, "an integer", "1.0");
        rejected(option.name, std::vector<int64_t>{1, 1}, "an integer", "[1, 1]");
        const int64_t low = option.low > 0 ? option.low - 1 : -2;  // -1 is the default's marker
        rejected(option.name, low, option.range(), fmt::format("{}", low));
        if (option.high == std::numeric_limits<int64_t>::max()) continue;
        rejected(option.name, option.high + 1, option.range(), fmt::format("{}", option.high + 1));
    }
    for (const options::FloatOption& option : options::kFloats) {
        rejected(option.name, "0.5", "a number", "\"0.5\"");
        rejected(option.name, std::vector<double>{0.5, 0.5}, "a number", "[0.5, 0.5]");
        rejected(option.name, -0.5, option.range(), "-0.5");
        if (!option.low_allowed) rejected(option.name, int64_t{0}, option.range(), "0");
        rejected(option.name, std::numeric_limits<double>::infinity(), option.range(), "inf");
        if (option.high == 1.0) rejected(option.name, 1.5, option.range(), "1.5");
    }
    for (const h5::Value& value : {h5::Value(int64_t{1}), h5::Value(std::vector<double>{1.0})})
        rejected("stop_text", value, "strings", h5::describe(value));
    for (const h5::Value& value : {h5::Value("x"), h5::Value(1.5)})
        rejected("stop_tokens", value, "token ids", "");
    rejected("stop_tokens", int64_t{1} << 31, "token ids", "2147483648");
}

TEST_F(PromptOptionsTest, RefusesWhatTheJobDoesNotHonour) {
    const std::set<std::string> honoured = {"max_new_tokens", "ignore_eos"};
    rejects(
        {"/prompts/temperature[1] is 0.7", "does not support temperature"},
        [](Maker& m) {
            m.tokens().floats("temperature", {0, 0.7, kNaN});
        },
        honoured);
    rejects(
        {"/prompts/top_k[2] is 5"},
        [](Maker& m) {
            m.tokens().ints("top_k", {-1, 0, 5});
        },
        honoured);
    rejects(
        {"/prompts/seed[0] is 0"},
        [](Maker& m) {
            m.tokens().ints("seed", {0, -1, -1});
        },
        honoured);
    rejects(
        {"/prompts/logprobs[0] is 0"},
        [](Maker& m) {
            m.tokens().ints("logprobs", {0, -1, -1});
        },
        honoured);
    rejects(
        {"attribute top_p", "does not support"},
        [](Maker& m) { m.tokens().attribute("top_p", 0.5); }, honoured);
    rejects(
        {"attribute stop_text", "does not support"},
        [](Maker& m) { m.tokens().attribute("stop_text", "x"); }, honoured);
    rejects(
        {"/prompts/stop_text", "does not support"},
        [](Maker& m) {
            m.tokens().strings("stop_text", {"x"}).ints("stop_text_offsets", {0, 0, 0, 1});
        },
        honoured);
    const PromptReader reader = open(
        [](Maker& m) {
            m.tokens()
                .floats("temperature", {0, kNaN, 0})
                .floats("top_p", {1, kNaN, kNaN})
                .ints("seed", {-1, -1, -1})
                .ints("stop_tokens", {})
                .ints("stop_tokens_offsets", {0, 0, 0, 0})
                .attribute("repetition_penalty", int64_t{1})
                .attribute("logprobs", int64_t{-1})
                .ints("ignore_eos", {1, 0, 1});
        },
        {}, honoured);
    EXPECT_TRUE(reader.read(0, 1)[0].options.ignore_eos);
}

}  // namespace
}  // namespace quadrille
