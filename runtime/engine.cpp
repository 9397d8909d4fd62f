// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine.h"

#include "kernels/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace quadrille {

namespace {

constexpr int64_t kCompareEvery = 64;  // steps between checks that all ranks agree

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int32_t batch_rows(const TargetModel& model) {
    return model.limits().max_rows;
}

}  // namespace

Engine::Engine(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
               Drafter* drafter, const EngineOptions& options)
    : backend_(backend),
      comm_(comm),
      position_(position),
      model_(model),
      drafter_(drafter),
      options_(options),
      k_(drafter == nullptr ? 0 : options.k),
      sampler_(backend, comm, model.plan().vocab, options.known_tokens,
               model.limits().slots * model.limits().max_block),
      batch_(backend, batch_rows(model), model.limits().slots) {
    require(options.k < model.limits().max_block, "K drafts and their anchor fit a decode block");
    require(drafter == nullptr || options.k <= drafter->max_k(), "K within the drafter's block");
    require(int64_t{model.limits().slots} * (options.k + 1) <= batch_rows(model),
            "a decode block of every slot in one pass");
    require(options.max_batched_tokens >= kPrefillGrid &&
                options.max_batched_tokens % kPrefillGrid == 0 &&
                options.max_batched_tokens <= batch_rows(model),
            "prefill passes of whole grid cells inside the model's largest pass");
    for (int32_t slot = model.limits().slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
    running_.reserve(static_cast<size_t>(model.limits().slots));
}

void Engine::set_k(int32_t k) {
    require(k >= 0 && k <= options_.k && (k == 0 || drafter_ != nullptr), "K within its limit");
    k_ = k;
}

void Engine::submit(Prompt prompt) {
    const int64_t capacity = model_.limits().capacity;
    if (!prompt.error.empty()) {
        reject(std::move(prompt), "");
    } else if (std::ssize(prompt.tokens) >= capacity) {
        const std::string why = fmt::format("prompt of {} tokens leaves no room in a context of {}",
                                            prompt.tokens.size(), capacity);
        reject(std::move(prompt), why);
    } else {
        queue_.push_back(std::move(prompt));
    }
}

void Engine::reject(Prompt prompt, const std::string& why) {
    Generation result;
    result.prompt_index = prompt.index;
    result.status = Status::error;
    result.finish_reason = FinishReason::error;
    result.error = prompt.error.empty() ? why : prompt.error;
    result.acceptance.by_position.resize(static_cast<size_t>(options_.k));
    result.acceptance.histogram.resize(static_cast<size_t>(options_.k) + 1);
    finished_.push_back(std::move(result));
}

void Engine::admit() {
    while (!queue_.empty() && !free_slots_.empty()) {
        Sequence sequence;
        sequence.prompt = std::move(queue_.front());
        queue_.pop_front();
        sequence.slot = free_slots_.back();
        free_slots_.pop_back();
        sequence.result.prompt_index = sequence.prompt.index;
        sequence.result.acceptance.by_position.resize(static_cast<size_t>(options_.k));
        sequence.result.acceptance.histogram.resize(static_cast<size_t>(options_.k) + 1);
        running_.push_back(std::move(sequence));
    }
}

void Engine::step() {
    const auto start = std::chrono::steady_clock::now();
    admit();
    if (running_.empty()) return;
    const bool reading = std::any_of(running_.begin(), running_.end(),
                                     [](const Sequence& s) { return s.prefilling(); });
    if (reading) {
        position_.enter(stats_.steps, "prefill");
        prefill();
        stats_.prefill_seconds += seconds_since(start);
    } else {
        position_.enter(stats_.steps, "decode");
        decode();
        ++stats_.decode_steps;
        stats_.decode_seconds += seconds_since(start);
    }
    retire();
    if (++stats_.steps % kCompareEvery == 0) compare_ranks();
}

EndRule Engine::end_rule(const Sequence& sequence) const {
    const RecordOptions& options = sequence.prompt.options;
    const int64_t done = std::ssize(sequence.result.tokens);
    const int64_t by_length = options.max_new_tokens - done;
    const int64_t by_context = model_.limits().capacity - sequence.prompt_size() - done;
    return {.eos = options.ignore_eos ? std::span<const int32_t>{} : options_.eos,
            .stop = options.stop_tokens,
            .tokens_left = std::min(by_length, by_context),
            .context_bound = by_context < by_length};
}

bool Engine::emit(Sequence& sequence, std::span<const int32_t> target, const StepOutcome& outcome) {
    const std::span<const int32_t> emitted = target.first(static_cast<size_t>(outcome.emitted));
    sequence.result.tokens.insert(sequence.result.tokens.end(), emitted.begin(), emitted.end());
    add_to_hash(emitted);
    stats_.emitted += outcome.emitted;
    sequence.result.finish_reason = outcome.finish;
    return outcome.finish != FinishReason::none;
}

void Engine::prefill() {
    batch_.clear(true);
    std::vector<Sequence*> complete;  // records whose last prompt token is in this pass
    int32_t room = options_.max_batched_tokens;
    for (Sequence& sequence : running_) {
        if (!sequence.prefilling()) continue;
        const auto left = static_cast<int32_t>(sequence.prompt_size()) - sequence.position;
        const int32_t take =
            left <= room
                ? left
                : (sequence.position + room) / kPrefillGrid * kPrefillGrid - sequence.position;
        if (take <= 0) break;
        const auto* first = sequence.prompt.tokens.data() + sequence.position;
        batch_.add(sequence.slot, sequence.position, 0, {first, static_cast<size_t>(take)},
                   take == left ? Logits::last : Logits::none);
        if (take == left) complete.push_back(&sequence);
        sequence.position += take;
        room -= take;
    }
    batch_.upload();
    const View<const float> logits = model_.forward(batch_);
    stats_.prefill_tokens += batch_.m();
    if (drafter_ != nullptr) {
        write_.assign(static_cast<size_t>(batch_.m()), 1);
        drafter_->append(model_.taps(), write_, batch_.rows());
    }
    if (complete.empty()) return;
    const std::span<const int32_t> tokens = sampler_.greedy(logits);
    for (size_t i = 0; i < complete.size(); ++i) {
        const StepOutcome outcome = accept_prefix({}, tokens.subspan(i, 1), end_rule(*complete[i]));
        emit(*complete[i], tokens.subspan(i, 1), outcome);
    }
}

void Engine::draft(int32_t k) {
    requests_.clear();
    for (const Sequence& sequence : running_) {
        requests_.push_back({.record = sequence.prompt.index,
                             .slot = sequence.slot,
                             .position = sequence.position,
                             .anchor = sequence.result.tokens.back()});
    }
    drafts_.resize(requests_.size() * static_cast<size_t>(k));
    position_.op("draft");
    if (k == 0) return;
    drafter_->propose(drafts_, k, requests_);
    // Ranks that draft apart verify different blocks: their sums would mix them up.
    add_to_hash(drafts_);
}

void Engine::decode() {
    const int32_t k = k_;
    draft(k);
    batch_.clear(false);
    for (size_t i = 0; i < running_.size(); ++i) {
        const Sequence& sequence = running_[i];
        const auto verified =
            static_cast<size_t>(std::min<int64_t>(k, end_rule(sequence).tokens_left));
        const auto* first = drafts_.data() + i * static_cast<size_t>(k);
        block_.assign(1, sequence.result.tokens.back());
        block_.insert(block_.end(), first, first + verified);
        batch_.add(sequence.slot, sequence.position, sequence.pending, block_, Logits::all);
    }
    batch_.upload();
    const std::span<const int32_t> tokens = sampler_.greedy(model_.forward(batch_));
    if (drafter_ != nullptr) write_.assign(static_cast<size_t>(batch_.m()), 0);
    size_t row = 0;
    for (size_t i = 0; i < running_.size(); ++i) {
        Sequence& sequence = running_[i];
        const EndRule rule = end_rule(sequence);
        const auto verified = static_cast<size_t>(std::min<int64_t>(k, rule.tokens_left));
        const std::span<const int32_t> drafts{drafts_.data() + i * static_cast<size_t>(k),
                                              verified};
        const std::span<const int32_t> target = tokens.subspan(row, verified + 1);
        const StepOutcome outcome = accept_prefix(drafts, target, rule);
        count_step(sequence.result.acceptance, static_cast<int32_t>(verified), outcome);
        emit(sequence, target, outcome);
        // Rows 0..accepted hold tokens that stay; of a finished record nothing is needed any more.
        sequence.pending = outcome.accepted + 1;
        sequence.position += sequence.pending;
        if (drafter_ != nullptr) {
            std::fill_n(write_.begin() + static_cast<int64_t>(row), sequence.pending, uint8_t{1});
        }
        row += verified + 1;
    }
    position_.op("draft context");
    if (drafter_ != nullptr) drafter_->append(model_.taps(), write_, batch_.rows());
}

void Engine::retire() {
    for (Sequence& sequence : running_) {
        if (sequence.result.finish_reason == FinishReason::none) continue;
        free_slots_.push_back(sequence.slot);
        finished_.push_back(std::move(sequence.result));
        sequence.slot = -1;
    }
    std::erase_if(running_, [](const Sequence& sequence) { return sequence.slot < 0; });
}

std::vector<Generation> Engine::take_finished() {
    return std::exchange(finished_, {});
}

void Engine::add_to_hash(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
        hash_ = (hash_ ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
    }
}

void Engine::compare_ranks() {
    std::vector<uint64_t> hashes(static_cast<size_t>(comm_.size()));
    comm_.all_gather_host(hashes.data(), &hash_, sizeof hash_);
    for (size_t rank = 0; rank < hashes.size(); ++rank) {
        if (hashes[rank] == hashes[0]) continue;
        throw Error(ErrorKind::comm,
                    fmt::format("rank {} drafted or emitted other tokens than rank 0 by step {}",
                                rank, stats_.steps));
    }
}

}  // namespace quadrille
