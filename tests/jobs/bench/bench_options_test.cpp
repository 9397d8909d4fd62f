// SPDX-License-Identifier: Apache-2.0
// The flags of bench: defaults, every flag, bad values.
#include "jobs/bench/bench_options.h"

#include "tests/support/command_line.h"

#include <gtest/gtest.h>

#include <vector>

namespace quadrille {
namespace {

using test::parse_as;
using test::usage_error;
using test::Words;
using Numbers = std::vector<int64_t>;

BenchOptions bench(const Words& more, const Words& environment = {}) {
    Words all = {"bench", "--target", "T"};
    all.insert(all.end(), more.begin(), more.end());
    return parse_as<BenchOptions>(all, environment);
}

TEST(BenchFlags, HaveTheirDefaults) {
    const BenchOptions plain = bench({});
    EXPECT_EQ(plain.target, "T");
    EXPECT_EQ(plain.draft, "none");
    EXPECT_EQ(plain.k, Numbers{0});
    EXPECT_EQ(plain.concurrency, Numbers{1});
    EXPECT_EQ(plain.prompts, "");
    EXPECT_EQ(plain.prompt_tokens, 128);
    EXPECT_EQ(plain.new_tokens, 64);
    EXPECT_EQ(plain.limit, 0);
    EXPECT_EQ(plain.repeat, 1);
    EXPECT_EQ(plain.json + plain.tsv, "");
    EXPECT_EQ(bench({"--draft", "D"}).k, (Numbers{0, 2}));
    EXPECT_EQ(bench({}, {"DFLASH_DRAFT=D", "DFLASH_K=3"}).k, Numbers{3});
}

TEST(BenchFlags, SayHowTokensAreDrawn) {
    EXPECT_EQ(bench({}).record.temperature, 0.0);
    const RecordOptions record =
        bench({"--temperature", "0.7", "--top-p", "0.95", "--top-k", "40", "--min-p", "0.01",
               "--repetition-penalty", "1.1", "--logprobs", "5"})
            .record;
    EXPECT_EQ(record.temperature, 0.7);
    EXPECT_EQ(record.top_p, 0.95);
    EXPECT_EQ(record.top_k, 40);
    EXPECT_EQ(record.min_p, 0.01);
    EXPECT_EQ(record.repetition_penalty, 1.1);
    EXPECT_EQ(record.logprobs, 5);
}

TEST(BenchFlags, SetWhatTheyName) {
    const BenchOptions options = bench({"--draft",
                                        "D",
                                        "--k",
                                        "7,0,2",
                                        "--concurrency",
                                        "4,1",
                                        "--prompts",
                                        "p.h5",
                                        "--prompt-tokens",
                                        "9",
                                        "--new-tokens",
                                        "8",
                                        "--limit",
                                        "6",
                                        "--repeat",
                                        "3",
                                        "--json",
                                        "j",
                                        "--append-tsv",
                                        "t",
                                        "--max-batched-tokens",
                                        "200",
                                        "--tp",
                                        "2",
                                        "--backend",
                                        "cpu-avx2",
                                        "--comm",
                                        "mpi",
                                        "--draft-placement",
                                        "replicated"});
    EXPECT_EQ(options.k, (Numbers{7, 0, 2}));
    EXPECT_EQ(options.concurrency, (Numbers{4, 1}));
    EXPECT_EQ(options.prompts, "p.h5");
    EXPECT_EQ(options.prompt_tokens, 9);
    EXPECT_EQ(options.new_tokens, 8);
    EXPECT_EQ(options.limit, 6);
    EXPECT_EQ(options.repeat, 3);
    EXPECT_EQ(options.json, "j");
    EXPECT_EQ(options.tsv, "t");
    EXPECT_EQ(options.max_batched_tokens, 192);
    EXPECT_EQ(options.tp, 2);
    EXPECT_EQ(options.backend, "cpu-avx2");
    EXPECT_EQ(options.draft_placement, DraftPlacement::replicated);
}

TEST(BenchFlags, NameBadValues) {
    const auto message = [](const Words& more) {
        Words all = {"bench", "--target", "T"};
        all.insert(all.end(), more.begin(), more.end());
        return usage_error(all);
    };
    EXPECT_EQ(message({"--k", "0,2"}), "--k: expected 0 without a drafter (--draft none), found 2");
    EXPECT_EQ(message({"--draft", "D", "--k", "2,0,2"}),
              "--k: expected different numbers, found 2 twice");
    EXPECT_EQ(message({"--concurrency", "4,4"}),
              "--concurrency: expected different numbers, found 4 twice");
    EXPECT_EQ(message({"--k", "0,x"}).find("--k: expected an integer from 0 to 63, found 'x'"), 0u);
    EXPECT_EQ(message({"--concurrency", "0"})
                  .find("--concurrency: expected an integer from 1 to 4096, found '0'"),
              0u);
    EXPECT_EQ(message({"--new-tokens", "0"}).find("--new-tokens: expected an integer from 1"), 0u);
    EXPECT_EQ(message({"--repeat", "0"}).find("--repeat: expected an integer from 1 to 1000"), 0u);
    EXPECT_EQ(message({"--json", ""}),
              "--json: expected a file, found an empty string (see "
              "quadrille bench --help)");
    EXPECT_EQ(usage_error({"bench"}),
              "--target: expected a checkpoint folder (or EXL3_MODEL), found nothing");
}

TEST(BenchFlags, MakeAModelUp) {
    const auto made = [](const Words& more) {
        Words all = {"bench", "--synthetic", "glm-5.3-flash"};
        all.insert(all.end(), more.begin(), more.end());
        return parse_as<BenchOptions>(all, {});
    };
    const BenchOptions plain = made({});
    ASSERT_TRUE(plain.made.has_value());
    EXPECT_EQ(plain.made->layers, 45);
    EXPECT_EQ(plain.made->routed_bits, 2);
    EXPECT_EQ(plain.made->dense_bits, 0);
    EXPECT_EQ(plain.made->routing, MadeRouting::uniform);
    EXPECT_EQ(plain.k, (Numbers{0, 2}));
    const BenchOptions all = made({"--routed-bits", "3", "--dense-bits", "6", "--layers", "4",
                                   "--routing", "overlap50", "--k", "0"});
    EXPECT_EQ(all.made->layers, 4);
    EXPECT_EQ(all.made->routed_bits, 3);
    EXPECT_EQ(all.made->dense_bits, 6);
    EXPECT_EQ(all.made->routing, MadeRouting::overlap50);
    EXPECT_FALSE(bench({}).made.has_value());
    for (const Words& wrong : std::vector<Words>{{"--synthetic", "glm"},
                                                 {"--layers", "4"},
                                                 {"--layers", "46", "--k", "0"},
                                                 {"--dense-bits", "5"},
                                                 {"--routed-bits", "9"},
                                                 {"--routing", "none"},
                                                 {"--target", "T"},
                                                 {"--draft", "D"}}) {
        EXPECT_THROW(made(wrong), Error) << wrong[0];
    }
}

}  // namespace
}  // namespace quadrille
