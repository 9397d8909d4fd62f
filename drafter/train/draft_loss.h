// SPDX-License-Identifier: Apache-2.0
// The five losses of a pass of draft blocks and their gradient down to the drafter's hidden rows.
// Slots are the rows behind each block's anchor. Losses are means over the supervised slots of the
// pass, weighted by slot: cross entropy of the token, KL from the target's best tokens, the
// selector's cross entropy among its candidates where the token is one of them, an anchor KL and
// 1 - cosine to the target's final hidden row.
#pragma once

#include "drafter/train/parameters.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/train_ops.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// L_anchor is not published. first_slot: the same KL on the slot behind the anchor, undecayed.
// drafter: KL from the draft to a frozen drafter over the whole vocabulary, a trust region.
enum class AnchorLoss : uint8_t { first_slot, drafter };

// Weight of slot k = 1, 2, ...: power: value^(k - 1). exponential: exp(-(k - 1) / value). dpace:
// sum over j >= k of the products over i <= j of (1 - value) q_i + value, q_i the probability of
// the token in slot i.
enum class SlotDecay : uint8_t { power, exponential, dpace };

struct LossOptions {
    double block_ce = 1.0, kl = 0.5, selector = 2.0, anchor = 0.5, hidden = 0.1;  // weights
    AnchorLoss reading = AnchorLoss::first_slot;
    SlotDecay decay = SlotDecay::power;
    double decay_value = 0.85;
};

struct LossReport {
    double block_ce = 0, kl = 0, selector = 0, anchor = 0, hidden = 0;
    double total = 0;  // weighted
    int64_t blocks = 0, slots = 0;
    // Blocks whose first j + 1 drafts are right: of the selector's walk on its own drafts, of the
    // head alone, and of a selector that chose the right one whenever it is a candidate.
    std::vector<int64_t> accepted, accepted_by_head, accepted_at_best;
    // Slots whose draft is right behind the true predecessor, slots that have the token among
    // their candidates, slots supervised.
    std::vector<int64_t> right, offered, supervised;
    // Drafts that each block keeps, in order: of the walk, and of a selector that chose the right
    // candidate. They stay with one pass: add and ranks leave them out.
    std::vector<int32_t> runs, best_runs;

    void add(const LossReport& other);  // sums; losses weighted by slots
    double accept_length() const;
    double accept_length_by_head() const;
    // All counts, one a slot of a block each.
    std::array<std::vector<int64_t>*, 6> counts();
    std::array<const std::vector<int64_t>*, 6> counts() const;
};

// What supervises the slots of a pass, on the host. Slots: (blocks * (block - 1)).
struct SlotLabels {
    std::vector<int32_t> label, before;
    std::vector<uint8_t> supervised;
};

// Slots of a pass in device memory: the target's final hidden row and its best tokens.
template <class T>
struct SlotTeacher {
    View<const T> hidden;
    Teacher<T> best;
};

template <class T>
class DraftLoss {
  public:
    // `head` (vocab, hidden) and what else is given outlive this. `blocks`: of the largest pass.
    DraftLoss(Backend& backend, TrainOps<T>& ops, const DraftConfig& config,
              const Parameters& parameters, View<const T> head, int64_t blocks);

    // `hidden`: TrainModel's rows; `reference`: those of the frozen drafter, empty unless
    // AnchorLoss::drafter. Without `gradient` only the losses. gradient (trained) +=.
    LossReport run(const LossOptions& options, const T* weights, T* gradient, View<const T> hidden,
                   View<const T> reference, const SlotLabels& labels,
                   const SlotTeacher<T>& teacher);
    // (block rows, hidden), of the last run with a gradient.
    View<const T> dhidden() const { return dhidden_.first(rows_); }

    // The teacher of `hidden` rows of the target: its `best` tokens, into the arrays.
    void best_of(View<T> logits, View<int32_t> ids, View<const T> hidden);

  private:
    struct Host;  // what the weights depend on
    Host measure(const T* weights, View<const T> hidden, View<const T> reference,
                 const SlotLabels& labels, const SlotTeacher<T>& teacher);
    LossReport weigh(const LossOptions& options, Host& host, const SlotLabels& labels);
    void descend(const T* weights, T* gradient, const SlotLabels& labels, const Host& host,
                 const SlotTeacher<T>& teacher);
    Selector16<T> selector_inputs(const T* weights) const;
    View<const T> matrix(const T* weights, const std::string& name) const;

    Backend& backend_;
    TrainOps<T>& ops_;
    const Parameters& parameters_;
    View<const T> head_;
    int64_t block_;
    int64_t rows_ = 0, slots_ = 0;
    bool trusts_ = false;
    Array<T> slots_hidden_, dslots_, dhidden_, logits_, reference_logits_;
    Array<T> losses_;   // (6, slots): lse, ce, kl, trust, hidden, selector
    Array<T> weights_;  // (5, slots): ce, kl, trust, hidden, selector
    Array<int32_t> label_, before_, best_, candidate_ids_;
    Array<T> candidates_, probabilities_, errors_, projected_, dprojected_;
    std::array<Array<int32_t>, 6> lists_;
};

// Weight of every slot (blocks, block - 1); `probability` of the label of each, for dpace.
std::vector<double> slot_weights(const LossOptions& options, std::span<const double> probability,
                                 int64_t slots_of_block);

}  // namespace quadrille
