// SPDX-License-Identifier: Apache-2.0
// The options of generate: defaults, every check of every option, environment against flags.
#include "jobs/generate/generate_options.h"

#include "io/prompts/option_table.h"
#include "kernels/error.h"
#include "tests/support/command_line.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using test::parse_as;
using test::usage_error;
using test::Words;

Words generate_with(const Words& more) {
    Words all = {"generate", "--target", "T", "--prompts", "p.h5", "--out", "g.h5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

GenerateOptions generate(const Words& more, const Words& environment = {}) {
    return parse_as<GenerateOptions>(generate_with(more), environment);
}

TEST(GenerateFlags, HaveTheDocumentedDefaults) {
    const GenerateOptions options = generate({});
    EXPECT_EQ(options.target, "T");
    EXPECT_EQ(options.draft, "none");
    EXPECT_EQ(options.k, 0);
    EXPECT_EQ(options.prompts, Words{"p.h5"});
    EXPECT_EQ(options.out, "g.h5");
    EXPECT_EQ(options.record.max_new_tokens, 256);
    EXPECT_EQ(options.record.temperature, 0.0);
    EXPECT_EQ(options.max_context, 0);
    EXPECT_EQ(options.seed, 0u);
    EXPECT_EQ(options.limit, 0);
    EXPECT_EQ(options.max_seqs, 0);
    EXPECT_EQ(options.max_batched_tokens, 7168);
    EXPECT_EQ(options.tp, 0);
    EXPECT_EQ(options.backend, "auto");
    EXPECT_EQ(options.comm, "auto");
    EXPECT_EQ(options.output_exists, OutputExists::fail);
    EXPECT_EQ(options.max_time, 0);
    EXPECT_EQ(options.grace, 20);
    EXPECT_EQ(options.watchdog, 300);
    EXPECT_EQ(options.heartbeat, "");
    EXPECT_EQ(options.locking, Locking::required);
    EXPECT_FALSE(options.record.ignore_eos || options.no_text || options.strict ||
                 options.fail_on_error || options.eager || options.dry_run);
    EXPECT_EQ(options.command_line, "quadrille generate --target T --prompts p.h5 --out g.h5");
}

TEST(GenerateFlags, SetWhatTheyName) {
    const GenerateOptions options = generate({"--draft=D",
                                              "--k",
                                              "3",
                                              "--max-new-tokens",
                                              "7",
                                              "--max-context",
                                              "99",
                                              "--seed",
                                              "18446744073709551615",
                                              "--ignore-eos",
                                              "--limit",
                                              "5",
                                              "--no-text",
                                              "--strict",
                                              "--fail-on-error",
                                              "--max-seqs",
                                              "4",
                                              "--max-batched-tokens",
                                              "200",
                                              "--tp",
                                              "2",
                                              "--backend",
                                              "cpu",
                                              "--comm",
                                              "mpi",
                                              "--eager",
                                              "--output-exists",
                                              "overwrite",
                                              "--dry-run"});
    EXPECT_EQ(options.draft, "D");
    EXPECT_EQ(options.k, 3);
    EXPECT_EQ(options.record.max_new_tokens, 7);
    EXPECT_EQ(options.max_context, 99);
    EXPECT_EQ(options.seed, 18446744073709551615u);
    EXPECT_EQ(options.limit, 5);
    EXPECT_EQ(options.max_seqs, 4);
    EXPECT_EQ(options.max_batched_tokens, 192);  // whole blocks of 64
    EXPECT_EQ(options.tp, 2);
    EXPECT_EQ(options.backend, "cpu");
    EXPECT_EQ(options.comm, "mpi");
    EXPECT_EQ(options.output_exists, OutputExists::overwrite);
    EXPECT_TRUE(options.record.ignore_eos && options.no_text && options.strict &&
                options.fail_on_error && options.eager && options.dry_run);
}

TEST(GenerateFlags, SeveralPromptFilesKeepTheirOrder) {
    const auto options = parse_as<GenerateOptions>(
        {"generate", "--prompts", "b", "a", "--target", "T", "--out", "o"});
    EXPECT_EQ(options.prompts, (Words{"b", "a"}));
    const auto texts = parse_as<GenerateOptions>(
        {"generate", "--prompt", "one two", "--prompt", "b", "--target", "T", "--out", "o"});
    EXPECT_EQ(texts.prompt_texts, (Words{"one two", "b"}));
}

TEST(GenerateFlags, DraftsPerStepDefaultToTwoWithADrafter) {
    EXPECT_EQ(generate({"--draft", "D"}).k, 2);
    EXPECT_EQ(generate({"--draft", "D", "--k", "0"}).k, 0);
}

TEST(GenerateFlags, EnvironmentFillsOptionsAndFlagsWin) {
    const Words environment = {"EXL3_MODEL=M",   "DFLASH_DRAFT=D",
                               "DFLASH_K=5",     "MAX_NUM_BATCHED_TOKENS=130",
                               "MAX_NUM_SEQS=3", "CUDA_GRAPHS=0"};
    const auto filled =
        parse_as<GenerateOptions>({"generate", "--prompts", "p", "--out", "o"}, environment);
    EXPECT_EQ(filled.target, "M");
    EXPECT_EQ(filled.draft, "D");
    EXPECT_EQ(filled.k, 5);
    EXPECT_EQ(filled.max_batched_tokens, 128);
    EXPECT_EQ(filled.max_seqs, 3);
    EXPECT_TRUE(filled.eager);
    EXPECT_EQ(filled.command_line, "quadrille generate --prompts p --out o");

    const GenerateOptions given =
        generate({"--draft", "none", "--k=0", "--max-seqs=7"}, environment);
    EXPECT_EQ(given.target, "T");
    EXPECT_EQ(given.draft, "none");
    EXPECT_EQ(given.k, 0);
    EXPECT_EQ(given.max_seqs, 7);
}

TEST(GenerateFlags, EnvironmentOfNoUseIsLeftAlone) {
    EXPECT_EQ(generate({}, {"MAX_NUM_SEQS=", "EXL3_MODEL="}).max_seqs, 0);
    EXPECT_EQ(generate({"--max-seqs", "2"}, {"MAX_NUM_SEQS=abc"}).max_seqs, 2);
    EXPECT_FALSE(generate({}, {"CUDA_GRAPHS=1"}).eager);
    EXPECT_NO_THROW(test::parse({"inspect", "f"}, {"MAX_NUM_SEQS=abc", "CUDA_GRAPHS=x"}));
}

struct Bad {
    Words more;
    const char* message;
    Words environment = {};
};

class BadValue : public testing::TestWithParam<Bad> {};

TEST_P(BadValue, NamesFlagExpectedAndFound) {
    const std::string message = usage_error(generate_with(GetParam().more), GetParam().environment);
    EXPECT_EQ(message.find(GetParam().message), 0u) << message;
}

INSTANTIATE_TEST_SUITE_P(
    GenerateFlags, BadValue,
    testing::Values(
        Bad{{"--k", "64"}, "--k: expected an integer from 0 to 63, found '64'"},
        Bad{{"--k", "-1"}, "--k: expected an integer from 0 to 63, found '-1'"},
        Bad{{"--k", "2"}, "--k: expected 0 without a drafter (--draft none), found 2"},
        Bad{{"--max-new-tokens", "-1"}, "--max-new-tokens: expected an integer from 0 to"},
        Bad{{"--max-new-tokens", "12x"}, "--max-new-tokens: expected an integer from 0 to"},
        Bad{{"--max-new-tokens", "1e3"}, "--max-new-tokens: expected an integer from 0 to"},
        Bad{{"--max-new-tokens", "99999999999999999999"}, "--max-new-tokens: expected"},
        Bad{{"--max-context", "1"}, "--max-context: expected an integer from 2 to"},
        Bad{{"--seed", "-1"}, "--seed: expected an integer from 0 to 2^64 - 1, found '-1'"},
        Bad{{"--seed", "18446744073709551616"}, "--seed: expected an integer from 0 to"},
        Bad{{"--limit", "0"}, "--limit: expected an integer of at least 1, found '0'"},
        Bad{{"--max-seqs", ""}, "--max-seqs: expected an integer from 1 to 4096, found ''"},
        Bad{{"--max-seqs", "4097"}, "--max-seqs: expected an integer from 1 to 4096"},
        Bad{{"--max-batched-tokens", "63"}, "--max-batched-tokens: expected an integer from 64"},
        Bad{{"--tp", "0"}, "--tp: expected an integer of at least 1, found '0'"},
        Bad{{"--backend", "gpu"}, "--backend: expected auto, cpu, cuda or check, found 'gpu'"},
        Bad{{"--comm", "tcp"}, "--comm: expected auto, mpi or nccl, found 'tcp'"},
        Bad{{"--output-exists", "ask"},
            "--output-exists: expected fail, overwrite or skip, found 'ask'"},
        Bad{{"--draft", ""}, "--draft: expected a drafter's folder or none, found an empty string"},
        Bad{{"--prompt", ""}, "--prompt: expected a text, found an empty string"},
        Bad{{"--ignore-eos=maybe"}, "--ignore-eos: expected true or false, found 'maybe'"},
        Bad{{"--nonsense"}, "unknown argument '--nonsense'"}, Bad{{"--seed"}, "--seed: 1 required"},
        Bad{{"--seed", "1", "--seed", "2"}, "--seed: "},
        Bad{{}, "MAX_NUM_SEQS: expected an integer from 1 to 4096, found '0'", {"MAX_NUM_SEQS=0"}},
        Bad{{}, "DFLASH_K: expected an integer from 0 to 63, found 'x'", {"DFLASH_K=x"}},
        Bad{{}, "CUDA_GRAPHS: expected 0 or 1, found 'yes'", {"CUDA_GRAPHS=yes"}}));

TEST(GenerateFlags, TimesHaveUnitsOrColons) {
    const std::pair<const char*, int64_t> good[] = {{"90", 90},
                                                    {"90s", 90},
                                                    {"45m", 2700},
                                                    {"2h", 7200},
                                                    {"1d", 86400},
                                                    {"1:30", 90},
                                                    {"1:30:00", 5400},
                                                    {"100:00:59", 360059},
                                                    {"1000000000", 1'000'000'000},
                                                    {"1-00", 86400},
                                                    {"2-01:30", 178200},
                                                    {"0-00:00:07", 7},
                                                    {"1-12:30:15", 131415}};
    for (const auto& [text, seconds] : good) {
        EXPECT_EQ(generate({"--max-time", text}).max_time, seconds) << text;
    }
    for (const char* text : {"",
                             "0",
                             "-1",
                             "1.5",
                             "m",
                             "1:60",
                             "1:2:3:4",
                             "1:30m",
                             "1:",
                             ":1",
                             "2w",
                             "1000000001",
                             "99999999999d",
                             "1h30m",
                             " 1",
                             "1000000000:00",
                             "1-",
                             "-1:00",
                             "1-24",
                             "1-23:60",
                             "1-1:2:3:4",
                             "1-1:",
                             "1-2-3",
                             "1-2h",
                             "99999999-00"}) {
        EXPECT_EQ(usage_error(generate_with({"--max-time", text})),
                  std::string("--max-time: expected a time of at least 1 s such as 90, 45m, 2h, "
                              "1:30:00 or 1-12:00:00, found '") +
                      text + "' (see quadrille generate --help)");
    }
    EXPECT_EQ(generate({"--grace", "0"}).grace, 0);
    EXPECT_EQ(generate({"--watchdog", "0"}).watchdog, 0);
    EXPECT_EQ(generate({"--watchdog", "1m"}).watchdog, 60);
    EXPECT_EQ(usage_error(generate_with({"--watchdog", "3"})),
              "--watchdog: expected 0 (off) or at least 4 s, found 3");
}

TEST(GenerateFlags, LockingIsThatOfHdf5) {
    EXPECT_EQ(generate({}, {"HDF5_USE_FILE_LOCKING=FALSE"}).locking, Locking::off);
    EXPECT_EQ(generate({}, {"HDF5_USE_FILE_LOCKING=0"}).locking, Locking::off);
    EXPECT_EQ(generate({}, {"HDF5_USE_FILE_LOCKING=BEST_EFFORT"}).locking, Locking::best_effort);
    EXPECT_EQ(generate({}, {"HDF5_USE_FILE_LOCKING=TRUE"}).locking, Locking::required);
}

INSTANTIATE_TEST_SUITE_P(
    Sampling, BadValue,
    testing::Values(
        Bad{{"--temperature", "-0.1"},
            "--temperature: expected a finite number of at least 0, found '-0.1'"},
        Bad{{"--temperature", "inf"}, "--temperature: expected a finite number"},
        Bad{{"--temperature", "nan"}, "--temperature: expected a finite number"},
        Bad{{"--temperature", "warm"}, "--temperature: expected a finite number"},
        Bad{{"--top-p", "0"}, "--top-p: expected a number above 0 to 1, found '0'"},
        Bad{{"--top-p", "1.01"}, "--top-p: expected a number above 0 to 1, found '1.01'"},
        Bad{{"--top-k", "-1"}, "--top-k: expected an integer from 0 to 2147483647, found '-1'"},
        Bad{{"--top-k", "1.5"}, "--top-k: expected an integer from 0 to"},
        Bad{{"--min-p", "-0.1"}, "--min-p: expected a number from 0 to 1, found '-0.1'"},
        Bad{{"--repetition-penalty", "0"},
            "--repetition-penalty: expected a finite number above 0, found '0'"},
        Bad{{"--logprobs", "257"}, "--logprobs: expected an integer from 0 to 256, found '257'"},
        Bad{{"--n", "0"}, "--n: expected an integer from 1 to 1048576, found '0'"},
        Bad{{"--accept", "always"}, "--accept: expected coupled or rejection, found 'always'"},
        Bad{{"--shard", "4/4"}, "--shard: expected I/N with 0 <= I < N, found '4/4'"},
        Bad{{"--shard", "-1/4"}, "--shard: expected I/N with 0 <= I < N, found '-1/4'"},
        Bad{{"--shard", "1"}, "--shard: expected I/N with 0 <= I < N, found '1'"},
        Bad{{"--shard", "1/2/3"}, "--shard: expected I/N with 0 <= I < N, found '1/2/3'"},
        Bad{{"--shard", "0/0"}, "--shard: expected I/N with 0 <= I < N, found '0/0'"}));

TEST(GenerateFlags, EveryRecordFlagHasItsTypeAndRange) {
    const auto bad = [](const std::string& name, const std::string& value) {
        std::string flag = "--" + name;
        std::ranges::replace(flag, '_', '-');
        const std::string message = usage_error(generate_with({flag, value}));
        EXPECT_TRUE(message.starts_with(flag + ": expected ")) << message;
        EXPECT_NE(message.find("found '" + value + "'"), std::string::npos) << message;
    };
    for (const options::IntOption& option : options::kInts) {
        if (option.name == std::string("ignore_eos")) continue;  // a switch
        if (option.name == std::string("score_from")) continue;  // of score
        for (const char* value : {"", "x", "1.5", "1e3", "0x1", " 1", "18446744073709551616"}) {
            bad(option.name, value);
        }
        bad(option.name, fmt::format("{}", option.low - 1));
        if (option.name != std::string("seed"))
            bad(option.name, fmt::format("{}", option.high + 1));
    }
    for (const options::FloatOption& option : options::kFloats) {
        for (const char* value : {"", "x", "nan", "inf", "-inf", "-0.5", "0,5", "1e999", " 1"}) {
            bad(option.name, value);
        }
        if (!option.low_allowed) bad(option.name, "0");
        if (option.high == 1.0) bad(option.name, "1.5");
    }
}

TEST(GenerateFlags, SamplingFlagsSetWhatTheyName) {
    const RecordOptions usual;
    const GenerateOptions plain = generate({});
    EXPECT_EQ(plain.record.top_p, usual.top_p);
    EXPECT_EQ(plain.record.logprobs, -1);
    EXPECT_EQ(plain.record.seed, -1);
    EXPECT_EQ(plain.record.samples, 1);
    EXPECT_EQ(plain.accept, AcceptRule::coupled);
    EXPECT_EQ(plain.shard.count, 1);
    const GenerateOptions options =
        generate({"--temperature", "0.7", "--top-p=0.9", "--top-k", "40", "--min-p", "0.05",
                  "--repetition-penalty", "1.1", "--logprobs", "5", "--n", "3", "--seed", "9",
                  "--accept", "rejection", "--shard", "2/5"});
    EXPECT_EQ(options.record.temperature, 0.7);
    EXPECT_EQ(options.record.top_p, 0.9);
    EXPECT_EQ(options.record.top_k, 40);
    EXPECT_EQ(options.record.min_p, 0.05);
    EXPECT_EQ(options.record.repetition_penalty, 1.1);
    EXPECT_EQ(options.record.logprobs, 5);
    EXPECT_EQ(options.record.seed, -1);  // the run's seed is not a record's
    EXPECT_EQ(options.seed, 9u);
    EXPECT_EQ(options.record.samples, 3);
    EXPECT_EQ(options.accept, AcceptRule::rejection);
    EXPECT_EQ(options.shard.index, 2);
    EXPECT_EQ(options.shard.count, 5);
}

TEST(GenerateFlags, MissingOnesAreNamed) {
    EXPECT_EQ(usage_error({"generate"}),
              "--target: expected a checkpoint folder (or EXL3_MODEL), found nothing");
    EXPECT_EQ(usage_error({"generate", "--target", "T"}),
              "--prompts: expected at least one prompts file (or --prompt TEXT), found nothing");
}

}  // namespace
}  // namespace quadrille
