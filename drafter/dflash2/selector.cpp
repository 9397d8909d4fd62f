// SPDX-License-Identifier: Apache-2.0
#include "drafter/dflash2/selector.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {

Selector::Selector(Backend& backend, Communicator& comm, WeightLoader& loader,
                   const DraftConfig& config, const Matrix& head, Range vocab, int64_t known,
                   int64_t slots)
    : backend_(backend),
      head_(head),
      block_(static_cast<int32_t>(config.block_size)),
      rank_(config.selector_rank),
      top_(rank_ > 0 ? config.selector_top_k : 1),
      best_(backend, comm, vocab, known, slots * (config.block_size - 1), top_) {
    const int64_t hidden = config.hidden_size;
    const int64_t rows = slots * (config.block_size - 1);
    if (rank_ > 0) {
        const std::string prefix = "candidate_selector.";
        predecessor_ = loader.matrix(prefix + "predecessor_codebook", config.vocab_size, rank_);
        successor_ = loader.matrix(prefix + "successor_codebook", config.vocab_size, rank_);
        projection_ = loader.matrix(prefix + "hidden_projection", rank_, hidden);
        projected_ = Array<float>(backend, rows, rank_);
    }
    staged_.reserve(static_cast<size_t>(rows + slots));
    index_ = Array<int32_t>(backend, 1, rows + slots);
    hidden_ = Array<float>(backend, rows, hidden);
    logits_ = Array<float>(backend, rows, vocab.size());
    values_ = Array<float>(backend, rows, top_);
    ids_ = Array<int32_t>(backend, rows, top_);
    path_ = Array<int32_t>(backend, 1, rows);
    draws_ = Array<SampleRow>(backend, 1, slots);
    scores_ = Array<float>(backend, rows, top_);
}

const SampleRow* Selector::upload_draws(std::span<const DraftRequest> requests) {
    staged_draws_.clear();
    bool plain = true;
    for (const DraftRequest& request : requests) {
        staged_draws_.push_back(request.draw);
        plain = plain && request.draw.inverse_temperature == 0.0 && request.draw.penalty == 1.0f;
    }
    if (plain) return nullptr;
    draws_.upload(staged_draws_);
    return draws_.data();
}

View<const int32_t> Selector::walk(View<const float> hidden, int32_t k, const DraftPass& pass,
                                   bool kept) {
    const int64_t sequences = pass.rows.sequences;
    const int64_t m = sequences * k;
    rows_ = m;
    backend_.copy_rows(hidden_.first(m), hidden, pass.predict);
    backend_.linear(logits_.first(m), hidden_.first(m), head_);
    best_.find(values_.first(m), ids_.first(m), logits());
    View<const float> projected;
    if (rank_ > 0) {
        backend_.linear(projected_.first(m), hidden_.first(m), projection_);
        projected = projected_.first(m);
    }
    const View<float> scores = kept ? scores_.first(m) : View<float>();
    const View<int32_t> path(path_.data(), sequences, k);
    backend_.walk_path(path, scores,
                       {.values = values_.first(m),
                        .ids = ids_.first(m),
                        .projected = projected,
                        .predecessor = predecessor_,
                        .successor = successor_,
                        .anchor = pass.anchor,
                        .draws = pass.draws});
    return path;
}

void Selector::choose(std::span<int32_t> drafts, View<const float> hidden, int32_t k,
                      std::span<const DraftRequest> requests) {
    const int64_t m = std::ssize(requests) * k;
    require(k > 0 && k < block_ && std::ssize(drafts) == m && m <= hidden_.rows() &&
                hidden.rows == std::ssize(requests) * block_,
            "choose: drafts (requests k), hidden (requests block, hidden)");
    staged_.clear();
    for (int32_t request = 0; request < static_cast<int32_t>(requests.size()); ++request) {
        for (int32_t slot = 1; slot <= k; ++slot) staged_.push_back(request * block_ + slot);
    }
    for (const DraftRequest& request : requests) staged_.push_back(request.anchor);
    index_.upload(staged_);
    const bool kept = std::any_of(
        requests.begin(), requests.end(),
        [](const DraftRequest& request) { return request.draw.stream == Stream::draft; });
    DraftPass pass;
    pass.rows.sequences = static_cast<int32_t>(requests.size());
    pass.predict = index_.data();
    pass.anchor = index_.data() + m;
    pass.draws = upload_draws(requests);
    walk(hidden, k, pass, kept);
    if (kept) {
        host_ids_.resize(static_cast<size_t>(m * top_));
        host_scores_.resize(host_ids_.size());
        backend_.download(host_ids_.data(), ids_.data(), m * top_ * int64_t{sizeof(int32_t)});
        backend_.download(host_scores_.data(), scores_.data(), m * top_ * int64_t{sizeof(float)});
    }
    backend_.download(drafts.data(), path_.data(), m * int64_t{sizeof(int32_t)});
}

}  // namespace quadrille
