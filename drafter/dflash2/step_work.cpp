// SPDX-License-Identifier: Apache-2.0
#include "drafter/dflash2/step_work.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace quadrille {

namespace {

constexpr double kFloat = sizeof(float);

double as_double(int64_t value) {
    return static_cast<double>(value);
}

class DraftOps {
  public:
    DraftOps(const StepModel& model, std::vector<OpWork>& ops)
        : model_(model),
          c_(*model.draft),
          ops_(ops),
          kv_width_(model.draft_plan.kv_heads.size() * c_.head_dim),
          groups_(c_.conv_kernel_size > 0 ? c_.hidden_size / c_.conv_group_size : 0) {}

    // Whole blocks of every sequence, candidates of the first k slots.
    void propose(const std::vector<int64_t>& contexts, int32_t k) {
        const auto blocks = as_double(std::ssize(contexts));
        const double rows = blocks * as_double(c_.block_size);
        rows_ = rows;
        const Storage table = storage_of(model_.storage, "embed_tokens");
        add({.kind = WorkKind::draft,
             .weights = rows * as_double(c_.hidden_size * size_of(table.dtype))});
        for (int64_t l = 0; l < c_.num_layers; ++l) layer(l, contexts, rows);
        vectors(WorkKind::draft, c_.hidden_size);
        activations(WorkKind::draft, rows, c_.hidden_size);
        select(blocks, k);
    }

    // Keys and values of `rows` rows of taps.
    void append(double rows) {
        constexpr WorkKind kind = WorkKind::draft_context;
        rows_ = rows;
        const int64_t taps = std::ssize(c_.target_layer_ids);
        matrix(kind, "fc", c_.hidden_size, taps * c_.hidden_size);
        vectors(kind, c_.hidden_size);
        for (int64_t l = 0; l < c_.num_layers; ++l) {
            const std::string attention = fmt::format("layers.{}.self_attn.", l);
            matrix(kind, attention + "k_proj", kv_width_, c_.hidden_size);
            matrix(kind, attention + "v_proj", kv_width_, c_.hidden_size);
            vectors(kind, c_.head_dim);
        }
        activations(kind, rows, (taps + 1) * c_.hidden_size + 2 * c_.num_layers * kv_width_);
    }

  private:
    void add(const OpWork& op) { ops_.push_back(op); }
    void matrix(WorkKind kind, const std::string& module, int64_t n, int64_t k) {
        add(matrix_work(kind, storage_of(model_.draft_storage, module), n, k, rows_));
    }
    void vectors(WorkKind kind, int64_t values) {
        add({.kind = kind, .weights = kFloat * as_double(values)});
    }
    void activations(WorkKind kind, double rows, int64_t values) {
        add({.kind = kind, .activations = kFloat * rows * as_double(values)});
    }

    void convolution(const std::string& p) {
        if (groups_ == 0) return;
        matrix(WorkKind::draft, p + "kernel_projection", 2 * c_.conv_kernel_size * groups_,
               c_.hidden_size);
        vectors(WorkKind::draft, 2 * c_.conv_kernel_size * c_.hidden_size);
    }

    void layer(int64_t index, const std::vector<int64_t>& contexts, double rows) {
        constexpr WorkKind kind = WorkKind::draft;
        const std::string p = fmt::format("layers.{}.", index);
        const int64_t h = c_.hidden_size;
        const int64_t width = model_.draft_plan.attention.range.size();
        const int64_t mlp = model_.draft_plan.mlp.range.size();
        matrix(kind, p + "self_attn.q_proj", width, h);
        matrix(kind, p + "self_attn.k_proj", kv_width_, h);
        matrix(kind, p + "self_attn.v_proj", kv_width_, h);
        matrix(kind, p + "self_attn.o_proj", h, width);
        matrix(kind, p + "mlp.gate_proj", mlp, h);
        matrix(kind, p + "mlp.up_proj", mlp, h);
        matrix(kind, p + "mlp.down_proj", h, mlp);
        convolution(p + "attention_conv.");
        convolution(p + "mlp_conv.");
        vectors(kind, 2 * h + 2 * c_.head_dim);
        // Either sublayer has the residual, its normed input, its sum; with convolutions their
        // inputs and coefficients too.
        const int64_t mixed = groups_ > 0 ? 2 * h + 2 * c_.conv_kernel_size * groups_ : 0;
        activations(kind, rows, 2 * (3 * h + mixed) + 2 * width + 2 * kv_width_ + 2 * mlp);
        double seen = 0;
        for (const int64_t context : contexts) {
            const bool sliding = c_.sliding.at(static_cast<size_t>(index));
            seen += as_double(sliding ? std::min(context, c_.sliding_window) : context);
        }
        add({.kind = kind, .state = kFloat * seen * as_double(2 * kv_width_)});
    }

    void select(double blocks, int32_t k) {
        constexpr WorkKind kind = WorkKind::draft_head;
        const double rows = blocks * k;
        rows_ = rows;
        const int64_t vocabulary = model_.plan.vocab.size();
        add(matrix_work(kind, storage_of(model_.storage, "lm_head"), vocabulary, c_.hidden_size,
                        rows));
        activations(kind, rows, c_.hidden_size + vocabulary);
        if (c_.selector_rank == 0) return;
        const std::string p = "candidate_selector.";
        matrix(kind, p + "hidden_projection", c_.selector_rank, c_.hidden_size);
        // A row of one table for the token before a slot, one of the other for each candidate.
        const Storage before = storage_of(model_.draft_storage, p + "predecessor_codebook");
        const Storage behind = storage_of(model_.draft_storage, p + "successor_codebook");
        const int64_t bytes =
            c_.selector_rank * (size_of(before.dtype) + c_.selector_top_k * size_of(behind.dtype));
        add({.kind = kind, .weights = rows * as_double(bytes)});
        activations(kind, rows, c_.selector_rank + 2 * c_.selector_top_k);
    }

    const StepModel& model_;
    const DraftConfig& c_;
    std::vector<OpWork>& ops_;
    double rows_ = 0;   // of the matrices added now
    int64_t kv_width_;  // channels of the kv heads this rank holds
    int64_t groups_;    // of the convolutions; 0: none
};

}  // namespace

std::vector<OpWork> step_work(const StepModel& model, const StepShape& shape) {
    require(shape.k == 0 || model.draft.has_value(), "drafts come from a drafter");
    const double rows = as_double(std::ssize(shape.contexts)) * (shape.k + 1);
    std::vector<OpWork> ops = target_work(model.config, model.storage, model.plan,
                                          {.rows = rows,
                                           .logit_rows = rows,
                                           .contexts = shape.contexts,
                                           .pending = shape.pending,
                                           .overlap = shape.overlap});
    if (shape.k == 0) return ops;
    DraftOps draft(model, ops);
    draft.propose(shape.contexts, shape.k);
    draft.append(rows);
    return ops;
}

std::vector<OpWork> prefill_work(const StepModel& model, double rows, std::vector<int64_t> contexts,
                                 bool drafting, double overlap) {
    const double sequences = as_double(std::ssize(contexts));
    std::vector<OpWork> ops = target_work(model.config, model.storage, model.plan,
                                          {.rows = rows,
                                           .logit_rows = sequences,
                                           .contexts = std::move(contexts),
                                           .overlap = overlap});
    if (drafting && model.draft) DraftOps(model, ops).append(rows);
    return ops;
}

}  // namespace quadrille
