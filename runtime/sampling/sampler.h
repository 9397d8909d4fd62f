// SPDX-License-Identifier: Apache-2.0
// From logits split over ranks to the next token of every row, the same on every rank. Greedy and
// plain draws: two numbers a row and rank. Filters: each rank's best ids and, for top-p, its exact
// sum, everything in one exchange. Where the cut lies beyond these ids, OpenDraws draws; rejection
// and a top-k beyond them gather the row.
#pragma once

#include "io/records.h"
#include "kernels/backend.h"
#include "kernels/filter.h"
#include "runtime/model/shard.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/exchange.h"
#include "runtime/sampling/open_draws.h"
#include "runtime/sampling/rank_candidates.h"
#include "runtime/sampling/rejection.h"
#include "runtime/sampling/token_history.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// How one row of logits becomes a token.
struct DrawRequest {
    const RecordOptions* options = nullptr;
    uint64_t seed = 0;
    int64_t position = 0;                // absolute, of the token drawn
    int32_t slot = 0;                    // of its history
    std::span<const int32_t> drafts{};   // history behind that of the slot
    const Proposal* proposal = nullptr;  // rejection: the draft of this position
};

struct Choice {
    int32_t token = -1;  // -1: no logit of the row is a number
    // Natural logarithms of the model's own softmax; set where options->logprobs >= 0.
    float logprob = 0.0f;
    std::vector<int32_t> top_ids;     // (logprobs); -1: the vocabulary is smaller
    std::vector<float> top_logprobs;  // (logprobs); NaN there
};

class Sampler {
  public:
    // `vocab`: this rank's ids; ids >= `known` are never chosen (padding of the vocabulary).
    // max_drafts: drafts of a request at most. Collective.
    Sampler(Backend& backend, Communicator& comm, Range vocab, int64_t known, int32_t max_rows,
            int32_t max_drafts);

    // Tokens of rows (m, vocab part), the same on every rank; -1: no logit of the row is a number.
    // Valid until the next call.
    std::span<const int32_t> greedy(View<const float> logits);
    // The same by request (m); flushes `history`. Valid until the next call. A choice of token -1
    // has no log-probabilities.
    std::span<const Choice> draw(View<const float> logits, std::span<const DrawRequest> requests,
                                 TokenHistory& history);

  private:
    // A request's indices in the candidates; -1: not listed.
    struct Places {
        int32_t drawn = -1;     // no filter
        int32_t filtered = -1;  // a filter
        int32_t sum = -1;       // total weight
        int32_t picked = -1;    // candidates of the draft
        int32_t raw_sum = -1;   // of the logits as they are
        int32_t raw_top = -1;
        int32_t open = -1;  // in the open draws: the cut lies beyond the candidates
    };

    Places list(const DrawRequest& request, int32_t row, const TokenHistory& history);
    Candidate choose(const Places& places, const DrawRequest& request) const;
    // Lists the row among the open draws where its cut lies beyond the candidates.
    Candidate choose_filtered(Places& places, int32_t row, View<const float> logits,
                              const DrawRequest& request, const TokenHistory& history);
    void set_logprobs(Choice& choice, const Places& places, float raw, int64_t alternatives);

    Backend& backend_;
    Communicator& comm_;
    int32_t first_id_;
    int32_t valid_;
    int32_t max_rows_;
    Exchange greedy_;
    RankCandidates rank_candidates_;
    OpenDraws open_draws_;
    std::vector<Places> places_;
    std::vector<Candidate> candidates_;
    std::vector<Candidate> chosen_;
    std::vector<int32_t> tokens_;
    std::vector<Choice> choices_;
};

// True: an op finds a row's token, and the host needs nothing else: no penalty, no logprobs; on
// several ranks no filters.
bool draws_on_backend(const RecordOptions& options, int ranks);

// What the ops read of a record's options; its row and the drafts of its history are left out.
SampleRow sample_row(const RecordOptions& options, uint64_t seed, int64_t position,
                     const uint32_t* seen);

}  // namespace quadrille
