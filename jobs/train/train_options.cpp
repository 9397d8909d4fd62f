// SPDX-License-Identifier: Apache-2.0
#include "jobs/train/train_options.h"

#include "jobs/options/common_flags.h"

#include <limits>
#include <vector>

namespace quadrille {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kRateA = 3e-4, kRateB = 1e-4;
constexpr int64_t kParts = 4;

void add_real(CLI::App& app, const char* name, double& value, double high, const char* help,
              const char* group) {
    app.add_option(name, value, help)->check(real(0, true, high))->option_text("X")->group(group);
}

template <class Set>
void add_choice(CLI::App& app, const char* name, std::vector<std::string> names, const char* help,
                const char* group, Set set) {
    const std::vector<std::string> all = names;
    app.add_option_function<std::string>(
           name,
           [all, set](const std::string& text) {
               for (size_t i = 0; i < all.size(); ++i) {
                   if (all[i] == text) set(i);
               }
           },
           help)
        ->check(one_of(std::move(names)))
        ->option_text("NAME")
        ->group(group);
}

void add_losses(CLI::App& app, LossOptions& loss) {
    const char* group = "Losses";
    add_real(app, "--block-ce", loss.block_ce, kMost, "weight: cross entropy of the block [1]",
             group);
    add_real(app, "--kl", loss.kl, kMost, "weight: KL from the target's best 256 [0.5]", group);
    add_real(app, "--selector", loss.selector, kMost, "weight: the selector's choice [2]", group);
    add_real(app, "--anchor", loss.anchor, kMost, "weight: anchor KL [0.5]", group);
    add_real(app, "--hidden", loss.hidden, kMost, "weight: 1 - cosine of final rows [0.1]", group);
    add_choice(app, "--anchor-reading", {"first-slot", "drafter"},
               "anchor KL: first slot or drafter at start", group,
               [&loss](size_t i) { loss.reading = static_cast<AnchorLoss>(i); });
    add_choice(app, "--decay", {"power", "exponential", "dpace"},
               "of weights along the block [power]", group,
               [&loss](size_t i) { loss.decay = static_cast<SlotDecay>(i); });
    add_real(app, "--decay-value", loss.decay_value, kMost, "base, gamma or alpha [0.85, 4, 0.5]",
             group);
}

void add_data(CLI::App& app, TrainOptions& options) {
    const char* group = "Data";
    DataOptions& data = options.data;
    add_number(app, "--sequences", data.sequences, 1, 1 << 16, "of a part; a step has 4 [2]")
        ->group(group);
    add_number(app, "--accumulate", options.accumulate, 1, 1 << 16, "times 4 parts a step [1]")
        ->group(group);
    add_number(app, "--anchors", data.anchors, 1, 1 << 16, "blocks of a sequence, at most [16]")
        ->group(group);
    add_number(app, "--max-length", data.length, 2, kMaxTokens, "rows of a sequence [3072]")
        ->group(group);
    add_real(app, "--validation", data.validation, 0.5, "share held back [0.05]", group);
    add_choice(app, "--noise", {"none", "gaussian", "uniform"}, "on the taps [none]", group,
               [&data](size_t i) { data.noise = static_cast<TapNoise>(i); });
    add_real(app, "--noise-size", data.noise_size, kMost,
             "gaussian: of a row's RMS; uniform: largest [0.05]", group);
    app.add_flag("--shuffle-taps", data.shuffle, "a check: taps of other sequences tell nothing")
        ->group(group);
    app.add_option("--seed", data.seed, "of all draws [0]")
        ->check(unsigned_integer())
        ->option_text("N")
        ->group(group);
}

}  // namespace

void add_flags(CLI::App& app, TrainOptions& options) {
    add_model_folders(app, options);
    add_text(app, "--capture", options.capture, "a capture file", "capture, HDF5", "FILE");
    add_text(app, "--out", options.out, "a folder", "new drafter; also state and train.tsv", "DIR");
    add_choice(app, "--stage", {"a", "b"}, "a: fc, hidden_norm, selector; b: everything [a]",
               "Options",
               [&options](size_t i) { options.trainer.stage = static_cast<TrainStage>(i); });
    app.add_flag("--overwrite", options.overwrite, "replace a drafter that train made at OUT");
    const char* group = "Steps";
    add_number(app, "--epochs", options.epochs, 0, 1 << 20, "times through the data [4]")
        ->group(group);
    add_number(app, "--steps", options.steps, 1, kAny, "instead of epochs")->group(group);
    add_real(app, "--rate", options.rate, kMost, "learning rate [3e-4 in stage a, 1e-4 in b]",
             group);
    add_real(app, "--warm-up", options.warm_up, 1, "share of the steps [0.04]", group);
    add_real(app, "--last-rate", options.last_rate, 1, "of the rate, at the end [0.1]", group);
    add_real(app, "--beta1", options.trainer.beta1, 1, "AdamW [0.9]", group);
    add_real(app, "--beta2", options.trainer.beta2, 1, "AdamW [0.95]", group);
    add_real(app, "--weight-decay", options.trainer.decay, kMost, "AdamW [0]", group);
    add_real(app, "--clip", options.trainer.clip, kMost, "norm of the gradient at most [1]", group);
    add_number(app, "--validate-every", options.validate_every, 1, kAny, "steps [50]")
        ->group(group);
    add_number(app, "--save-every", options.save_every, 1, kAny, "steps [50]")->group(group);
    add_losses(app, options.trainer.loss);
    add_data(app, options);
}

void finish(TrainOptions& options, const Invocation& /*invocation*/) {
    finish_model(options);
    need(options.draft != "none", "--draft", "a drafter's folder to start from");
    need(!options.capture.empty(), "--capture", "a capture file");
    need(!options.out.empty(), "--out", "a folder for the new drafter");
    options.backend = "cpu";
    options.trainer.parts = kParts * options.accumulate;
    if (options.rate == 0) options.rate = options.trainer.stage == TrainStage::a ? kRateA : kRateB;
    LossOptions& loss = options.trainer.loss;
    if (loss.decay_value == LossOptions().decay_value && loss.decay != SlotDecay::power) {
        loss.decay_value = loss.decay == SlotDecay::exponential ? 4 : 0.5;
    }
    if (loss.decay == SlotDecay::exponential && loss.decay_value == 0) {
        fail_usage("--decay-value: expected more than 0 for exponential, found 0");
    }
}

}  // namespace quadrille
