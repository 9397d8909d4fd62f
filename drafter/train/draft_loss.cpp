// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/draft_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace quadrille {

namespace {

enum LossRow : int64_t { kLse, kCe, kKl, kTrust, kHidden, kSelector, kLossRows };
enum WeightRow : int64_t { kWeightRows = 5 };

void add_counts(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    to.resize(std::max(to.size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

double length_of(const std::vector<int64_t>& accepted, int64_t blocks) {
    double sum = 0;
    for (const int64_t count : accepted) sum += static_cast<double>(count);
    return blocks > 0 ? 1.0 + sum / static_cast<double>(blocks) : 0.0;
}

// Rows by the token they belong to.
struct Lists {
    std::vector<int32_t> tokens, offsets, entries;
};

Lists by_token(std::vector<std::pair<int32_t, int32_t>> pairs) {
    std::ranges::sort(pairs);
    Lists lists;
    for (const auto& [token, entry] : pairs) {
        if (lists.tokens.empty() || lists.tokens.back() != token) {
            lists.tokens.push_back(token);
            lists.offsets.push_back(static_cast<int32_t>(lists.entries.size()));
        }
        lists.entries.push_back(entry);
    }
    lists.offsets.push_back(static_cast<int32_t>(lists.entries.size()));
    return lists;
}

}  // namespace

void LossReport::add(const LossReport& other) {
    const auto all = static_cast<double>(slots + other.slots);
    if (all == 0) return;
    const double own = static_cast<double>(slots) / all;
    const double theirs = static_cast<double>(other.slots) / all;
    const auto mix = [&](double LossReport::*loss) {
        this->*loss = own * this->*loss + theirs * other.*loss;
    };
    for (const auto loss : {&LossReport::block_ce, &LossReport::kl, &LossReport::selector,
                            &LossReport::anchor, &LossReport::hidden, &LossReport::total}) {
        mix(loss);
    }
    blocks += other.blocks;
    slots += other.slots;
    for (size_t i = 0; i < counts().size(); ++i) add_counts(*counts()[i], *other.counts()[i]);
}

std::array<std::vector<int64_t>*, 6> LossReport::counts() {
    return {&accepted, &accepted_by_head, &accepted_at_best, &right, &offered, &supervised};
}

std::array<const std::vector<int64_t>*, 6> LossReport::counts() const {
    return {&accepted, &accepted_by_head, &accepted_at_best, &right, &offered, &supervised};
}

double LossReport::accept_length() const {
    return length_of(accepted, blocks);
}

double LossReport::accept_length_by_head() const {
    return length_of(accepted_by_head, blocks);
}

std::vector<double> slot_weights(const LossOptions& options, std::span<const double> probability,
                                 int64_t slots_of_block) {
    std::vector<double> weights(probability.size());
    const auto per = static_cast<size_t>(slots_of_block);
    for (size_t first = 0; first < weights.size(); first += per) {
        double product = 1;
        for (size_t k = 0; k < per; ++k) {
            const auto place = static_cast<double>(k);
            if (options.decay == SlotDecay::power) {
                weights[first + k] = std::pow(options.decay_value, place);
            } else if (options.decay == SlotDecay::exponential) {
                weights[first + k] = std::exp(-place / options.decay_value);
            } else {
                product *= (1 - options.decay_value) * probability[first + k] + options.decay_value;
                weights[first + k] = product;
            }
        }
        if (options.decay != SlotDecay::dpace) continue;
        for (size_t k = per - 1; k-- > 0;) weights[first + k] += weights[first + k + 1];
    }
    return weights;
}

template <class T>
struct DraftLoss<T>::Host {
    std::vector<T> losses;  // (kLossRows, slots)
    std::vector<int32_t> best, ids;
    int64_t slots = 0, candidates = 0;
    std::vector<T> weights;  // (kWeightRows, slots)

    double loss(LossRow row, int64_t slot) const {
        return static_cast<double>(losses[static_cast<size_t>(row * slots + slot)]);
    }
    int32_t draft(int64_t slot, bool by_head) const {
        const int64_t place = by_head ? 0 : best[static_cast<size_t>(slot)];
        return ids[static_cast<size_t>(slot * candidates + place)];
    }
};

template <class T>
DraftLoss<T>::DraftLoss(Backend& backend, TrainOps<T>& ops, const DraftConfig& config,
                        const Parameters& parameters, View<const T> head, int64_t blocks)
    : backend_(backend),
      ops_(ops),
      parameters_(parameters),
      head_(head),
      block_(config.block_size) {
    const int64_t slots = blocks * (block_ - 1);
    slots_hidden_ = Array<T>(backend, slots, config.hidden_size);
    dslots_ = Array<T>(backend, slots, config.hidden_size);
    dhidden_ = Array<T>(backend, blocks * block_, config.hidden_size);
    logits_ = Array<T>(backend, slots, config.vocab_size);
    losses_ = Array<T>(backend, kLossRows, slots);
    weights_ = Array<T>(backend, kWeightRows, slots);
    label_ = Array<int32_t>(backend, 1, slots);
    before_ = Array<int32_t>(backend, 1, slots);
    best_ = Array<int32_t>(backend, 1, slots);
    candidate_ids_ = Array<int32_t>(backend, slots, config.selector_top_k);
    candidates_ = Array<T>(backend, slots, config.selector_top_k);
    probabilities_ = Array<T>(backend, slots, config.selector_top_k);
    errors_ = Array<T>(backend, slots, config.selector_top_k);
    projected_ = Array<T>(backend, slots, config.selector_rank);
    dprojected_ = Array<T>(backend, slots, config.selector_rank);
    for (Array<int32_t>& list : lists_) {
        list = Array<int32_t>(backend, 1, slots * config.selector_top_k + 1);
    }
}

template <class T>
View<const T> DraftLoss<T>::matrix(const T* weights, const std::string& name) const {
    const Parameter& p = parameters_.get(name);
    return {weights + p.offset, p.rows(), p.cols()};
}

template <class T>
Selector16<T> DraftLoss<T>::selector_inputs(const T* weights) const {
    return {.ids = candidate_ids_.first(slots_),
            .scores = candidates_.first(slots_),
            .projected = projected_.first(slots_),
            .predecessor = matrix(weights, "candidate_selector.predecessor_codebook"),
            .successor = matrix(weights, "candidate_selector.successor_codebook"),
            .before = before_.data(),
            .label = label_.data()};
}

template <class T>
void DraftLoss<T>::best_of(View<T> logits, View<int32_t> ids, View<const T> hidden) {
    const View<T> all = logits_.first(hidden.rows);
    ops_.product(all, hidden, head_, ProductForm::nt, false);
    ops_.top_k(logits, ids, all);
}

template <class T>
typename DraftLoss<T>::Host DraftLoss<T>::measure(const T* weights, View<const T> hidden,
                                                  View<const T> reference, const SlotLabels& labels,
                                                  const SlotTeacher<T>& teacher) {
    const View<T> slots = slots_hidden_.first(slots_);
    const View<T> logits = logits_.first(slots_);
    label_.upload(labels.label);
    before_.upload(labels.before);
    View<T> reference_logits;
    if (trusts_) {
        if (reference_logits_.rows() == 0) {
            reference_logits_ = Array<T>(backend_, logits_.rows(), logits_.cols());
        }
        reference_logits = reference_logits_.first(slots_);
        ops_.take_slots(slots, reference, block_);
        ops_.product(reference_logits, slots, head_, ProductForm::nt, false);
    }
    ops_.take_slots(slots, hidden, block_);
    ops_.product(logits, slots, head_, ProductForm::nt, false);
    T* losses = losses_.data();
    const RowLosses<T> rows{losses + kLse * slots_, losses + kCe * slots_, losses + kKl * slots_,
                            losses + kTrust * slots_, losses + kHidden * slots_};
    ops_.loss_rows(rows, logits, label_.data(), teacher.best, reference_logits);
    ops_.cosine(rows.hidden, slots, teacher.hidden);
    ops_.top_k(candidates_.first(slots_), candidate_ids_.first(slots_), logits);
    ops_.product(projected_.first(slots_), slots,
                 matrix(weights, "candidate_selector.hidden_projection.weight"), ProductForm::nt,
                 false);
    ops_.selector(probabilities_.first(slots_), losses + kSelector * slots_, best_.data(),
                  selector_inputs(weights));
    Host host{.losses = losses_.download(),
              .best = best_.download(),
              .ids = candidate_ids_.download(),
              .slots = slots_,
              .candidates = candidate_ids_.cols(),
              .weights = std::vector<T>(static_cast<size_t>(kWeightRows * slots_))};
    return host;
}

// Losses, and the weight of each in every slot: its share of the mean times the loss's own weight.
template <class T>
LossReport DraftLoss<T>::weigh(const LossOptions& options, Host& host, const SlotLabels& labels) {
    const int64_t per = block_ - 1;
    std::vector<double> probability(static_cast<size_t>(slots_));
    for (int64_t i = 0; i < slots_; ++i) {
        probability[static_cast<size_t>(i)] = std::exp(-host.loss(kCe, i));
    }
    const std::vector<double> decay = slot_weights(options, probability, per);
    const auto chosen = [&](int64_t i, LossRow row) {
        if (labels.supervised[static_cast<size_t>(i)] == 0) return 0.0;
        if (row == kSelector && host.loss(kSelector, i) < 0) return 0.0;
        if (row == kLse) return i % per == 0 ? 1.0 : 0.0;  // the first slot alone
        return decay[static_cast<size_t>(i)];
    };
    std::vector<T>& out = host.weights;
    const auto mean = [&](LossRow which, LossRow loss, double weight, int64_t to) {
        double all = 0, sum = 0;
        for (int64_t i = 0; i < slots_; ++i) all += chosen(i, which);
        if (all == 0) return 0.0;
        for (int64_t i = 0; i < slots_; ++i) {
            const double share = chosen(i, which) / all;
            if (share == 0) continue;
            sum += share * host.loss(loss, i);
            out[static_cast<size_t>(to * slots_ + i)] += static_cast<T>(weight * share);
        }
        return sum;
    };
    LossReport report;
    report.block_ce = mean(kCe, kCe, options.block_ce, 0);
    report.kl = mean(kKl, kKl, options.kl, 1);
    report.anchor =
        trusts_ ? mean(kTrust, kTrust, options.anchor, 2) : mean(kLse, kKl, options.anchor, 1);
    report.hidden = mean(kHidden, kHidden, options.hidden, 3);
    report.selector = mean(kSelector, kSelector, options.selector, 4);
    report.total = options.block_ce * report.block_ce + options.kl * report.kl +
                   options.selector * report.selector + options.anchor * report.anchor +
                   options.hidden * report.hidden;
    return report;
}

namespace {

// Drafts against labels. A slot that is not supervised ends its block's run of right ones.
template <class Draft, class Offered>
void count_accepted(LossReport& report, const SlotLabels& labels, int64_t per, const Draft& draft,
                    const Offered& offered) {
    const auto slots = static_cast<int64_t>(labels.label.size());
    report.blocks = slots / per;
    for (auto* counts : report.counts()) counts->assign(static_cast<size_t>(per), 0);
    for (int64_t first = 0; first < slots; first += per) {
        int32_t run = 0, best_run = 0;
        bool alive = true, alive_by_head = true, alive_at_best = true;
        for (int64_t k = 0; k < per; ++k) {
            const auto i = static_cast<size_t>(first + k);
            const auto place = static_cast<size_t>(k);
            const bool counts = labels.supervised[i] != 0;
            const bool right = counts && draft(first + k, false) == labels.label[i];
            alive = alive && right;
            alive_by_head = alive_by_head && counts && draft(first + k, true) == labels.label[i];
            const bool had = counts && offered(first + k);
            alive_at_best = alive_at_best && had;
            report.slots += counts ? 1 : 0;
            report.supervised[place] += counts ? 1 : 0;
            report.right[place] += right ? 1 : 0;
            report.offered[place] += had ? 1 : 0;
            report.accepted_at_best[place] += alive_at_best ? 1 : 0;
            report.accepted[place] += alive ? 1 : 0;
            report.accepted_by_head[place] += alive_by_head ? 1 : 0;
            run += alive ? 1 : 0;
            best_run += alive_at_best ? 1 : 0;
        }
        report.runs.push_back(run);
        report.best_runs.push_back(best_run);
    }
}

}  // namespace

template <class T>
void DraftLoss<T>::descend(const T* weights, T* gradient, const SlotLabels& labels,
                           const Host& host, const SlotTeacher<T>& teacher) {
    weights_.upload(host.weights);
    const T* w = weights_.data();
    const RowWeights<T> rows{w, w + slots_, w + 2 * slots_, w + 3 * slots_, w + 4 * slots_};
    T* losses = losses_.data();
    const View<T> dlogits = logits_.first(slots_);
    const View<const T> reference =
        trusts_ ? View<const T>(reference_logits_.first(slots_)) : View<const T>();
    ops_.loss_back(dlogits,
                   {losses + kLse * slots_, losses + kCe * slots_, losses + kKl * slots_,
                    losses + kTrust * slots_, losses + kHidden * slots_},
                   rows, label_.data(), teacher.best, reference);
    const Selector16<T> selector = selector_inputs(weights);
    ops_.selector_back(dlogits, dprojected_.first(slots_), errors_.first(slots_),
                       probabilities_.first(slots_), rows.selector, selector);
    std::vector<std::pair<int32_t, int32_t>> before, candidates;
    for (int64_t i = 0; i < slots_; ++i) {
        if (host.weights[static_cast<size_t>(4 * slots_ + i)] == T{0}) continue;
        before.emplace_back(labels.before[static_cast<size_t>(i)], static_cast<int32_t>(i));
        for (int64_t c = i * host.candidates; c < (i + 1) * host.candidates; ++c) {
            candidates.emplace_back(host.ids[static_cast<size_t>(c)], static_cast<int32_t>(c));
        }
    }
    const std::array<Lists, 2> lists = {by_token(std::move(before)),
                                        by_token(std::move(candidates))};
    std::array<RowLists, 2> placed;
    for (size_t l = 0; l < 2; ++l) {
        lists_[3 * l].upload(lists[l].tokens);
        lists_[3 * l + 1].upload(lists[l].offsets);
        lists_[3 * l + 2].upload(lists[l].entries);
        placed[l] = {std::ssize(lists[l].tokens), lists_[3 * l].data(), lists_[3 * l + 1].data(),
                     lists_[3 * l + 2].data()};
    }
    const auto gradient_of = [&](const char* name) {
        const Parameter& p = parameters_.get(name);
        return View<T>(gradient + p.offset, p.rows(), p.cols());
    };
    const char* projection = "candidate_selector.hidden_projection.weight";
    ops_.codebooks_back(gradient_of("candidate_selector.predecessor_codebook"),
                        gradient_of("candidate_selector.successor_codebook"), errors_.first(slots_),
                        selector, placed[0], placed[1]);
    const View<const T> slots = slots_hidden_.first(slots_);
    ops_.product(gradient_of(projection), dprojected_.first(slots_), slots, ProductForm::tn, true);
    const View<T> dslots = dslots_.first(slots_);
    ops_.product(dslots, dlogits, head_, ProductForm::nn, false);
    ops_.product(dslots, dprojected_.first(slots_), matrix(weights, projection), ProductForm::nn,
                 true);
    ops_.cosine_back(dslots, slots, teacher.hidden, rows.hidden);
    ops_.give_slots(dhidden_.first(rows_), dslots, block_);
}

template <class T>
LossReport DraftLoss<T>::run(const LossOptions& options, const T* weights, T* gradient,
                             View<const T> hidden, View<const T> reference,
                             const SlotLabels& labels, const SlotTeacher<T>& teacher) {
    rows_ = hidden.rows;
    slots_ = rows_ / block_ * (block_ - 1);
    trusts_ = options.reading == AnchorLoss::drafter;
    require(std::ssize(labels.label) == slots_ && teacher.hidden.rows == slots_,
            "labels and teacher of every slot of the pass");
    require(!trusts_ || reference.rows == rows_, "rows of the frozen drafter");
    Host host = measure(weights, hidden, reference, labels, teacher);
    LossReport report = weigh(options, host, labels);
    count_accepted(
        report, labels, block_ - 1,
        [&](int64_t slot, bool by_head) { return host.draft(slot, by_head); },
        // The selector has no loss where the token is no candidate.
        [&](int64_t slot) { return host.loss(kSelector, slot) >= 0; });
    if (gradient != nullptr) descend(weights, gradient, labels, host, teacher);
    return report;
}

template class DraftLoss<float>;
template class DraftLoss<double>;

}  // namespace quadrille
