// SPDX-License-Identifier: Apache-2.0
// The place of the drafter's layers, the number of ranks and the company of a block change nothing:
// the same bits.
#include "runtime/ranks/agree.h"
#include "tests/support/draft_case.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;

ModelLimits limits() {
    return {.slots = 4, .capacity = 512, .max_rows = 320, .max_block = kMaxK + 1};
}

// Golden prompts of 17, 24 and 300 tokens; the last is longer than the drafter's window and ring.
std::vector<Prompt> some_prompts(int64_t tokens) {
    std::vector<Prompt> prompts = golden_prompts(tokens);
    std::erase_if(prompts, [](const Prompt& prompt) {
        const size_t length = prompt.tokens.size();
        return length != 17 && length != 24 && length != 300;
    });
    for (size_t i = 0; i < prompts.size(); ++i) prompts[i].index = static_cast<int64_t>(i);
    return prompts;
}

class Drafting {
  public:
    Drafting(Communicator& comm, const DraftOptions& options)
        : target_(*find_model(kModel), comm, limits(), trained_taps()),
          draft_(target_, {.options = options}),
          batch_(target_.backend(), limits().max_rows, 1) {}

    void read(int32_t slot, const std::vector<int32_t>& tokens, size_t chunk) {
        for (size_t at = 0; at < tokens.size(); at += chunk) {
            batch_.clear(true);
            const auto part = std::span(tokens).subspan(at);
            batch_.add(slot, static_cast<int32_t>(at), 0, part.first(std::min(chunk, part.size())),
                       Logits::none);
            target_.forward(batch_);
            draft_->append(target_.model().taps(),
                           std::vector<uint8_t>(static_cast<size_t>(batch_.m()), 1), batch_.rows());
            const std::vector<float> features = download(draft_->features());
            features_.insert(features_.end(), features.begin(), features.end());
        }
        lengths_[slot] = static_cast<int32_t>(tokens.size());
    }
    // By slot: hidden rows, whole logits, and drafts as floats.
    std::vector<std::vector<float>> propose(const std::vector<int32_t>& slots, int32_t k) {
        std::vector<DraftRequest> requests;
        for (const int32_t slot : slots) {
            const int32_t length = lengths_.at(slot);
            requests.push_back(
                {.record = slot, .slot = slot, .position = length, .anchor = 100 + length});
        }
        std::vector<int32_t> drafts(slots.size() * static_cast<size_t>(k));
        draft_->propose(drafts, k, requests);
        const std::vector<float> hidden = download(draft_->hidden());
        const std::vector<float> logits = target_.join_logits(draft_->logits());
        std::vector<std::vector<float>> all(slots.size());
        const auto share = [&](const auto& values, size_t request) {
            const auto count = std::ssize(values) / std::ssize(slots);
            const auto first = values.begin() + static_cast<int64_t>(request) * count;
            all[request].insert(all[request].end(), first, first + count);
        };
        for (size_t i = 0; i < slots.size(); ++i) {
            share(hidden, i);
            share(logits, i);
            share(drafts, i);
        }
        return all;
    }
    std::vector<float> features() const { return features_; }

  private:
    std::vector<float> download(View<const float> view) {
        std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
        target_.backend().download(values.data(), view.data, std::ssize(values) * 4);
        return values;
    }

    ModelCase target_;
    DraftCase draft_;
    StepBatch batch_;
    std::map<int32_t, int32_t> lengths_;
    std::vector<float> features_;  // of all appends
};

// Everything a drafter computes for three prompts, at two K.
std::vector<float> fingerprint(Communicator& comm, const DraftOptions& options) {
    Drafting drafting(comm, options);
    const std::vector<Prompt> prompts = some_prompts(1);
    for (int32_t slot = 0; slot < 3; ++slot) {
        drafting.read(slot, prompts[static_cast<size_t>(slot)].tokens, 64);
    }
    std::vector<float> all = drafting.features();
    for (const int32_t k : {kMaxK, 3}) {
        for (const auto& values : drafting.propose({2, 0, 1}, k)) {
            all.insert(all.end(), values.begin(), values.end());
        }
    }
    return all;
}

TEST(DraftPlacements, RanksAndPlacementsGiveTheSameBits) {
    const std::vector<float> reference = fingerprint(*make_self_comm(), {});
    for (const int ranks : {1, 2, 4}) {
        if (session().world().size() < ranks) continue;
        const bool member = session().world().rank() < ranks;
        const auto group = session().split(member ? 0 : 1, session().rank());
        if (!member) continue;
        for (const auto placement : {DraftPlacement::sharded, DraftPlacement::replicated}) {
            EXPECT_EQ(fingerprint(*group, {.placement = placement}), reference)
                << ranks << " ranks, "
                << (placement == DraftPlacement::sharded ? "sharded" : "replicated");
        }
    }
}

TEST(DraftPlacements, ShardsHoldLessThanReplicas) {
    ModelCase target(*find_model(kModel), session().world(), limits(), trained_taps());
    DraftCase sharded(target);
    DraftCase replicated(target, {.options = {.placement = DraftPlacement::replicated}});
    if (session().size() == 1) {
        EXPECT_EQ(sharded->weight_bytes(), replicated->weight_bytes());
    } else {
        EXPECT_LT(sharded->weight_bytes(), replicated->weight_bytes());
    }
}

TEST(DraftPlacements, CompanyAndChunksDoNotChangeABlock) {
    Drafting drafting(session().world(), {});
    const std::vector<Prompt> prompts = some_prompts(1);
    const std::vector<int32_t>& text = prompts[2].tokens;
    ASSERT_EQ(text.size(), 300u);
    drafting.read(0, text, 64);
    const std::vector<float> alone = drafting.propose({0}, kMaxK)[0];
    drafting.read(1, prompts[1].tokens, 64);
    drafting.read(3, prompts[0].tokens, 64);                // what lies in the slot before
    for (const size_t chunk : {size_t{320}, size_t{41}}) {  // a chunk longer than the ring
        drafting.read(3, text, chunk);
        const auto together = drafting.propose({1, 3, 0}, kMaxK);
        EXPECT_EQ(together[1], alone) << "chunks of " << chunk;
        EXPECT_EQ(together[2], alone);
    }
}

TEST(DraftPlacements, UnknownTokensAreNeverDrafted) {
    constexpr int32_t kKnown = 300;
    for (const auto placement : {DraftPlacement::sharded, DraftPlacement::replicated}) {
        Drafting drafting(session().world(), {.placement = placement, .known_tokens = kKnown});
        drafting.read(0, some_prompts(1)[0].tokens, 64);
        const std::vector<float> values = drafting.propose({0}, kMaxK)[0];
        for (auto draft = values.end() - kMaxK; draft != values.end(); ++draft) {
            EXPECT_TRUE(*draft >= 0 && *draft < kKnown) << *draft;
        }
    }
}

// A drafter of another model ends every rank with one and the same message.
TEST(DraftErrors, AreAgreedOnByAllRanks) {
    ModelCase target(*find_model(kModel), session().world(), limits(), trained_taps());
    const auto half =
        copy_drafter([](auto& t) { return t.name != "candidate_selector.successor_codebook"; });
    const std::pair<DraftSetup, std::string> cases[] = {
        {{.alter = [](auto& c) { c.hidden_size = 128; }}, "hidden_size"},
        {{.alter = [](auto& c) { c.mask_token_id = 5000; }}, "mask_token_id"},
        {{.folder = half->path()}, "candidate_selector.successor_codebook"},
    };
    for (const auto& [setup, part] : cases) {
        try {
            agree(session().world(), "drafter", [&, &wrong = setup] { DraftCase(target, wrong); });
            ADD_FAILURE() << "expected an error about " << part;
        } catch (const AgreedError& error) {
            const std::string text = error.what();
            EXPECT_EQ(error.kind(), ErrorKind::input);
            EXPECT_NE(text.find(part), std::string::npos) << text;
            if (part != cases[2].second) {  // there each rank has a folder of its own
                EXPECT_EQ(text.find("rank"), std::string::npos) << text;
            }
        }
    }
}

}  // namespace
}  // namespace quadrille::test
