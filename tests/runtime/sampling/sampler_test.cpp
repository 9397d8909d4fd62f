// SPDX-License-Identifier: Apache-2.0
// Draws from logits that ranks share, in uneven blocks, against one rank that holds all and against
// a plain reference over the whole vocabulary: filters (cuts beyond the offered candidates too),
// penalties with drafts, log-probabilities, rejection. Compared bit for bit.
#include "runtime/sampling/sampler.h"

#include "kernels/cpu/cpu_backend.h"
#include "runtime/sampling/sampler.h"
#include "tests/support/mpi_main.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

namespace quadrille::test {
namespace {

constexpr int64_t kVocab = 15 * 128;  // 4, 4, 4 and 3 blocks on 4 ranks
constexpr int64_t kKnown = 1900;
constexpr int32_t kSlots = 4;
constexpr int32_t kDrafts = 7;

// One record's options and where it stands.
struct Wanted {
    RecordOptions options;
    uint64_t seed = 0;
    int64_t position = 0;
    int32_t slot = 0;
    std::vector<int32_t> drafts;
    std::vector<int32_t> proposed;
    std::vector<float> scores;
    int32_t draft = -1;  // -1: no proposal
};

struct Outcome {
    int32_t token;
    std::vector<float> logprobs;  // chosen, then the best
    std::vector<int32_t> top_ids;

    friend bool operator==(const Outcome& a, const Outcome& b) {
        return a.token == b.token && a.top_ids == b.top_ids &&
               std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(),
                          b.logprobs.end(), [](float x, float y) { return same_bits(x, y); });
    }
};

class Case {
  public:
    explicit Case(Communicator& comm, int32_t max_rows = 64)
        : vocab_(block_share(kVocab, comm.size(), comm.rank())),
          history_(backend_, kSlots, kVocab),
          sampler_(backend_, comm, vocab_, kKnown, max_rows, kDrafts) {}

    TokenHistory& history() { return history_; }
    // logits (m, kVocab).
    std::vector<Outcome> draw(std::span<const float> logits, std::span<const Wanted> wanted) {
        std::vector<Proposal> proposals;
        for (const Wanted& one : wanted) proposals.push_back({one.draft, one.proposed, one.scores});
        std::vector<DrawRequest> requests;
        for (size_t i = 0; i < wanted.size(); ++i) {
            const Wanted& one = wanted[i];
            DrawRequest request;
            request.options = &one.options;
            request.seed = one.seed;
            request.position = one.position;
            request.slot = one.slot;
            request.drafts = one.drafts;
            if (one.draft >= 0) request.proposal = &proposals[i];
            requests.push_back(request);
        }
        const View<const float> all{logits.data(), std::ssize(wanted), kVocab};
        std::vector<Outcome> outcomes;
        size_t i = 0;
        for (const Choice& choice :
             sampler_.draw(all.slice_cols(vocab_.begin, vocab_.size()), requests, history_)) {
            Outcome outcome{choice.token, {}, {}};
            if (wanted[i++].options.logprobs >= 0) {
                outcome.logprobs = {choice.logprob};
                outcome.logprobs.insert(outcome.logprobs.end(), choice.top_logprobs.begin(),
                                        choice.top_logprobs.end());
                outcome.top_ids = choice.top_ids;
            }
            outcomes.push_back(outcome);
        }
        return outcomes;
    }

  private:
    cpu::CpuBackend backend_;
    Range vocab_;
    TokenHistory history_;
    Sampler sampler_;
};

std::vector<int32_t> history_tokens(int32_t slot) {
    Random random(static_cast<uint64_t>(slot) + 77);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 1500; ++i) {  // more than one upload; many are drawn twice
        tokens.push_back(static_cast<int32_t>(random.integer(0, kKnown - 1)));
    }
    return tokens;
}

float penalized(float logit, int32_t id, const Wanted& wanted) {
    const auto penalty = static_cast<float>(wanted.options.repetition_penalty);
    const std::vector<int32_t> seen = history_tokens(wanted.slot);
    const auto holds = [id](const std::vector<int32_t>& ids) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    if (!holds(seen) && !holds(wanted.drafts)) return logit;
    return logit > 0 ? logit / penalty : logit * penalty;
}

// The draw by its definition: sort everything, cut, take the best with its noise.
int32_t reference(std::span<const float> logits, const Wanted& wanted) {
    const RecordOptions& options = wanted.options;
    std::vector<Candidate> all;
    for (int32_t id = 0; id < kKnown; ++id) {
        const float logit = logits[static_cast<size_t>(id)];
        const float value =
            options.repetition_penalty == 1.0 ? logit : penalized(logit, id, wanted);
        all.push_back({value, logit, id});
    }
    std::sort(all.begin(), all.end(), before);
    if (options.temperature == 0.0) return all[0].id;
    std::vector<long double> p;
    for (const Candidate& one : all) {
        p.push_back(
            std::exp((static_cast<long double>(one.value) - all[0].value) / options.temperature));
    }
    size_t kept = options.top_k > 0
                      ? std::min<size_t>(all.size(), static_cast<size_t>(options.top_k))
                      : all.size();
    const long double sum =
        std::accumulate(p.begin(), p.begin() + static_cast<int64_t>(kept), 0.0L);
    size_t by_top_p = 0;
    long double reached = 0;
    while (by_top_p < kept && reached < options.top_p * sum) reached += p[by_top_p++];
    kept = std::min(kept, std::max<size_t>(by_top_p, 1));
    while (kept > 1 && p[kept - 1] < options.min_p) --kept;
    int32_t best = -1;
    double best_score = 0;
    for (size_t i = 0; i < kept; ++i) {
        const double score = all[i].value * (1.0 / options.temperature) +
                             gumbel(wanted.seed, wanted.position, Stream::token, all[i].id);
        if (best >= 0 && score <= best_score) continue;
        best = all[i].id;
        best_score = score;
    }
    return best;
}

Wanted random_wanted(Random& random, int64_t trial) {
    Wanted wanted;
    RecordOptions& options = wanted.options;
    options.temperature = trial % 6 == 0 ? 0.0 : random.uniform(0.3f, 2.5f);
    if (trial % 2 == 0) options.top_p = random.uniform(0.05f, 0.999f);
    // A cut beyond what the ranks offer.
    if (trial % 3 == 0) options.top_k = random.integer(1, trial % 9 == 0 ? 1950 : 40);
    if (trial % 4 == 0) options.min_p = random.uniform(0.0f, trial % 8 == 0 ? 1e-6f : 0.3f);
    if (trial % 5 < 2) options.repetition_penalty = trial % 5 == 0 ? 1.3 : 0.7;
    if (trial % 7 < 3) options.logprobs = trial % 7 * 5;
    wanted.seed = random.bits();
    wanted.position = random.integer(0, 100000);
    wanted.slot = static_cast<int32_t>(random.integer(0, kSlots - 1));
    for (int64_t i = random.integer(0, kDrafts); i > 0; --i) {
        wanted.drafts.push_back(static_cast<int32_t>(random.integer(0, kKnown - 1)));
    }
    return wanted;
}

void propose(Wanted& wanted, std::span<const float> logits, Random& random) {
    for (int i = 0; i < 16; ++i) {
        const auto id = static_cast<int32_t>(random.integer(0, kKnown - 1));
        if (std::count(wanted.proposed.begin(), wanted.proposed.end(), id) > 0) continue;
        wanted.proposed.push_back(id);
        wanted.scores.push_back(logits[static_cast<size_t>(id)] + random.normal());
    }
    wanted.draft = wanted.proposed[3];
    wanted.proposed.push_back(-1);  // fewer candidates than asked for
    wanted.scores.push_back(-std::numeric_limits<float>::infinity());
}

// Makes the drafts ids that the row would choose, so that their penalty shows.
void favour(Wanted& wanted, std::span<const float> logits) {
    std::vector<int32_t> order(kKnown);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kDrafts, order.end(),
                      [&](int32_t a, int32_t b) {
                          return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                      });
    for (size_t i = 0; i + 1 < wanted.drafts.size(); ++i) wanted.drafts[i] = order[i];
}

struct Batch {
    std::vector<float> logits;
    std::vector<Wanted> wanted;
};

Batch random_batch(uint64_t seed, int64_t rows) {
    Random random(seed);
    Batch batch;
    for (int64_t row = 0; row < rows; ++row) {
        batch.wanted.push_back(random_wanted(random, static_cast<int64_t>(seed) * rows + row));
        // Flat rows, whose cuts lie beyond the candidates, and steep ones.
        const auto logits = random.normals(kVocab, row % 3 == 0 ? 0.05f : 3.0f);
        batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
        favour(batch.wanted.back(), logits);
        if (row % 5 == 4) propose(batch.wanted.back(), logits, random);
    }
    return batch;
}

std::vector<Outcome> run(Communicator& comm, const Batch& batch) {
    Case setup(comm);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
        setup.history().start(slot, std::vector<int32_t>{1, 2, 3});  // a record before
        setup.history().add(slot, std::vector<int32_t>{4});
        const std::vector<int32_t> tokens = history_tokens(slot);
        setup.history().start(slot, std::span(tokens).first(1000));
        setup.history().add(slot, std::span(tokens).subspan(1000));
    }
    return setup.draw(batch.logits, batch.wanted);
}

TEST(Sampler, IsTheReferenceOverTheWholeVocabulary) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Batch batch = random_batch(seed, 30);
        for (Wanted& wanted : batch.wanted) wanted.draft = -1;
        const std::vector<Outcome> found = run(session().world(), batch);
        for (size_t i = 0; i < found.size(); ++i) {
            const auto logits = std::span(batch.logits).subspan(i * kVocab, kVocab);
            EXPECT_EQ(found[i].token, reference(logits, batch.wanted[i])) << seed << " row " << i;
        }
    }
}

// A cut beyond the offers, in rows that choose a draft for certain unless it is penalised.
TEST(Sampler, DraftsArePenalisedWhereTheWholeRowIsGathered) {
    Random random(80);
    Batch batch;
    for (int64_t row = 0; row < 20; ++row) {
        Wanted wanted;
        wanted.options.temperature = 1.0;
        wanted.options.top_p = 0.999;
        wanted.options.repetition_penalty = 1e9;
        wanted.seed = random.bits();
        wanted.drafts = {3, 700, 1899};
        std::vector<float> logits = random.normals(kVocab, 0.05f);
        for (const int32_t draft : wanted.drafts) logits[static_cast<size_t>(draft)] = 40.0f;
        batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
        batch.wanted.push_back(wanted);
    }
    const std::vector<Outcome> found = run(session().world(), batch);
    for (size_t i = 0; i < found.size(); ++i) {
        const auto logits = std::span(batch.logits).subspan(i * kVocab, kVocab);
        EXPECT_EQ(found[i].token, reference(logits, batch.wanted[i])) << i;
    }
}

TEST(Sampler, RankCountsGiveTheSameBits) {
    for (uint64_t seed = 20; seed < 32; ++seed) {
        const Batch batch = random_batch(seed, 30);
        const auto self = make_self_comm();
        EXPECT_EQ(run(session().world(), batch), run(*self, batch)) << seed;
    }
}

TEST(Sampler, RowsDoNotDependOnTheirCompany) {
    Case setup(session().world());
    for (int32_t slot = 0; slot < kSlots; ++slot) {
        setup.history().start(slot, history_tokens(slot));
    }
    Batch batch = random_batch(40, 20);
    const std::vector<Outcome> together = setup.draw(batch.logits, batch.wanted);
    for (size_t i = 0; i < together.size(); ++i) {
        const auto logits = std::span(batch.logits).subspan(i * kVocab, kVocab);
        EXPECT_EQ(setup.draw(logits, std::span(&batch.wanted[i], 1)),
                  std::vector<Outcome>{together[i]});
    }
}

TEST(Sampler, LogprobsAreTheModelsOwnSoftmax) {
    Batch batch = random_batch(50, 20);
    for (Wanted& wanted : batch.wanted) wanted.options.logprobs = 20;
    const std::vector<Outcome> found = run(session().world(), batch);
    for (size_t i = 0; i < found.size(); ++i) {
        const auto logits = std::span(batch.logits).subspan(i * kVocab, kKnown);
        const double largest = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const float logit : logits) sum += std::exp(double{logit} - largest);
        const double log_sum = largest + std::log(sum);
        EXPECT_NEAR(found[i].logprobs[0],
                    double{logits[static_cast<size_t>(found[i].token)]} - log_sum, 1e-6);
        std::vector<int32_t> order(kKnown);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
        });
        for (size_t n = 0; n < 20; ++n) {
            EXPECT_EQ(found[i].top_ids[n], order[n]);
            EXPECT_NEAR(found[i].logprobs[n + 1],
                        double{logits[static_cast<size_t>(order[n])]} - log_sum, 1e-6);
        }
    }
}

TEST(Sampler, PlainGreedyRowsAreTheSameInAnyCompany) {
    Batch batch = random_batch(60, 6);
    std::vector<int32_t> alone;
    for (size_t i = 0; i < 6; ++i) {
        Wanted plain;
        batch.logits[i * kVocab + kKnown + i] = 100.0f;  // no tokenizer knows this id
        Batch one;
        one.logits.assign(batch.logits.begin() + static_cast<int64_t>(i) * kVocab,
                          batch.logits.begin() + static_cast<int64_t>(i + 1) * kVocab);
        one.wanted = {plain};
        alone.push_back(run(session().world(), one)[0].token);  // the path of greedy()
        EXPECT_EQ(alone.back(), reference(one.logits, plain));
    }
    for (size_t i = 0; i < 5; ++i) batch.wanted[i] = {};
    batch.wanted[5].options.temperature = 1.0;
    const std::vector<Outcome> mixed = run(session().world(), batch);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(mixed[i].token, alone[i]);
}

TEST(Sampler, ARowWithoutANumberHasNoTokenAndLeavesTheOthersAlone) {
    for (const double top_p : {1.0, 0.5}) {
        Batch batch = random_batch(70, 3);
        for (Wanted& wanted : batch.wanted) wanted = {};
        batch.wanted[1].options.temperature = 1.0;
        batch.wanted[1].options.top_p = top_p;
        const auto whole = run(session().world(), batch);
        std::fill(batch.logits.begin() + kVocab, batch.logits.begin() + 2 * kVocab, NAN);
        const auto spoilt = run(session().world(), batch);
        EXPECT_EQ(spoilt[1].token, -1) << top_p;
        for (const size_t row : {size_t{0}, size_t{2}}) {
            EXPECT_EQ(spoilt[row].token, whole[row].token) << top_p;
        }
    }
}

}  // namespace
}  // namespace quadrille::test
