// SPDX-License-Identifier: Apache-2.0
#include "io/results/generation_table.h"

#include "io/h5/schema.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

namespace quadrille {
namespace {

using h5::Element;

// One value of each generation; `get` is a function or a member.
template <typename T, typename Get>
std::vector<T> column(std::span<const Generation> generations, const Get& get) {
    std::vector<T> out;
    out.reserve(generations.size());
    for (const Generation& generation : generations)
        out.push_back(static_cast<T>(std::invoke(get, generation)));
    return out;
}

// A list of each generation, one after the other.
template <typename T, typename Get>
std::vector<T> flat(std::span<const Generation> generations, const Get& get) {
    std::vector<T> out;
    for (const Generation& generation : generations) {
        const std::vector<T>& list = std::invoke(get, generation);
        out.insert(out.end(), list.begin(), list.end());
    }
    return out;
}

// As flat, where generation i has widths[i] values, or none: then `missing` stands for them.
template <typename T, typename Get>
std::vector<T> padded(std::span<const Generation> generations, const Get& get,
                      std::span<const size_t> widths, T missing) {
    std::vector<T> out;
    for (size_t i = 0; i < generations.size(); ++i) {
        const std::vector<T>& list = std::invoke(get, generations[i]);
        require(list.empty() || list.size() == widths[i], "generation table: a list's width");
        if (list.empty())
            out.insert(out.end(), widths[i], missing);
        else
            out.insert(out.end(), list.begin(), list.end());
    }
    return out;
}

// Rows of `width` values, one a token. A generation has as many values for each of its tokens, or
// fewer: `missing` stands behind them.
template <typename T>
std::vector<T> widened(std::span<const Generation> generations, std::vector<T> Generation::*list,
                       size_t width, T missing) {
    std::vector<T> out;
    for (const Generation& generation : generations) {
        const size_t tokens = generation.tokens.size();
        const std::vector<T>& values = generation.*list;
        const size_t own = tokens == 0 ? 0 : values.size() / tokens;
        require(own <= width && values.size() == own * tokens,
                "generation table: as many alternatives for each token, at most the file's");
        for (size_t t = 0; t < tokens; ++t) {
            const auto first = values.begin() + static_cast<int64_t>(t * own);
            out.insert(out.end(), first, first + static_cast<int64_t>(own));
            out.insert(out.end(), width - own, missing);
        }
    }
    return out;
}

template <typename T>
void put(h5::Dataset& dataset, int64_t row, const std::vector<T>& values) {
    if constexpr (std::is_same_v<T, std::string>)
        dataset.write_strings(row, values);
    else
        dataset.write(row, std::span<const T>(values));
}

int64_t weighted_sum(const std::vector<int64_t>& histogram) {
    int64_t sum = 0;
    for (size_t j = 0; j < histogram.size(); ++j) sum += static_cast<int64_t>(j) * histogram[j];
    return sum;
}

int64_t sum_of(const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::string differ(const char* left, int64_t a, const char* right, int64_t b) {
    return fmt::format("{} is {}, {} is {}", left, a, right, b);
}

}  // namespace

IdKind kind_of(const Ids& ids) {
    if (std::holds_alternative<std::vector<int64_t>>(ids)) return IdKind::integer;
    return std::holds_alternative<std::vector<std::string>>(ids) ? IdKind::string : IdKind::none;
}

const char* result_kind(const GenerationLayout& layout) {
    return layout.scores ? schema::kScores : schema::kGenerations;
}

double sum_logprob(const Generation& generation) {
    if (generation.status == Status::error) return std::numeric_limits<double>::quiet_NaN();
    const auto& list = generation.chosen_logprobs;
    return std::accumulate(list.begin(), list.end(), 0.0);
}

std::string find_violation(const Generation& generation, int64_t k) {
    const Acceptance& a = generation.acceptance;
    std::vector<int64_t> histogram = a.histogram;
    std::vector<int64_t> by_position = a.by_position;
    if (histogram.empty() && a.steps == 0) histogram.assign(static_cast<size_t>(k) + 1, 0);
    if (by_position.empty() && a.accepted == 0) by_position.assign(static_cast<size_t>(k), 0);
    const int64_t tokens = std::ssize(generation.tokens);
    if (std::ssize(histogram) != k + 1)
        return differ("length of histogram", std::ssize(histogram), "K + 1", k + 1);
    if (std::ssize(by_position) != k)
        return differ("length of by_position", std::ssize(by_position), "K", k);
    for (const int64_t count : histogram)
        if (count < 0) return "histogram holds a negative count";
    if (sum_of(histogram) != a.steps)
        return differ("sum of histogram", sum_of(histogram), "steps", a.steps);
    if (weighted_sum(histogram) != a.accepted)
        return differ("weighted sum of histogram", weighted_sum(histogram), "accepted", a.accepted);
    int64_t beyond = a.steps;
    for (size_t i = 0; i < by_position.size(); ++i) {
        beyond -= histogram[i];
        if (by_position[i] != beyond)
            return fmt::format("by_position[{}] is {}, histogram gives {}", i, by_position[i],
                               beyond);
    }
    if (a.drafted < a.accepted || a.drafted > k * a.steps)
        return fmt::format("drafted is {}, expected {} to {}", a.drafted, a.accepted, k * a.steps);
    if (a.emitted < a.accepted || a.emitted > a.accepted + a.steps)
        return fmt::format("emitted is {}, expected {} to {}", a.emitted, a.accepted,
                           a.accepted + a.steps);
    if (tokens != a.emitted + 1 && !(tokens == 0 && a.emitted == 0))
        return differ("tokens", tokens, "emitted", a.emitted);
    return "";
}

GenerationTable::GenerationTable(h5::Group& root, const GenerationLayout& layout,
                                 std::vector<int64_t> offsets, std::vector<int64_t> trace_offsets)
    : layout_(layout), offsets_(std::move(offsets)), trace_offsets_(std::move(trace_offsets)) {
    const int64_t n = std::ssize(offsets_) - 1;
    h5::Group generations = root.create_group("generations");
    tokens_ = generations.create_dataset("tokens", Element::i32, {offsets_.back()});
    h5::Dataset bounds = generations.create_dataset("offsets", Element::i64, {n + 1});
    put(bounds, 0, offsets_);
    status_ = generations.create_dataset("status", Element::u8, {n});
    status_.set_attribute(schema::kNamesAttribute, schema::kStatusNames);
    finish_reason_ = generations.create_dataset("finish_reason", Element::u8, {n});
    finish_reason_.set_attribute(schema::kNamesAttribute, schema::kFinishNames);
    error_ = generations.create_dataset("error", Element::string, {n});
    prompt_index_ = generations.create_dataset("prompt_index", Element::i64, {n});
    prompt_tokens_ = generations.create_dataset("prompt_tokens", Element::i64, {n});
    if (layout_.id != IdKind::none)
        id_ = generations.create_dataset(
            "id", layout_.id == IdKind::integer ? Element::i64 : Element::string, {n});
    if (layout_.text) text_ = generations.create_dataset("text", Element::string, {n});
    if (layout_.origin) {
        source_ = generations.create_dataset("source", Element::i32, {n});
        if (!layout_.sources.empty()) {
            h5::Dataset names = generations.create_dataset("source_names", Element::string,
                                                           {std::ssize(layout_.sources)});
            put(names, 0, layout_.sources);
        }
        sample_ = generations.create_dataset("sample", Element::i32, {n});
    }

    h5::Group acceptance = root.create_group("acceptance");
    steps_ = acceptance.create_dataset("steps", Element::i64, {n});
    drafted_ = acceptance.create_dataset("drafted", Element::i64, {n});
    accepted_ = acceptance.create_dataset("accepted", Element::i64, {n});
    emitted_ = acceptance.create_dataset("emitted", Element::i64, {n});
    by_position_ = acceptance.create_dataset("by_position", Element::i64, {n, layout_.k});
    histogram_ = acceptance.create_dataset("histogram", Element::i64, {n, layout_.k + 1});
    if (layout_.trace) {
        require(std::ssize(trace_offsets_) == n + 1, "generation table: trace offsets");
        h5::Group trace = acceptance.create_group("trace");
        trace_ = trace.create_dataset("accepted", Element::u8, {trace_offsets_.back()});
        h5::Dataset trace_bounds = trace.create_dataset("offsets", Element::i64, {n + 1});
        put(trace_bounds, 0, trace_offsets_);
    }
    if (layout_.logprobs >= 0) {
        h5::Group logprobs = root.create_group("logprobs");
        chosen_ = logprobs.create_dataset("chosen", Element::f32, {offsets_.back()});
        top_ids_ =
            logprobs.create_dataset("top_ids", Element::i32, {offsets_.back(), layout_.logprobs});
        top_ = logprobs.create_dataset("top", Element::f32, {offsets_.back(), layout_.logprobs});
    }
    if (layout_.scores) {
        h5::Group scores = root.create_group("scores");
        sum_ = scores.create_dataset("sum_logprob", Element::f64, {n});
        is_greedy_ = scores.create_dataset("is_greedy", Element::u8, {n});
    }
}

void GenerationTable::check(int64_t row, const Generation& generation) const {
    const auto at = static_cast<size_t>(row);
    require(offsets_[at + 1] - offsets_[at] == std::ssize(generation.tokens),
            "generation table: a record has as many tokens as its offsets say");
    const Acceptance& a = generation.acceptance;
    std::string violation = find_violation(generation, layout_.k);
    if (layout_.trace && violation.empty()) {
        require(trace_offsets_[at + 1] - trace_offsets_[at] == std::ssize(a.trace),
                "generation table: a record has as many trace steps as its offsets say");
        const int64_t sum = std::accumulate(a.trace.begin(), a.trace.end(), int64_t{0});
        if (std::ssize(a.trace) != a.steps)
            violation = differ("trace length", std::ssize(a.trace), "steps", a.steps);
        else if (sum != a.accepted)
            violation = differ("sum of the trace", sum, "accepted", a.accepted);
    }
    if (!violation.empty())
        throw Error(ErrorKind::internal, fmt::format("statistics of record {} disagree: {}",
                                                     generation.prompt_index, violation));
}

void GenerationTable::write(int64_t row, std::span<const Generation> generations) {
    const int64_t records = std::ssize(offsets_) - 1;
    require(row >= 0 && std::ssize(generations) <= records - row, "generation table: rows");
    if (generations.empty()) return;
    for (size_t i = 0; i < generations.size(); ++i)
        check(row + static_cast<int64_t>(i), generations[i]);
    const int64_t token = offsets_[static_cast<size_t>(row)];
    put(tokens_, token, flat<int32_t>(generations, &Generation::tokens));
    write_columns(row, generations);
    write_acceptance(row, generations);
    if (layout_.logprobs >= 0) write_logprobs(token, generations);
    if (layout_.scores) write_scores(row, generations);
}

void GenerationTable::write_columns(int64_t row, std::span<const Generation> generations) {
    put(status_, row, column<uint8_t>(generations, &Generation::status));
    put(finish_reason_, row, column<uint8_t>(generations, &Generation::finish_reason));
    put(prompt_index_, row, column<int64_t>(generations, &Generation::prompt_index));
    put(prompt_tokens_, row, column<int64_t>(generations, &Generation::prompt_tokens));
    put(error_, row, column<std::string>(generations, [](const Generation& g) {
            return storable_text(g.error);
        }));
    if (text_)
        put(*text_, row, column<std::string>(generations, [](const Generation& g) {
            return storable_text(g.text);
        }));
    if (layout_.origin) {
        put(*source_, row, column<int32_t>(generations, &Generation::source));
        put(*sample_, row, column<int32_t>(generations, &Generation::sample));
    }
    if (layout_.id == IdKind::integer)
        put(*id_, row, column<int64_t>(generations, [](const Generation& g) {
            return std::get<int64_t>(g.id);
        }));
    if (layout_.id == IdKind::string)
        put(*id_, row, column<std::string>(generations, [](const Generation& g) {
            return std::get<std::string>(g.id);
        }));
}

void GenerationTable::write_acceptance(int64_t row, std::span<const Generation> generations) {
    const auto statistics = [](const auto member) {
        return [member](const Generation& g) -> const auto& {
            return g.acceptance.*member;
        };
    };
    put(steps_, row, column<int64_t>(generations, statistics(&Acceptance::steps)));
    put(drafted_, row, column<int64_t>(generations, statistics(&Acceptance::drafted)));
    put(accepted_, row, column<int64_t>(generations, statistics(&Acceptance::accepted)));
    put(emitted_, row, column<int64_t>(generations, statistics(&Acceptance::emitted)));
    const auto k = static_cast<size_t>(layout_.k);
    const std::vector<size_t> positions(generations.size(), k);
    const std::vector<size_t> counts(generations.size(), k + 1);
    constexpr int64_t kNone = 0;
    put(by_position_, row,
        padded(generations, statistics(&Acceptance::by_position), positions, kNone));
    put(histogram_, row, padded(generations, statistics(&Acceptance::histogram), counts, kNone));
    if (trace_)
        put(*trace_, trace_offsets_[static_cast<size_t>(row)],
            flat<uint8_t>(generations, statistics(&Acceptance::trace)));
}

void GenerationTable::write_scores(int64_t row, std::span<const Generation> generations) {
    put(*sum_, row, column<double>(generations, sum_logprob));
    put(*is_greedy_, row, column<uint8_t>(generations, &Generation::is_greedy));
}

void GenerationTable::write_logprobs(int64_t token, std::span<const Generation> generations) {
    constexpr float kAbsent = std::numeric_limits<float>::quiet_NaN();
    constexpr int32_t kNoToken = -1;
    std::vector<size_t> tokens;
    for (const Generation& generation : generations) tokens.push_back(generation.tokens.size());
    const auto width = static_cast<size_t>(layout_.logprobs);
    put(*chosen_, token, padded(generations, &Generation::chosen_logprobs, tokens, kAbsent));
    put(*top_ids_, token, widened(generations, &Generation::top_ids, width, kNoToken));
    put(*top_, token, widened(generations, &Generation::top_logprobs, width, kAbsent));
}

}  // namespace quadrille
