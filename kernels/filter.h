// SPDX-License-Identifier: Apache-2.0
// top-k, top-p and min-p over the best ids of a row, and the draw among those that stay: pure
// functions of integers and rounded doubles, so that every rank comes to the same result.
// Order: top-k, then top-p of what top-k leaves, then min-p.
#pragma once

#include "kernels/exp_sum.h"
#include "kernels/philox.h"
#include "kernels/sample_row.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace quadrille {

struct Candidate {
    float value = 0.0f;  // the logit, penalized
    float raw = 0.0f;    // the logit
    int32_t id = -1;
};
// Largest value first, ties to the lowest id.
bool before(const Candidate& a, const Candidate& b);

struct Filter {
    double inverse_temperature = 1.0;
    double top_p = 1.0;  // 1: off
    int64_t top_k = 0;   // 0: off
    double min_p = 0.0;  // 0: off

    bool needs_total() const { return top_p < 1.0 && top_k == 0; }
};

Filter filter_of(const SampleRow& row);

// How many of `best` stay, at least 1. best: the first ids of the row in the order of before(), not
// empty; complete: there are no others. total: sum of all weights of the row, where needs_total().
// nullopt: the cut may lie beyond `best`.
// top-p keeps the fewest whose weights reach top_p of the sum, min-p those of at least min_p of the
// largest weight.
std::optional<size_t> count_kept(std::span<const Candidate> best, bool complete,
                                 const ExpSum& total, const Filter& filter);

// True: an id stays that top-p and min-p judge by its own weight and the ids before it. No top-k.
// before: sum of the weights of the ids before it; best: the row's largest logit.
bool stays(float value, const ExpSum& before, float best, const ExpSum& total,
           const Filter& filter);

// The noise of one draw.
struct Noise {
    uint64_t seed = 0;
    int64_t position = 0;
    Stream stream = Stream::token;
};

struct Best {
    double score = 0.0;
    size_t index = 0;
};
// The candidate with the largest value / T + noise; nullopt: there is none. `skipped`: ids passed
// over.
std::optional<Best> draw_among(std::span<const Candidate> kept, double inverse_temperature,
                               const Noise& noise, std::span<const int32_t> skipped = {});

}  // namespace quadrille
