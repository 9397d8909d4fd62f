// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibration/sublayer.h"

namespace quadrille {

Sublayer::Sublayer(Backend& backend, const Checkpoint& checkpoint, const SublayerPlace& place,
                   const ModelLimits& limits)
    : plan_(plan_shards(place.config, 1, 0)),
      loader_(backend, checkpoint),
      hyper_(backend, place.config, limits.max_rows),
      site_(load_site(loader_, place.config, place.prefix, place.kind)),
      out_(backend, limits.max_rows, place.config.hidden_size) {
    const ModelConfig& config = place.config;
    const auto layer = static_cast<size_t>(place.layer);
    if (place.kind == SiteKind::ffn) {
        ffn_.emplace(backend, loader_, place.prefix + "mlp.", config.ffn[layer], config, plan_);
        ffn_scratch_ = std::make_unique<FfnScratch>(backend, config, plan_, limits.max_rows);
    } else if (config.attention[layer] == AttentionKind::kda) {
        kda_.emplace(backend, loader_, place.prefix + "self_attn.", config, plan_, limits.slots,
                     limits.longest_block());
        kda_scratch_ = std::make_unique<KdaScratch>(backend, config, plan_, limits.max_rows);
    } else {
        mla_.emplace(backend, loader_, place.prefix + "self_attn.", config, plan_, limits.slots,
                     limits.capacity, limits.longest_block());
        mla_scratch_ = std::make_unique<MlaScratch>(backend, config, plan_, limits.max_rows);
    }
    loader_.read();
}

void Sublayer::forward(View<float> streams, const Rows& rows) {
    const View<float> out = out_.first(streams.rows);
    const View<const float> in = hyper_.enter(site_, streams);
    if (kda_) kda_->forward(out, in, rows, *kda_scratch_);
    if (mla_) mla_->forward(out, in, rows, *mla_scratch_);
    if (ffn_) ffn_->forward(out, in, rows, *ffn_scratch_);
    hyper_.leave(streams, out);
}

}  // namespace quadrille
