// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine.h"

#include "kernels/error.h"
#include "runtime/seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace quadrille {

namespace {

constexpr int64_t kCompareEvery = 64;  // steps between checks that all ranks agree

// Time from one call to the next, added to a part.
class Laps {
  public:
    void end(double& part) {
        const auto now = std::chrono::steady_clock::now();
        part += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

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
               model.limits().slots * model.limits().max_block, model.limits().max_block - 1),
      history_(backend, model.limits().slots, model.config().vocab_size),
      batch_(backend, batch_rows(model), model.limits().slots) {
    require(options.k < model.limits().max_block, "K drafts and their anchor fit a decode block");
    require(drafter == nullptr || options.k <= drafter->max_k(), "K within the drafter's block");
    require(int64_t{model.limits().slots} * (options.k + 1) <= batch_rows(model),
            "a decode block of every slot in one pass");
    require(options.max_batched_tokens >= kPrefillGrid &&
                options.max_batched_tokens % kPrefillGrid == 0 &&
                options.max_batched_tokens <= batch_rows(model),
            "prefill passes of whole grid cells inside the model's largest pass");
    const bool recorded = options.steps == StepWay::recorded;
    const bool possible =
        recorded ? backend.records() && comm.recordable() : options.steps == StepWay::whole;
    if (possible && (drafter == nullptr || drafter->backend_block() > 0)) {
        device_step_.emplace(
            backend, comm, position, model, drafter,
            DeviceStepOptions{
                .known_tokens = options.known_tokens, .max_k = k_, .recorded = recorded});
    }
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
        reject(prompt, prompt.error);
    } else if (std::ssize(prompt.tokens) >= capacity) {
        reject(prompt, fmt::format("prompt of {} tokens leaves no room in a context of {}",
                                   prompt.tokens.size(), capacity));
    } else if (!prompt.options.stop_text.empty() && options_.tokenizer == nullptr) {
        reject(prompt, "stop_text: there is no tokenizer to find it with");
    } else if (prompt.options.max_new_tokens == 0) {
        Generation nothing = empty_generation(prompt, options_.k);
        nothing.finish_reason = FinishReason::length;
        finished_.push_back(std::move(nothing));
    } else {
        queue_.push_back(std::move(prompt));
    }
}

void Engine::reject(const Prompt& prompt, const std::string& why) {
    Generation result = empty_generation(prompt, options_.k);
    result.status = Status::error;
    result.finish_reason = FinishReason::error;
    result.error = why;
    finished_.push_back(std::move(result));
}

void Engine::admit() {
    const size_t before = running_.size();
    while (!queue_.empty() && !free_slots_.empty()) {
        running_.emplace_back(std::move(queue_.front()), free_slots_.back(), options_.k,
                              options_.seed);
        queue_.pop_front();
        free_slots_.pop_back();
        Sequence& sequence = running_.back();
        if (sequence.prompt.kept.tokens.empty()) continue;
        sequence.take_up_kept(options_.tokenizer);
        if (!sequence.penalized()) continue;
        history_.start(sequence.slot, sequence.prompt.tokens);
        history_.add(sequence.slot, sequence.result.tokens);
    }
    if (running_.size() > before && options_.on_running) options_.on_running(running_);
}

void Engine::step() {
    const auto start = std::chrono::steady_clock::now();
    admit();
    if (running_.empty()) return;
    const bool reading = std::ranges::any_of(running_, &Sequence::prefilling);
    if (reading || std::ranges::any_of(running_, &Sequence::replaying)) {
        position_.enter(stats_.steps, reading ? "prefill" : "replay");
        if (device_step_) device_step_->pause();
        reading ? prefill() : replay();
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

EndLimits Engine::end_limits() const {
    return {
        .eos = options_.eos, .capacity = model_.limits().capacity, .tokenizer = options_.tokenizer};
}

StepOutcome Engine::advance(Sequence& sequence, std::span<const int32_t> drafts,
                            std::span<const Choice> target) {
    target_.clear();
    for (const Choice& choice : target) target_.push_back(choice.token);
    const StepOutcome outcome = sequence.outcome(drafts, target_, end_limits());
    const std::span<const int32_t> emitted = sequence.emit(target, outcome);
    add_to_hash(emitted);
    stats_.emitted += outcome.emitted;
    if (sequence.penalized()) history_.add(sequence.slot, emitted);
    return outcome;
}

void Engine::prefill() {
    batch_.clear(true);
    std::vector<Sequence*> complete;  // records whose last prompt token is in this pass
    int32_t room = options_.max_batched_tokens;
    for (Sequence& sequence : running_) {
        if (!sequence.prefilling()) continue;
        const int32_t take = prefill_chunk(sequence.prompt_size(), sequence.position, room);
        if (take == 0) break;
        const bool draws =
            sequence.position + take == sequence.prompt_size() && sequence.result.tokens.empty();
        const auto* first = sequence.prompt.tokens.data() + sequence.position;
        batch_.add(sequence.slot, sequence.position, 0, {first, static_cast<size_t>(take)},
                   draws ? Logits::last : Logits::none);
        if (draws) complete.push_back(&sequence);
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
    draws_.clear();
    for (const Sequence* sequence : complete) {
        if (sequence->penalized()) history_.start(sequence->slot, sequence->prompt.tokens);
        draws_.push_back(sequence->draw_request(0));
    }
    const std::span<const Choice> choices = sampler_.draw(logits, draws_, history_);
    for (size_t i = 0; i < complete.size(); ++i) {
        stats_.first_tokens += advance(*complete[i], {}, choices.subspan(i, 1)).emitted;
    }
}

// Kept tokens enter the caches in decode passes, as they did when they were emitted: a row's
// arithmetic does not depend on its block. They need no logits: they are drawn already.
void Engine::replay() {
    batch_.clear(false);
    for (Sequence& sequence : running_) {
        if (!sequence.replaying()) continue;
        const int64_t room = batch_.max_rows() - batch_.m();
        const int64_t take =
            std::min({sequence.replay_left(), int64_t{model_.limits().longest_block()}, room});
        if (take == 0) break;
        const int64_t done = sequence.position - sequence.prompt_size();
        batch_.add(sequence.slot, sequence.position, sequence.pending,
                   std::span(sequence.result.tokens)
                       .subspan(static_cast<size_t>(done), static_cast<size_t>(take)),
                   Logits::none);
        sequence.pending = static_cast<int32_t>(take);
        sequence.position += sequence.pending;
    }
    batch_.upload();
    model_.forward(batch_);
    if (drafter_ == nullptr) return;
    write_.assign(static_cast<size_t>(batch_.m()), 1);
    drafter_->append(model_.taps(), write_, batch_.rows());
}

void Engine::draft(int32_t k) {
    requests_.clear();
    for (const Sequence& sequence : running_) {
        DraftRequest request{.record = sequence.prompt.index,
                             .slot = sequence.slot,
                             .position = sequence.position,
                             .anchor = sequence.anchor()};
        request.draw =
            sample_row(sequence.prompt.options, sequence.seed, int64_t{sequence.position} + 1,
                       history_.on_backend(sequence.slot));
        if (options_.accept == AcceptRule::rejection) request.draw.stream = Stream::draft;
        requests_.push_back(request);
    }
    drafts_.resize(requests_.size() * static_cast<size_t>(k));
    proposals_.clear();
    if (k == 0) return;
    position_.op("draft");
    history_.flush();
    drafter_->propose(drafts_, k, requests_);
    // Ranks that draft apart verify different blocks: their sums would mix them up.
    add_to_hash(drafts_);
    if (options_.accept == AcceptRule::coupled) return;
    const DraftCandidates candidates = drafter_->candidates();
    const auto width = static_cast<size_t>(candidates.per_draft);
    for (size_t i = 0; i < drafts_.size(); ++i) {
        Proposal proposal{.token = drafts_[i], .ids = {}, .scores = {}};
        if (width > 0) {
            proposal.ids = candidates.ids.subspan(i * width, width);
            proposal.scores = candidates.scores.subspan(i * width, width);
        }
        proposals_.push_back(proposal);
    }
}

std::span<const int32_t> Engine::verified_drafts(size_t running, int32_t k) const {
    const int32_t count = running_[running].drafts_to_verify(k, end_limits());
    return std::span(drafts_).subspan(running * static_cast<size_t>(k), static_cast<size_t>(count));
}

void Engine::decode() {
    const int32_t k = k_;
    if (takes_whole_step()) {
        decode_whole(k);
    } else {
        if (device_step_) device_step_->pause();
        decode_in_parts(k);
    }
    stats_.decode_records += std::ssize(running_);
}

// The same on every rank: it depends on the options of the records alone.
bool Engine::takes_whole_step() const {
    return device_step_ && options_.accept == AcceptRule::coupled &&
           std::all_of(running_.begin(), running_.end(), [this](const Sequence& sequence) {
               return draws_on_backend(sequence.prompt.options, comm_.size());
           });
}

void Engine::decode_whole(int32_t k) {
    Laps laps;
    step_records_.clear();
    for (const Sequence& sequence : running_) {
        step_records_.push_back({.slot = sequence.slot,
                                 .position = sequence.position,
                                 .pending = sequence.pending,
                                 .anchor = sequence.anchor(),
                                 .drafts = sequence.drafts_to_verify(k, end_limits()),
                                 .draw = sample_row(sequence.prompt.options, sequence.seed,
                                                    int64_t{sequence.position} + 1, nullptr)});
    }
    position_.op("whole step");
    device_step_->run(step_records_, k);
    laps.end(stats_.verify_seconds);
    stats_.recorded_steps = device_step_->replays();
    stats_.gaps = device_step_->gaps();
    stats_.gap_seconds = device_step_->gap_seconds();
    drafts_.assign(device_step_->drafts().begin(), device_step_->drafts().end());
    if (k > 0) add_to_hash(drafts_);
    step_choices_.resize(device_step_->targets().size());
    for (size_t row = 0; row < step_choices_.size(); ++row) {
        step_choices_[row].token = device_step_->targets()[row];
    }
    finish_decode(k, step_choices_);
    laps.end(stats_.accept_seconds);
}

void Engine::decode_in_parts(int32_t k) {
    Laps laps;
    draft(k);
    laps.end(stats_.draft_seconds);
    batch_.clear(false);
    draws_.clear();
    for (size_t i = 0; i < running_.size(); ++i) {
        const Sequence& sequence = running_[i];
        const std::span<const int32_t> drafts = verified_drafts(i, k);
        block_.assign(1, sequence.anchor());
        block_.insert(block_.end(), drafts.begin(), drafts.end());
        batch_.add(sequence.slot, sequence.position, sequence.pending, block_, Logits::all);
        for (size_t row = 0; row <= drafts.size(); ++row) {
            DrawRequest draw = sequence.draw_request(static_cast<int32_t>(row) + 1);
            draw.drafts = drafts.first(row);
            if (row < drafts.size() && !proposals_.empty() && drafts[row] >= 0) {
                draw.proposal = &proposals_[i * static_cast<size_t>(k) + row];
            }
            draws_.push_back(draw);
        }
    }
    batch_.upload();
    const View<const float> logits = model_.forward(batch_);
    laps.end(stats_.verify_seconds);
    position_.op("sample");
    finish_decode(k, sampler_.draw(logits, draws_, history_));
    laps.end(stats_.accept_seconds);
    position_.op("draft context");
    if (drafter_ != nullptr) drafter_->append(model_.taps(), write_, batch_.rows());
    laps.end(stats_.context_seconds);
}

void Engine::finish_decode(int32_t k, std::span<const Choice> choices) {
    write_.assign(choices.size(), 0);
    size_t row = 0;
    for (size_t i = 0; i < running_.size(); ++i) {
        Sequence& sequence = running_[i];
        const std::span<const int32_t> drafts = verified_drafts(i, k);
        const std::span<const Choice> target = choices.subspan(row, drafts.size() + 1);
        const StepOutcome outcome = advance(sequence, drafts, target);
        count_step(sequence.result.acceptance, static_cast<int32_t>(drafts.size()), outcome);
        // Rows 0..accepted hold tokens that stay; of a finished record nothing is needed any more.
        sequence.pending = outcome.accepted + 1;
        sequence.position += sequence.pending;
        std::fill_n(write_.begin() + static_cast<int64_t>(row), sequence.pending, uint8_t{1});
        row += drafts.size() + 1;
    }
}

void Engine::clear_stats() {
    stats_ = {};
    if (device_step_) device_step_->clear_counts();
}

void Engine::retire() {
    for (Sequence& sequence : running_) {
        if (sequence.result.finish_reason == FinishReason::none) continue;
        free_slots_.push_back(sequence.slot);
        finished_.push_back(std::move(sequence.result));
        sequence.slot = -1;
    }
    const size_t retired =
        std::erase_if(running_, [](const Sequence& sequence) { return sequence.slot < 0; });
    if (retired > 0 && options_.on_running) options_.on_running(running_);
}

std::vector<Generation> Engine::take_finished() {
    return std::exchange(finished_, {});
}

std::vector<Generation> Engine::unfinished() const {
    std::vector<Generation> results;
    for (const Sequence& sequence : running_) {
        if (sequence.result.tokens.empty()) continue;
        results.push_back(sequence.result);
        results.back().status = Status::cancelled;
    }
    return results;
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
