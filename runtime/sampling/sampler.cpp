// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/sampler.h"

#include "kernels/error.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace quadrille {

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool is_plain(const DrawRequest& request) {
    const RecordOptions& options = *request.options;
    return options.temperature == 0.0 && options.repetition_penalty == 1.0 && options.logprobs < 0;
}

std::span<const int32_t> ids_of(const Proposal& proposal) {
    return proposal.ids.empty() ? std::span(&proposal.token, 1) : proposal.ids;
}

RejectionRule rejection_of(const DrawRequest& request, double inverse_temperature,
                           const ExpSum& total) {
    return {.draft = request.proposal->token,
            .inverse_temperature = inverse_temperature,
            .total = total,
            .seed = request.seed,
            .position = request.position};
}

// The rejection rule over all ids that the filters keep.
Candidate reject_among(std::span<const Candidate> kept, const DrawRequest& request,
                       double inverse_temperature) {
    ExpSum total;
    for (const Candidate& one : kept) total.add(weight_of(one.value, inverse_temperature));
    std::vector<ProposedId> proposed = proposed_ids(*request.proposal, inverse_temperature);
    std::vector<int32_t> ids;
    for (ProposedId& one : proposed) {
        const auto found = std::find_if(kept.begin(), kept.end(), [&](const Candidate& candidate) {
            return candidate.id == one.candidate.id;
        });
        one.candidate = found != kept.end() ? *found : Candidate{kNaN, kNaN, one.candidate.id};
        ids.push_back(one.candidate.id);
    }
    OtherBest other;
    const Noise noise{request.seed, request.position, Stream::residual};
    if (const auto best = draw_among(kept, inverse_temperature, noise, ids)) {
        other = {kept[best->index], best->score};
    }
    return rejection_of(request, inverse_temperature, total).decide(proposed, other);
}

}  // namespace

bool draws_on_backend(const RecordOptions& options, int ranks) {
    return options.repetition_penalty == 1.0 && options.logprobs < 0 &&
           (ranks == 1 || !is_filtered(sample_row(options, 0, 0, nullptr)));
}

SampleRow sample_row(const RecordOptions& options, uint64_t seed, int64_t position,
                     const uint32_t* seen) {
    // Bounds that keep products finite; colder draws are the greedy ones anyway.
    constexpr double kColdest = 1e15;
    using Float = std::numeric_limits<float>;
    SampleRow row;
    row.seed = seed;
    row.position = position;
    if (options.temperature != 0.0) {
        row.inverse_temperature = std::min(1.0 / options.temperature, kColdest);
    }
    row.penalty = static_cast<float>(
        std::clamp<double>(options.repetition_penalty, Float::min(), Float::max()));
    row.seen = seen;
    row.top_k = static_cast<int32_t>(std::min<int64_t>(options.top_k, INT32_MAX));
    row.top_p = options.top_p;
    row.min_p = options.min_p;
    return row;
}

Sampler::Sampler(Backend& backend, Communicator& comm, Range vocab, int64_t known, int32_t max_rows,
                 int32_t max_drafts)
    : backend_(backend),
      comm_(comm),
      first_id_(static_cast<int32_t>(vocab.begin)),
      valid_(known_ids(vocab, known)),
      max_rows_(max_rows),
      greedy_(backend, comm, max_rows * int64_t{sizeof(float) + sizeof(int32_t)} + 16),
      rank_candidates_(backend, comm, {first_id_, int64_t{first_id_} + valid_}, max_rows,
                       max_drafts),
      open_draws_(backend, comm, {first_id_, int64_t{first_id_} + valid_}, max_rows),
      tokens_(static_cast<size_t>(max_rows)),
      choices_(static_cast<size_t>(max_rows)) {}

std::span<const int32_t> Sampler::greedy(View<const float> logits) {
    const int64_t m = logits.rows;
    require(m <= max_rows_, "sampler rows within its limit");
    greedy_.clear();
    const int64_t values = greedy_.place<float>(m);
    const int64_t ids = greedy_.place<int32_t>(m);
    backend_.argmax(greedy_.mine<float>(values), greedy_.mine<int32_t>(ids), logits, first_id_,
                    valid_);
    greedy_.run();
    for (int64_t row = 0; row < m; ++row) {
        float best = 0.0f;
        int32_t token = -1;
        for (int rank = 0; rank < comm_.size(); ++rank) {  // rank order is id order
            const float value = greedy_.of<float>(rank, values)[row];
            const int32_t id = greedy_.of<int32_t>(rank, ids)[row];
            if (id >= 0 && (token < 0 || value > best)) {
                best = value;
                token = id;
            }
        }
        tokens_[static_cast<size_t>(row)] = token;
    }
    return {tokens_.data(), static_cast<size_t>(m)};
}

std::span<const Choice> Sampler::draw(View<const float> logits,
                                      std::span<const DrawRequest> requests,
                                      TokenHistory& history) {
    require(logits.rows == std::ssize(requests) && logits.rows <= max_rows_,
            "a request for each row, within the sampler's limit");
    if (std::all_of(requests.begin(), requests.end(), is_plain)) {
        const std::span<const int32_t> tokens = greedy(logits);
        for (size_t i = 0; i < tokens.size(); ++i) choices_[i].token = tokens[i];
        return {choices_.data(), requests.size()};
    }
    history.flush();
    rank_candidates_.clear();
    places_.clear();
    for (const DrawRequest& request : requests) {
        places_.push_back(list(request, static_cast<int32_t>(places_.size()), history));
    }
    rank_candidates_.run(logits);
    open_draws_.clear();
    chosen_.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
        const auto row = static_cast<int32_t>(i);
        chosen_.push_back(places_[i].filtered < 0
                              ? choose(places_[i], requests[i])
                              : choose_filtered(places_[i], row, logits, requests[i], history));
    }
    open_draws_.run(logits);
    for (size_t i = 0; i < requests.size(); ++i) {
        const int32_t open = places_[i].open;
        const Candidate& chosen = open < 0 ? chosen_[i] : open_draws_.chosen(open);
        choices_[i].token = chosen.id;
        const int64_t alternatives = requests[i].options->logprobs;
        if (alternatives >= 0 && chosen.id >= 0)
            set_logprobs(choices_[i], places_[i], chosen.raw, alternatives);
    }
    return {choices_.data(), requests.size()};
}

Sampler::Places Sampler::list(const DrawRequest& request, int32_t row_index,
                              const TokenHistory& history) {
    const RecordOptions& options = *request.options;
    SampleRow row =
        sample_row(options, request.seed, request.position, history.on_backend(request.slot));
    row.row = row_index;
    if (row.penalty != 1.0f) row = rank_candidates_.with_drafts(row, request.drafts);
    const bool drawn = row.inverse_temperature != 0.0;
    Places places;
    if (is_filtered(row)) {
        places.filtered = rank_candidates_.add_filtered(row);
        if (filter_of(row).needs_total()) places.sum = rank_candidates_.add_sum(row);
    } else if (drawn && request.proposal != nullptr) {
        const std::span<const int32_t> ids = ids_of(*request.proposal);
        places.sum = rank_candidates_.add_sum(row);
        places.picked = rank_candidates_.add_picked(row, ids);
        row.stream = Stream::residual;
        places.drawn = rank_candidates_.add_drawn(row, ids);
    } else {
        places.drawn = rank_candidates_.add_drawn(row, {});
    }
    if (options.logprobs >= 0) {
        const SampleRow raw{.row = row_index};
        places.raw_sum = rank_candidates_.add_sum(raw);
        if (options.logprobs > 0) places.raw_top = rank_candidates_.add_top(raw, options.logprobs);
    }
    return places;
}

Candidate Sampler::choose(const Places& places, const DrawRequest& request) const {
    const OtherBest best = rank_candidates_.drawn(places.drawn);
    if (places.picked < 0) return best.candidate;
    const double inverse = sample_row(*request.options, 0, 0, nullptr).inverse_temperature;
    std::vector<ProposedId> proposed = proposed_ids(*request.proposal, inverse);
    const std::span<const int32_t> ids = ids_of(*request.proposal);
    for (ProposedId& one : proposed) {
        const auto at = std::find(ids.begin(), ids.end(), one.candidate.id) - ids.begin();
        one.candidate =
            rank_candidates_.picked(places.picked, static_cast<int32_t>(at), one.candidate.id);
    }
    return rejection_of(request, inverse, rank_candidates_.sum(places.sum)).decide(proposed, best);
}

Candidate Sampler::choose_filtered(Places& places, int32_t row, View<const float> logits,
                                   const DrawRequest& request, const TokenHistory& history) {
    SampleRow on_host =
        sample_row(*request.options, request.seed, request.position, history.on_host(request.slot));
    const double inverse = on_host.inverse_temperature;
    const Filter filter = filter_of(on_host);
    const ExpSum total = places.sum < 0 ? ExpSum{} : rank_candidates_.sum(places.sum);
    const bool complete = rank_candidates_.candidates(places.filtered, candidates_);
    if (candidates_.empty()) return {};
    std::optional<size_t> kept = count_kept(candidates_, complete, total, filter);
    if (!kept) {
        on_host.row = row;
        on_host.drafts = request.drafts.data();
        on_host.draft_count = static_cast<int32_t>(request.drafts.size());
        if (filter.top_k == 0 && request.proposal == nullptr) {
            places.open =
                open_draws_.add({.on_backend = rank_candidates_.filtered_row(places.filtered),
                                 .on_host = on_host,
                                 .total = total,
                                 .best = candidates_[0].value});
            return {};
        }
        rank_candidates_.gather(logits, on_host, candidates_);
        kept = count_kept(candidates_, true, total, filter);
    }
    const std::span<const Candidate> stay(candidates_.data(), *kept);
    if (request.proposal != nullptr) return reject_among(stay, request, inverse);
    const auto best = draw_among(stay, inverse, {request.seed, request.position, Stream::token});
    return stay[best->index];
}

void Sampler::set_logprobs(Choice& choice, const Places& places, float raw, int64_t alternatives) {
    const ExpSum sum = rank_candidates_.sum(places.raw_sum);
    const auto logprob = [&sum](float logit) {
        return sum.empty() ? kNaN : static_cast<float>(double{logit} - sum.log());
    };
    choice.logprob = logprob(raw);
    choice.top_ids.assign(static_cast<size_t>(alternatives), -1);
    choice.top_logprobs.assign(static_cast<size_t>(alternatives), kNaN);
    if (alternatives == 0) return;
    rank_candidates_.top(places.raw_top, alternatives, candidates_);
    for (size_t i = 0; i < candidates_.size(); ++i) {
        choice.top_ids[i] = candidates_[i].id;
        choice.top_logprobs[i] = logprob(candidates_[i].raw);
    }
}

}  // namespace quadrille
