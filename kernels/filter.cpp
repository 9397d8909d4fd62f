// SPDX-License-Identifier: Apache-2.0
#include "kernels/filter.h"

#include "kernels/error.h"
#include "kernels/noise.h"
#include "kernels/sample_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille {

namespace {

constexpr size_t kBeyond = std::numeric_limits<size_t>::max();

// Weights of the first `known` candidates against the filters.
class Cuts {
  public:
    Cuts(std::span<const Candidate> known, double inverse_temperature)
        : known_(known), inverse_(inverse_temperature) {}

    ExpSum sum() const {
        ExpSum sum;
        for (const Candidate& one : known_) sum.add(weight_of(one.value, inverse_));
        return sum;
    }
    // The fewest whose sum reaches `share` of `total`.
    size_t top_p(double share, const ExpSum& total) const {
        ExpSum sum;
        for (size_t i = 0; i < known_.size(); ++i) {
            sum.add(weight_of(known_[i].value, inverse_));
            if (reaches(sum, share, total)) return i + 1;
        }
        return kBeyond;
    }
    // Those that weigh at least `share` of the first.
    size_t min_p(double share) const {
        for (size_t i = 1; i < known_.size(); ++i) {
            if (!weighs(known_[i].value, share, known_[0].value, inverse_)) return i;
        }
        return kBeyond;
    }

  private:
    std::span<const Candidate> known_;
    double inverse_;
};

}  // namespace

bool before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

Filter filter_of(const SampleRow& row) {
    return {.inverse_temperature = row.inverse_temperature,
            .top_p = row.top_p,
            .top_k = row.top_k,
            .min_p = row.min_p};
}

std::optional<size_t> count_kept(std::span<const Candidate> best, bool complete,
                                 const ExpSum& total, const Filter& filter) {
    require(!best.empty(), "count_kept: at least one candidate");
    const size_t top_k = filter.top_k > 0 ? static_cast<size_t>(filter.top_k) : kBeyond;
    // True: nothing that top-k leaves lies beyond the known candidates.
    const bool bounded = complete || top_k <= best.size();
    const Cuts cuts(best.first(std::min(best.size(), top_k)), filter.inverse_temperature);
    size_t kept = bounded ? std::min(best.size(), top_k) : kBeyond;
    if (filter.top_p < 1.0) {
        if (top_k != kBeyond && !bounded) return std::nullopt;
        kept = std::min(kept, cuts.top_p(filter.top_p, top_k == kBeyond ? total : cuts.sum()));
    }
    if (filter.min_p > 0.0) kept = std::min(kept, cuts.min_p(filter.min_p));
    if (kept == kBeyond) return std::nullopt;
    return kept;
}

bool stays(float value, const ExpSum& before, float best, const ExpSum& total,
           const Filter& filter) {
    require(filter.top_k == 0, "stays: top-p and min-p alone");
    if (before.empty()) return true;
    if (filter.top_p < 1.0 && reaches(before, filter.top_p, total)) return false;
    return filter.min_p <= 0.0 || weighs(value, filter.min_p, best, filter.inverse_temperature);
}

std::optional<Best> draw_among(std::span<const Candidate> kept, double inverse_temperature,
                               const Noise& noise, std::span<const int32_t> skipped) {
    std::optional<Best> best;
    for (size_t i = 0; i < kept.size(); ++i) {
        const Candidate& one = kept[i];
        if (std::find(skipped.begin(), skipped.end(), one.id) != skipped.end()) continue;
        const double score = scaled(one.value, inverse_temperature) +
                             gumbel(noise.seed, noise.position, noise.stream, one.id);
        if (!best || score > best->score ||
            (score == best->score && one.id < kept[best->index].id)) {
            best = {score, i};
        }
    }
    return best;
}

}  // namespace quadrille
