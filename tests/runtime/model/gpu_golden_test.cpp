// SPDX-License-Identifier: Apache-2.0
// A backend against values of transformers and exllamav3 (tests/data/demo_golden.h5), and against
// itself: speculation, the batch and the order of records change no token. Made for the GPU, whose
// logits agree with the goldens within tolerances only; QUADRILLE_TEST_BACKEND names another
// backend to run the same tests on. Exits with 77 without a GPU; runs under mpirun or alone.
#include "tests/support/draft_case.h"
#include "tests/support/golden.h"
#include "tests/support/margins.h"
#include "tests/support/mpi_main.h"
#include "tests/support/tolerance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>

namespace quadrille::test {
namespace {

constexpr int32_t kBlock = 8;  // rows of the drafter's block
constexpr int32_t kDrafts = kBlock - 1;

std::string test_backend() {
    const char* name = std::getenv("QUADRILLE_TEST_BACKEND");
    return name != nullptr ? name : "cuda";
}

class GpuGolden : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (test_backend() == "cuda" && gpu_count() == 0) GTEST_SKIP() << "no GPU";
        folder_ = find_model("demo-" + GetParam());
        if (!folder_) GTEST_SKIP() << "demo-" << GetParam() << " is not in QUADRILLE_TEST_MODELS";
        greedy_ = golden_.read_ragged<int32_t>("/" + GetParam() + "/greedy");
        gap_ = golden_.read_ragged<float>("/" + GetParam() + "/greedy_gap");
    }
    static std::unique_ptr<Backend> backend() {
        return make_backend_of(test_backend(), session().world());
    }
    ModelCase target(int32_t slots, std::unique_ptr<Backend> own = backend()) const {
        return {*folder_,
                session().world(),
                {.slots = slots, .capacity = 1024, .max_rows = 1024, .max_block = kBlock},
                trained_taps(),
                std::move(own)};
    }
    int64_t length() const { return std::ssize(greedy_.front()); }
    // Tokens of record i before the first golden gap that a tolerance may turn.
    size_t certain(size_t i) const {
        const auto first = std::find_if(gap_[i].begin(), gap_[i].end(), [](float gap) {
            return static_cast<double>(gap) < kGpuCertainGap;
        });
        return static_cast<size_t>(first - gap_[i].begin());
    }

    std::optional<std::filesystem::path> folder_;
    Golden golden_{data_path("demo_golden.h5")};
    std::vector<std::vector<int32_t>> greedy_;
    std::vector<std::vector<float>> gap_;
};

// The golden continuation fed token by token to all records at once; `visit` sees the logits (12,
// vocabulary) of every token index and the batch whose rows made them.
class TeacherForced {
  public:
    TeacherForced(ModelCase& target, const std::vector<std::vector<int32_t>>& greedy,
                  Drafter* drafter = nullptr)
        : target_(target), greedy_(greedy), drafter_(drafter), prompts_(golden_prompts(1)) {}

    template <class Visit>
    void run(Visit&& visit) {
        const auto records = static_cast<int32_t>(prompts_.size());
        std::vector<float> logits;
        for (int32_t i = 0; i < records; ++i) {
            const std::vector<float> row = prefill(i);
            logits.insert(logits.end(), row.begin(), row.end());
        }
        visit(size_t{0}, logits);
        StepBatch batch(target_.backend(), records, records);
        for (size_t at = 1; at < greedy_.front().size(); ++at) {
            batch.clear(false);
            for (int32_t i = 0; i < records; ++i) {
                const auto record = static_cast<size_t>(i);
                const auto position = static_cast<int32_t>(length(record) + at - 1);
                batch.add(i, position, at == 1 ? 0 : 1, {&greedy_[record][at - 1], 1},
                          Logits::last);
            }
            logits = forward(batch);
            visit(at, logits);
        }
    }
    size_t length(size_t record) const { return prompts_[record].tokens.size(); }

  private:
    std::vector<float> forward(StepBatch& batch) {
        std::vector<float> logits = target_.forward(batch);
        if (drafter_ != nullptr) {
            const std::vector<uint8_t> all(static_cast<size_t>(batch.m()), 1);
            drafter_->append(target_.model().taps(), all, batch.rows());
        }
        return logits;
    }
    std::vector<float> prefill(int32_t slot) {
        const std::vector<int32_t>& tokens = prompts_[static_cast<size_t>(slot)].tokens;
        StepBatch batch(target_.backend(), target_.model().limits().max_rows, 1);
        batch.clear(true);
        batch.add(slot, 0, 0, tokens, Logits::last);
        return forward(batch);
    }

    ModelCase& target_;
    const std::vector<std::vector<int32_t>>& greedy_;
    Drafter* drafter_;
    std::vector<Prompt> prompts_;
};

struct BestTwo {
    int32_t token = -1;
    double gap = 0;  // NaN where a logit is
};

BestTwo best_two(std::span<const float> logits) {
    float best = -INFINITY;
    float second = -INFINITY;
    BestTwo result;
    for (size_t c = 0; c < logits.size(); ++c) {
        if (std::isnan(logits[c])) return {-1, std::nan("")};
        if (logits[c] > best) {
            second = best;
            best = logits[c];
            result.token = static_cast<int32_t>(c);
        } else {
            second = std::max(second, logits[c]);
        }
    }
    result.gap = static_cast<double>(best) - static_cast<double>(second);
    return result;
}

TEST_P(GpuGolden, TeacherForcedTokensAndGapsAgree) {
    auto watched = std::make_unique<MarginBackend>(backend());
    MarginBackend& watch = *watched;
    ModelCase target = this->target(static_cast<int32_t>(greedy_.size()), std::move(watched));
    const auto vocabulary = static_cast<size_t>(target.config().vocab_size);
    TeacherForced teacher(target, greedy_);
    int64_t positions = 0;
    int64_t apart = 0;
    double largest = 0;
    Margin smallest;
    std::string exceptions;
    teacher.run([&](size_t at, const std::vector<float>& logits) {
        std::map<int32_t, Margin> margins = watch.take();
        ASSERT_EQ(margins.size(), greedy_.size());
        for (const auto& [slot, margin] : margins) {
            smallest.router = std::min(smallest.router, margin.router);
            smallest.index = std::min(smallest.index, margin.index);
        }
        for (size_t i = 0; i < greedy_.size(); ++i) {
            const BestTwo found = best_two(std::span(logits).subspan(i * vocabulary, vocabulary));
            const auto golden = static_cast<double>(gap_[i][at]);
            ASSERT_FALSE(std::isnan(found.gap)) << "record " << i << " token " << at;
            if (golden > kGpuCertainGap) {
                EXPECT_EQ(found.token, greedy_[i][at])
                    << "record " << i << " token " << at << " golden gap " << golden;
            }
            // If the best two changed places, the gap is that of the golden token.
            const double gap = found.token == greedy_[i][at] ? found.gap : -found.gap;
            const double difference = std::abs(gap - golden);
            largest = std::max(largest, difference);
            ++positions;
            if (difference <= kGpuGapDifference) continue;
            ++apart;
            const Margin& margin = margins[static_cast<int32_t>(i)];
            exceptions += fmt::format(
                "  record {} token {}: gap {:.4f}, golden {:.4f}; smallest margin of the router "
                "{:.1e}, of the index {:.1e}\n",
                i, at, gap, golden, margin.router, margin.index);
        }
    });
    const double share = 1.0 - static_cast<double>(apart) / static_cast<double>(positions);
    EXPECT_GE(share, kGpuGapShare);
    if (session().rank() == 0) {
        fmt::print(
            "{} on {}: {} positions, {:.2f} % of gaps within {}, largest difference {:.4f}; "
            "smallest margins anywhere: router {:.1e}, index {:.1e}\n{}",
            GetParam(), target.backend().name(), positions, 100 * share, kGpuGapDifference, largest,
            smallest.router, smallest.index, exceptions);
    }
}

// Anchors are golden: what is drafted depends on the context of golden tokens alone.
TEST_P(GpuGolden, DraftPathsAgree) {
    ModelCase target = this->target(static_cast<int32_t>(greedy_.size()));
    DraftCase draft(target);
    const auto drafts = golden_.read_ragged<int32_t>("/" + GetParam() + "/drafts_k7");
    const auto accepted = golden_.read_ragged<int32_t>("/" + GetParam() + "/accepted_k7");
    TeacherForced teacher(target, greedy_, &*draft);
    std::vector<size_t> step(greedy_.size());
    std::vector<size_t> next(greedy_.size());  // token index of the record's next anchor
    int64_t paths = 0;
    int64_t equal = 0;
    teacher.run([&](size_t at, const std::vector<float>&) {
        for (size_t i = 0; i < greedy_.size(); ++i) {
            if (at != next[i] || step[i] >= accepted[i].size()) continue;
            const DraftRequest request{.record = static_cast<int64_t>(i),
                                       .slot = static_cast<int32_t>(i),
                                       .position = static_cast<int32_t>(teacher.length(i) + at),
                                       .anchor = greedy_[i][at]};
            std::vector<int32_t> path(kDrafts);
            draft->propose(path, kDrafts, {&request, 1});
            const auto golden = drafts[i].begin() + static_cast<int64_t>(step[i]) * kDrafts;
            ++paths;
            if (std::equal(path.begin(), path.end(), golden)) {
                ++equal;
            } else if (session().rank() == 0) {
                fmt::print("  record {} token {}: another path\n", i, at);
            }
            next[i] = at + static_cast<size_t>(accepted[i][step[i]++]) + 1;
        }
    });
    int64_t expected = 0;
    for (const auto& counts : accepted) expected += std::ssize(counts);
    EXPECT_EQ(paths, expected);
    const double share = static_cast<double>(equal) / static_cast<double>(paths);
    EXPECT_GE(share, kGpuPathShare);
    if (session().rank() == 0) {
        fmt::print("{} on {}: {:.2f} % of {} paths of {} drafts identical\n", GetParam(),
                   target.backend().name(), 100 * share, paths, kDrafts);
    }
}

TEST_P(GpuGolden, FreeRunsAgreeUpToTheFirstSmallGap) {
    ModelCase target = this->target(16);
    DraftCase draft(target);
    for (const int32_t k : {0, kDrafts}) {
        const auto results = target.run(golden_prompts(length()), target.engine_options(k),
                                        k > 0 ? &*draft : nullptr);
        ASSERT_EQ(results.size(), greedy_.size());
        size_t compared = 0;
        for (size_t i = 0; i < results.size(); ++i) {
            const std::vector<int32_t>& tokens = results[i].tokens;
            const size_t count = std::min(certain(i), greedy_[i].size());
            ASSERT_GE(tokens.size(), count) << "record " << i << " K " << k;
            EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + static_cast<int64_t>(count),
                                   greedy_[i].begin()))
                << "record " << i << " K " << k << ", the first " << count << " tokens";
            compared += count;
        }
        EXPECT_GT(compared, greedy_.size());
    }
}

// Records of every length, `rounds` times with fewer tokens each; those of fewer rounds are the
// first of those of more.
std::vector<Prompt> many_prompts(int64_t rounds) {
    const bool all = test_backend() == "cuda";
    std::vector<Prompt> prompts;
    for (int64_t round = 0; round < rounds; ++round) {
        for (Prompt& prompt : golden_prompts(all ? 40 : 16)) {
            if (!all && prompt.tokens.size() > 300) continue;
            prompt.options.max_new_tokens -= round;
            prompt.options.ignore_eos = true;
            prompt.index = std::ssize(prompts);
            prompts.push_back(std::move(prompt));
        }
    }
    return prompts;
}

void expect_same_tokens(const std::vector<Generation>& found,
                        const std::vector<Generation>& expected, const std::string& what) {
    ASSERT_LE(found.size(), expected.size()) << what;
    for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].tokens, expected[i].tokens) << what << ", record " << i;
    }
}

TEST_P(GpuGolden, NeitherSpeculationNorTheBatchChangesATokenOfTheRun) {
    std::vector<int32_t> batches = {16, 4, 1};
    if (test_backend() == "cuda") batches.insert(batches.begin(), 64);
    std::vector<Generation> expected;
    int64_t accepted = 0;
    std::mt19937 random(7);
    for (const int32_t slots : batches) {
        ModelCase target = this->target(slots);
        DraftCase draft(target);
        for (const int32_t k : {0, 1, 2, 4, 7}) {
            std::vector<Prompt> prompts = many_prompts(slots > 16 ? 6 : 1);
            const size_t records = prompts.size();
            if (slots != batches.front()) std::shuffle(prompts.begin(), prompts.end(), random);
            auto results =
                target.run(std::move(prompts), target.engine_options(k), k > 0 ? &*draft : nullptr);
            ASSERT_EQ(results.size(), records);
            for (const Generation& result : results) accepted += result.acceptance.accepted;
            if (expected.empty()) {
                expected = std::move(results);
                continue;
            }
            expect_same_tokens(results, expected, fmt::format("K {}, {} slots", k, slots));
        }
    }
    EXPECT_GT(accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Bundled, GpuGolden, testing::Values("full-4bpw"), pack_name);
INSTANTIATE_TEST_SUITE_P(Other, GpuGolden, testing::Values("bf16", "tr3-4bpw", "k2"), pack_name);

}  // namespace
}  // namespace quadrille::test
