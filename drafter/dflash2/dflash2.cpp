// SPDX-License-Identifier: Apache-2.0
#include "drafter/dflash2/dflash2.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {

namespace {

// Runs before anything is loaded: the first member that needs a sound config comes after it.
DraftPlan checked_plan(const DraftConfig& config, const Checkpoint& checkpoint,
                       const TargetModel& target, DraftPlacement placement) {
    check_draft_config(config, target.config(), 0);
    check_draft_tensors(config, checkpoint);
    require(target.tap_layers() == config.target_layer_ids,
            "the target was built with the drafter's taps");
    return plan_draft(config, placement, target.plan().ranks, target.plan().rank);
}

}  // namespace

DFlash2::DFlash2(Backend& backend, Communicator& comm, Position& position,
                 const DraftConfig& config, const Checkpoint& checkpoint, const TargetModel& target,
                 const DraftOptions& options)
    : backend_(backend),
      position_(position),
      config_(config),
      block_(static_cast<int32_t>(config.block_size)),
      norm_eps_(static_cast<float>(config.rms_norm_eps)),
      plan_(checked_plan(config, checkpoint, target, options.placement)),
      limits_{.slots = target.limits().slots,
              .capacity = target.limits().capacity,
              .context = target.limits().max_rows,
              .block = target.limits().slots * config.block_size},
      loader_(backend, checkpoint, &position),
      embedding_(target.embedding()),
      fc_(loader_.matrix("fc", config.hidden_size,
                         std::ssize(config.target_layer_ids) * config.hidden_size)),
      hidden_norm_(loader_.vector("hidden_norm.weight", config.hidden_size)),
      norm_(loader_.vector("norm.weight", config.hidden_size)),
      selector_(backend, comm, loader_, config, target.head(), target.plan().vocab,
                options.known_tokens > 0 ? options.known_tokens : config.vocab_size, limits_.slots),
      scratch_(backend, config, plan_, limits_),
      batch_(backend, static_cast<int32_t>(limits_.block), target.limits().slots),
      block_tokens_(static_cast<size_t>(block_), static_cast<int32_t>(config.mask_token_id)),
      write_(backend, 1, limits_.context),
      features_(backend, limits_.context, config.hidden_size),
      rows_(backend, limits_.block, config.hidden_size),
      hidden_(backend, limits_.block, config.hidden_size) {
    layers_.reserve(static_cast<size_t>(config.num_layers));
    for (int64_t l = 0; l < config.num_layers; ++l) {
        layers_.emplace_back(backend, loader_, config, l, plan_, limits_);
    }
    if (plan_.partial) reduce_.emplace(backend, comm, limits_.block, config.hidden_size);
    loader_.read(options.progress);
}

void DFlash2::append(View<const float> taps, std::span<const uint8_t> write, const Rows& rows) {
    require(std::ssize(write) == rows.m, "append: which of the rows to write");
    write_.upload(write);
    append_on_backend(taps, write_.data(), rows);
}

void DFlash2::append_on_backend(View<const float> taps, const uint8_t* write, const Rows& rows) {
    const int64_t m = rows.m;
    require(taps.rows == m && taps.cols == fc_.k,
            "append: taps (m, taps hidden) of the target's last forward");
    appended_ = m;
    const View<float> features = features_.first(m);
    backend_.linear(features, taps, fc_);
    backend_.rms_norm(features, features, hidden_norm_, norm_eps_);
    for (const DraftLayer& layer : layers_) layer.append(features, write, rows, scratch_);
}

void DFlash2::run_block(const Rows& of, const int32_t* tokens) {
    const View<float> rows = rows_.first(of.m);
    backend_.embed(rows, tokens, embedding_, 1);
    for (size_t l = 0; l < layers_.size(); ++l) {
        position_.layer(static_cast<int32_t>(l));
        position_.op("draft layer");
        layers_[l].forward(rows, of, scratch_, reduce_ ? &*reduce_ : nullptr);
    }
    position_.layer(-1);
    backend_.rms_norm(hidden_.first(of.m), rows, norm_, norm_eps_);
    proposed_ = of.sequences;
}

View<const int32_t> DFlash2::propose_on_backend(int32_t k, const DraftPass& pass) {
    require(k > 0 && k <= max_k() && pass.rows.sequences <= limits_.slots &&
                pass.rows.m == pass.rows.sequences * block_,
            "propose: K within the block, whole blocks within the slots");
    run_block(pass.rows, pass.tokens);
    position_.op("draft selector");
    return selector_.choose_on_backend(hidden(), k, pass);
}

void DFlash2::propose(std::span<int32_t> drafts, int32_t k,
                      std::span<const DraftRequest> requests) {
    require(k >= 0 && k <= max_k() && std::ssize(requests) <= limits_.slots,
            "propose: K within the block, requests within the slots");
    proposed_ = std::ssize(requests);
    if (k == 0 || requests.empty()) return;
    batch_.clear(false);
    for (const DraftRequest& request : requests) {
        block_tokens_.front() = request.anchor;
        batch_.add(request.slot, request.position, 0, block_tokens_, Logits::none);
    }
    batch_.upload();
    run_block(batch_.rows(), batch_.tokens());
    position_.op("draft selector");
    selector_.choose(drafts, hidden(), k, requests);
}

std::vector<std::vector<float>> DFlash2::download_context(int32_t slot, int64_t first,
                                                          int64_t last) const {
    std::vector<std::vector<float>> contexts;
    for (const DraftLayer& layer : layers_) {
        contexts.push_back(layer.download_context(slot, first, last));
    }
    return contexts;
}

}  // namespace quadrille
