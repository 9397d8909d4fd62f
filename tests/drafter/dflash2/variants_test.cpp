// SPDX-License-Identifier: Apache-2.0
// What the golden drafts prove: every rule of the block that an implementation may miss changes
// them. And the DFlash v1 forms: a drafter without convolutions or selector is one whose
// convolutions are the identity and whose codebooks are zero.
#include "tests/support/draft_case.h"
#include "tests/support/golden.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;

using Drafts = std::vector<std::vector<int32_t>>;  // by prompt

// First proposals for the golden prompts whose lengths are in [low, high], by several drafters.
class FirstDrafts {
  public:
    FirstDrafts(std::vector<int64_t> taps, int64_t low, int64_t high)
        : target_(*find_model(kModel), session().world(),
                  {.slots = 12, .capacity = 1024, .max_rows = 512, .max_block = kMaxK + 1},
                  std::move(taps)) {
        const Golden golden(data_path("demo_golden.h5"));
        const auto greedy = golden.read_ragged<int32_t>("/full-4bpw/greedy");
        const auto drafts = golden.read_ragged<int32_t>("/full-4bpw/drafts_k7");
        for (Prompt& prompt : golden_prompts(1)) {
            const int64_t length = std::ssize(prompt.tokens);
            if (length < low || length > high) continue;
            const auto at = static_cast<size_t>(prompt.index);
            requests_.push_back({.record = prompt.index,
                                 .slot = static_cast<int32_t>(requests_.size()),
                                 .position = static_cast<int32_t>(length),
                                 .anchor = greedy[at][0]});
            golden_.emplace_back(drafts[at].begin(), drafts[at].begin() + kMaxK);
            prompts_.push_back(std::move(prompt.tokens));
        }
    }

    ModelCase& target() { return target_; }
    // The golden's, cut to k.
    Drafts golden(int32_t k = kMaxK) const {
        Drafts drafts = golden_;
        for (auto& row : drafts) row.resize(static_cast<size_t>(k));
        return drafts;
    }
    void read(const std::vector<DFlash2*>& drafters) {
        StepBatch batch(target_.backend(), 512, 1);
        for (size_t i = 0; i < prompts_.size(); ++i) {
            for (size_t at = 0; at < prompts_[i].size(); at += 512) {
                batch.clear(true);
                const auto chunk = std::span(prompts_[i]).subspan(at);
                batch.add(static_cast<int32_t>(i), static_cast<int32_t>(at), 0,
                          chunk.first(std::min<size_t>(512, chunk.size())), Logits::none);
                target_.forward(batch);
                const std::vector<uint8_t> all(static_cast<size_t>(batch.m()), 1);
                for (DFlash2* drafter : drafters) {
                    drafter->append(target_.model().taps(), all, batch.rows());
                }
            }
        }
    }
    Drafts propose(DFlash2& drafter, int32_t k = kMaxK) const {
        std::vector<int32_t> drafts(requests_.size() * static_cast<size_t>(k));
        drafter.propose(drafts, k, requests_);
        Drafts rows;
        for (size_t i = 0; i < requests_.size(); ++i) {
            const auto first = drafts.begin() + static_cast<int64_t>(i) * k;
            rows.emplace_back(first, first + k);
        }
        return rows;
    }

    std::vector<float> hidden(const DFlash2& drafter) {
        const View<const float> rows = drafter.hidden();
        std::vector<float> values(static_cast<size_t>(rows.rows * rows.cols));
        target_.backend().download(values.data(), rows.data, std::ssize(values) * 4);
        return values;
    }

  private:
    ModelCase target_;
    std::vector<std::vector<int32_t>> prompts_;
    std::vector<DraftRequest> requests_;
    Drafts golden_;
};

bool belongs(const StoredTensor& tensor, std::string_view part) {
    return tensor.name.find(part) != std::string::npos;
}

void without_selector(DraftConfig& config) {
    config.selector_rank = 0;
    config.selector_top_k = 0;
}

void without_convolutions(DraftConfig& config) {
    config.conv_group_size = 0;
    config.conv_kernel_size = 0;
}

TEST(DraftVariants, EveryMissedRuleChangesTheGoldenDrafts) {
    FirstDrafts run(trained_taps(), 0, 1024);
    DraftCase trained(run.target());
    DraftCase causal(run.target(), {.alter = [](auto& config) { config.is_causal = true; }});
    DraftCase unbounded(run.target(),
                        {.alter = [](auto& config) { config.sliding_window = 1 << 20; }});
    DraftCase wider(run.target(), {.alter = [](auto& config) { config.sliding_window = 257; }});
    DraftCase narrow(run.target(), {.alter = [](auto& config) { config.block_size = 3; }});
    DraftCase rotated(run.target(), {.alter = [](auto& config) { config.rope_theta = 1e6; }});
    const auto plain = copy_drafter([](auto& t) { return !belongs(t, "candidate_selector"); });
    DraftCase unselected(run.target(), {.folder = plain->path(), .alter = without_selector});
    const auto still = copy_drafter([](auto& t) { return !belongs(t, "_conv."); });
    DraftCase unmixed(run.target(), {.folder = still->path(), .alter = without_convolutions});
    run.read(
        {&*trained, &*causal, &*unbounded, &*wider, &*narrow, &*rotated, &*unselected, &*unmixed});

    EXPECT_EQ(run.propose(*trained), run.golden());
    for (int32_t k = 1; k < kMaxK; ++k) EXPECT_EQ(run.propose(*trained, k), run.golden(k)) << k;
    EXPECT_NE(run.propose(*causal), run.golden());
    EXPECT_NE(run.propose(*unbounded), run.golden());
    EXPECT_NE(run.propose(*narrow, 2), run.golden(2));  // 1 + K rows
    EXPECT_NE(run.propose(*rotated), run.golden());
    EXPECT_NE(run.propose(*unselected), run.golden());
    EXPECT_NE(run.propose(*unmixed), run.golden());
    // One place of the window is seldom worth a token, but never nothing.
    run.propose(*trained);
    run.propose(*wider);
    EXPECT_NE(run.hidden(*trained), run.hidden(*wider));
}

TEST(DraftVariants, TapsOneLayerOffChangeTheGoldenDrafts) {
    for (const int64_t shift : {-1, 1}) {
        std::vector<int64_t> taps = trained_taps();
        for (int64_t& tap : taps) tap += shift;
        FirstDrafts run(taps, 0, 50);
        DraftCase shifted(run.target(), {.alter = [&](auto& c) { c.target_layer_ids = taps; }});
        run.read({&*shifted});
        EXPECT_NE(run.propose(*shifted), run.golden()) << shift;
    }
}

TEST(DraftVariants, AbsentConvolutionsAreTheIdentity) {
    FirstDrafts run(trained_taps(), 0, 50);
    const auto identity = copy_drafter([](StoredTensor& tensor) {
        if (!belongs(tensor, "_conv.")) return true;
        std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
        if (!belongs(tensor, "base_kernel")) return true;
        const size_t half = tensor.bytes.size() / 2;  // before | after; then taps, the row's first
        for (size_t at = 0; at < half / 2; at += 2) {
            const uint16_t one = 0x3f80;  // bf16
            std::memcpy(&tensor.bytes[at], &one, 2);
            std::memcpy(&tensor.bytes[half + at], &one, 2);
        }
        return true;
    });
    const auto absent = copy_drafter([](auto& t) { return !belongs(t, "_conv."); });
    DraftCase with(run.target(), {.folder = identity->path()});
    DraftCase without(run.target(), {.folder = absent->path(), .alter = without_convolutions});
    run.read({&*with, &*without});
    EXPECT_EQ(run.propose(*with), run.propose(*without));
    EXPECT_EQ(run.hidden(*with), run.hidden(*without));
}

TEST(DraftVariants, AnAbsentSelectorTakesTheBestOfEverySlot) {
    FirstDrafts run(trained_taps(), 0, 50);
    const auto zero = copy_drafter([](StoredTensor& tensor) {
        if (belongs(tensor, "successor_codebook")) {
            std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
        }
        return true;
    });
    const auto absent = copy_drafter([](auto& t) { return !belongs(t, "candidate_selector"); });
    DraftCase with(run.target(), {.folder = zero->path()});
    DraftCase without(run.target(), {.folder = absent->path(), .alter = without_selector});
    run.read({&*with, &*without});
    EXPECT_EQ(run.propose(*with), run.propose(*without));

    // And that is the largest logit over all ranks, the lowest of equals.
    const Drafts drafts = run.propose(*without);
    const std::vector<float> logits = run.target().join_logits(without->logits());
    const auto vocabulary = std::ssize(logits) / (std::ssize(drafts) * kMaxK);
    auto row = logits.begin();
    for (const auto& block : drafts) {
        for (const int32_t draft : block) {
            EXPECT_EQ(draft, std::max_element(row, row + vocabulary) - row);
            row += vocabulary;
        }
    }
}

}  // namespace
}  // namespace quadrille::test
