// SPDX-License-Identifier: Apache-2.0
// A DFlash2 drafter forward over many draft blocks at once, keeping what the way back needs, and
// backward to the gradients of its parameters. Context at or behind a block's anchor is invisible
// to it. Gradients flow through layers that are frozen; only their own are left out.
#pragma once

#include "drafter/train/parameters.h"
#include "io/checkpoint/model_config.h"
#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/train_ops.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

// Sizes of the largest pass.
struct TrainLimits {
    int64_t context = 0;  // rows
    int64_t blocks = 0;
};

// One pass, in device memory but for the plan's sequences.
template <class T>
struct TrainPass {
    View<const T> taps;                          // (context rows, taps * hidden)
    const int32_t* context_positions = nullptr;  // (context rows)
    const int32_t* block_positions = nullptr;    // (block rows)
    const int32_t* block_tokens = nullptr;       // (block rows): anchor, MASK, ...
    BlockPlan plan;
    int64_t blocks = 0;
};

template <class T>
class TrainModel {
  public:
    // `embedding` (vocab, hidden), `weights` (parameters.count()) in the device's memory; all
    // outlive this.
    TrainModel(Backend& backend, TrainOps<T>& ops, const DraftConfig& config,
               const Parameters& parameters, View<const T> embedding, const TrainLimits& limits);

    // (block rows, hidden) after the final norm, valid until the next forward.
    View<const T> forward(const T* weights, const TrainPass<T>& pass);
    // After forward of the same pass: `gradient` (trained(stage)) += ; dhidden (block rows,
    // hidden).
    void backward(const T* weights, T* gradient, TrainStage stage, const TrainPass<T>& pass,
                  View<const T> dhidden);

  private:
    struct LayerNames;
    struct Sublayer {  // rows before the norm, normed, convolved; coefficients; before the last
                       // conv
        Array<T> in, normed, dynamic, mixed, out;
    };
    struct Tape {
        Sublayer attention, mlp;
        Array<T> q_raw, k_raw, q, k, v, attended;
        Array<T> context_k_raw, context_k, context_v;
        Array<T> gate, up, product;
    };
    struct Back {
        Array<T> rows, normed, mixed, out, dynamic, q, q_raw, k, k_raw, v, attended;
        Array<T> context_k, context_k_raw, context_v, context, context_raw;
        Array<T> gate, up, product;
    };
    struct Step;  // weights, gradients and rows of one call

    Array<T> room(int64_t rows, int64_t cols) const { return Array<T>(backend_, rows, cols); }
    void make_room();
    ConvShape conv_shape(int64_t side) const;
    AttentionShape attention_shape(size_t layer) const;
    AttentionInputs<T> attention_inputs(const Tape& tape, const Step& s) const;
    void enter(Sublayer& sub, const Step& s, const std::string& norm, const std::string& conv);
    void leave(Array<T>& to, const Sublayer& sub, const Step& s, const std::string& conv);
    void attend(size_t layer, const Step& s);
    void feed(size_t layer, const Step& s);
    // Both ends of a sublayer on the way back: back_.out from back_.rows; back_.rows += from
    // back_.mixed.
    void leave_back(const Sublayer& sub, const Step& s, const std::string& conv);
    void enter_back(const Sublayer& sub, const Step& s, const std::string& norm,
                    const std::string& conv);
    void attend_back(size_t layer, const Step& s);
    void project_back(size_t layer, const Step& s);
    void feed_back(size_t layer, const Step& s);

    Backend& backend_;
    TrainOps<T>& ops_;
    DraftConfig config_;
    const Parameters& parameters_;
    View<const T> embedding_;
    TrainLimits limits_;
    T eps_;
    Array<T> context_raw_, context_, last_, hidden_;
    std::vector<Tape> tapes_;
    Back back_;
};

}  // namespace quadrille
