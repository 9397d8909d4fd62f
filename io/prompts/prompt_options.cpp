// SPDX-License-Identifier: Apache-2.0
#include "io/prompts/prompt_options.h"

#include "io/prompts/option_table.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace quadrille {
namespace {

constexpr int64_t kSlice = 65536;  // rows of a column looked at together
using namespace options;

[[noreturn]] void refuse(const std::string& where, const std::string& name) {
    throw Error(
        ErrorKind::input,
        fmt::format("{}: this job does not support {}: only its default is accepted", where, name));
}

void set_error(Prompt& prompt, std::string error) {
    if (prompt.error.empty()) prompt.error = std::move(error);
}

// ---- attributes: one value for all records ------------------------------------------------------

// The value with what tells its type: "1" is no integer, nor is 1.0.
std::string typed(const h5::Value& value) {
    if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("\"{}\"", *text);
    if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:#}", *number);
    return h5::describe(value);
}

[[noreturn]] void reject_attribute(const std::string& where, const h5::Value& value,
                                   const std::string& expected) {
    throw Error(ErrorKind::input,
                fmt::format("{}: expected {}, found {}", where, expected, typed(value)));
}

int64_t int_attribute(const std::string& where, const h5::Value& value, const IntOption& option) {
    const auto* held = std::get_if<int64_t>(&value);
    if (held == nullptr) reject_attribute(where, value, "an integer");
    if (*held != kIntDefault && !option.allows(*held))
        reject_attribute(where, value, option.range());
    return *held;
}

double float_attribute(const std::string& where, const h5::Value& value,
                       const FloatOption& option) {
    double number = std::nan("");
    if (const auto* held = std::get_if<double>(&value))
        number = *held;
    else if (const auto* integer = std::get_if<int64_t>(&value))
        number = static_cast<double>(*integer);
    else
        reject_attribute(where, value, "a number");
    if (!std::isnan(number) && !option.allows(number))
        reject_attribute(where, value, option.range());
    return number;
}

std::vector<int32_t> tokens_attribute(const std::string& where, const h5::Value& value) {
    std::vector<int64_t> wide;
    if (const auto* one = std::get_if<int64_t>(&value))
        wide = {*one};
    else if (const auto* many = std::get_if<std::vector<int64_t>>(&value))
        wide = *many;
    else
        reject_attribute(where, value, "token ids");
    std::vector<int32_t> tokens;
    for (const int64_t token : wide) {
        if (token < 0 || token > kMaxToken) reject_attribute(where, value, "token ids");
        tokens.push_back(static_cast<int32_t>(token));
    }
    return tokens;
}

std::vector<std::string> text_attribute(const std::string& where, const h5::Value& value) {
    std::vector<std::string> texts;
    if (const auto* one = std::get_if<std::string>(&value))
        texts = {*one};
    else if (const auto* many = std::get_if<std::vector<std::string>>(&value))
        texts = *many;
    else
        reject_attribute(where, value, "strings");
    for (const std::string& text : texts)
        if (text.empty() || find_broken_utf8(text) != std::string::npos)
            reject_attribute(where, value, "non-empty UTF-8 strings");
    return texts;
}

// ---- columns ------------------------------------------------------------------------------------

// A known column must be a 1-D dataset of the right class with a row a record.
h5::Dataset open_column(const h5::Group& prompts, const char* name, h5::TypeClass kind,
                        int64_t records) {
    h5::Dataset column = prompts.dataset(name);
    if (column.type().kind != kind)
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected {}, found {}", column.where(),
                                kind == h5::TypeClass::integer ? "integers" : "floating point",
                                column.describe()));
    expect_column(column, records);
    return column;
}

template <typename T, typename IsDefault>
void expect_defaults(const h5::Dataset& column, const char* name, const IsDefault& is_default) {
    for (int64_t first = 0; first < column.rows(); first += kSlice) {
        const auto values = column.read<T>(first, std::min(kSlice, column.rows() - first));
        for (size_t i = 0; i < values.size(); ++i)
            if (!is_default(values[i]))
                refuse(fmt::format("{}[{}] is {}", column.where(), first + static_cast<int64_t>(i),
                                   values[i]),
                       name);
    }
}

}  // namespace

void expect_column(const h5::Dataset& column, int64_t records) {
    if (column.shape().size() != 1)
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected one value for each of {} records, found {}",
                                column.where(), records, column.describe()));
    if (column.rows() != records)
        throw Error(ErrorKind::input, fmt::format("{}: has length {}, but there are {} records",
                                                  column.where(), column.rows(), records));
}

std::vector<int64_t> read_offsets(const h5::Group& group, const std::string& name, int64_t records,
                                  int64_t total) {
    const h5::Dataset dataset = group.dataset(name);
    const std::string& where = dataset.where();
    if (dataset.type().kind != h5::TypeClass::integer || dataset.shape().size() != 1)
        throw Error(ErrorKind::input, fmt::format("{}: expected integers [n + 1], found {}", where,
                                                  dataset.describe()));
    if (dataset.rows() == 0)
        throw Error(ErrorKind::input, where + ": is empty, expected at least the first offset, 0");
    if (records >= 0 && dataset.rows() != records + 1)
        throw Error(ErrorKind::input, fmt::format("{}: has length {}, expected {} ({} records + 1)",
                                                  where, dataset.rows(), records + 1, records));
    std::vector<int64_t> offsets = dataset.read<int64_t>(0, dataset.rows());
    if (offsets.front() != 0)
        throw Error(ErrorKind::input,
                    fmt::format("{}[0]: expected 0, found {}", where, offsets.front()));
    for (size_t i = 1; i < offsets.size(); ++i)
        if (offsets[i] < offsets[i - 1])
            throw Error(ErrorKind::input, fmt::format("{}[{}]: falls from {} to {}", where, i,
                                                      offsets[i - 1], offsets[i]));
    if (offsets.back() != total)
        throw Error(ErrorKind::input, fmt::format("{}: ends at {}, but there are {} values", where,
                                                  offsets.back(), total));
    return offsets;
}

const std::set<std::string>& PromptOptions::names() {
    static const std::set<std::string> names = [] {
        std::set<std::string> all = {kStopTokens, kStopText};
        for (const IntOption& option : kInts) all.insert(option.name);
        for (const FloatOption& option : kFloats) all.insert(option.name);
        return all;
    }();
    return names;
}

const std::set<std::string>& PromptOptions::datasets() {
    static const std::set<std::string> names = [] {
        std::set<std::string> all = PromptOptions::names();
        all.insert(offsets_name(kStopTokens));
        all.insert(offsets_name(kStopText));
        return all;
    }();
    return names;
}

PromptOptions::PromptOptions(const h5::Group& prompts, int64_t records,
                             const RecordOptions& defaults, const std::set<std::string>& honoured)
    : records_(records), base_(defaults) {
    take_attributes(prompts, honoured);
    take_scalar_columns(prompts, honoured);
    stop_tokens_ = take_list(prompts, kStopTokens, h5::TypeClass::integer, honoured);
    stop_text_ = take_list(prompts, kStopText, h5::TypeClass::string, honoured);
}

void PromptOptions::take_attributes(const h5::Group& prompts,
                                    const std::set<std::string>& honoured) {
    const RecordOptions built_in;
    const auto visit = [&](const char* name, const auto& take) {
        const auto value = prompts.attribute(name);
        if (!value) return;
        const std::string where = fmt::format("{}, attribute {}", prompts.where(), name);
        const bool is_default = take(where, *value);
        if (!is_default && !honoured.contains(name)) refuse(where, name);
    };
    for (const IntOption& option : kInts)
        visit(option.name, [&](const std::string& where, const h5::Value& value) {
            const int64_t number = int_attribute(where, value, option);
            if (number != kIntDefault) option.set(base_, number);
            return number == kIntDefault || number == option.get(built_in);
        });
    if (prompts.attribute("seed") && base_.seed >= 0)
        run_seed_ = static_cast<uint64_t>(std::exchange(base_.seed, kIntDefault));
    for (const FloatOption& option : kFloats)
        visit(option.name, [&](const std::string& where, const h5::Value& value) {
            const double number = float_attribute(where, value, option);
            if (!std::isnan(number)) base_.*option.member = number;
            return !(number < built_in.*option.member) && !(number > built_in.*option.member);
        });
    visit(kStopTokens, [&](const std::string& where, const h5::Value& value) {
        const auto tokens = tokens_attribute(where, value);
        if (!tokens.empty()) base_.stop_tokens = tokens;
        return tokens.empty();
    });
    visit(kStopText, [&](const std::string& where, const h5::Value& value) {
        const auto texts = text_attribute(where, value);
        if (!texts.empty()) base_.stop_text = texts;
        return texts.empty();
    });
}

void PromptOptions::take_scalar_columns(const h5::Group& prompts,
                                        const std::set<std::string>& honoured) {
    const RecordOptions built_in;
    ints_.resize(kInts.size());
    floats_.resize(kFloats.size());
    for (size_t i = 0; i < kInts.size(); ++i) {
        const IntOption& option = kInts[i];
        if (!prompts.has(option.name)) continue;
        ints_[i] = open_column(prompts, option.name, h5::TypeClass::integer, records_);
        if (!honoured.contains(option.name))
            expect_defaults<int64_t>(*ints_[i], option.name, [&](int64_t value) {
                return value == kIntDefault || value == option.get(built_in);
            });
    }
    for (size_t i = 0; i < kFloats.size(); ++i) {
        const FloatOption& option = kFloats[i];
        if (!prompts.has(option.name)) continue;
        floats_[i] = open_column(prompts, option.name, h5::TypeClass::floating, records_);
        const double usual = built_in.*option.member;
        if (!honoured.contains(option.name))
            expect_defaults<double>(*floats_[i], option.name, [&](double value) {
                return !(value < usual) && !(value > usual);  // NaN is the marker
            });
    }
}

PromptOptions::List PromptOptions::take_list(const h5::Group& prompts, const std::string& name,
                                             h5::TypeClass kind,
                                             const std::set<std::string>& honoured) const {
    const bool has_offsets = prompts.has(offsets_name(name));
    if (!prompts.has(name)) {
        if (has_offsets)
            throw Error(ErrorKind::input, fmt::format("{}: {} without {}", prompts.where(),
                                                      offsets_name(name), name));
        return {};
    }
    List list;
    list.values = prompts.dataset(name);
    if (list.values->type().kind != kind || list.values->shape().size() != 1)
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected a list of {}, found {}", list.values->where(),
                                kind == h5::TypeClass::integer ? "integers" : "strings",
                                list.values->describe()));
    list.offsets = read_offsets(prompts, offsets_name(name), records_, list.values->rows());
    if (list.offsets.back() > 0 && !honoured.contains(name)) refuse(list.values->where(), name);
    return list;
}

void PromptOptions::read(int64_t first, std::span<Prompt> prompts, int64_t vocab_size) const {
    const int64_t count = std::ssize(prompts);
    for (Prompt& prompt : prompts) prompt.options = base_;
    for (size_t i = 0; i < kInts.size(); ++i) {
        if (!ints_[i]) continue;
        const std::vector<int64_t> values = ints_[i]->read<int64_t>(first, count);
        for (size_t r = 0; r < values.size(); ++r) {
            if (values[r] == kIntDefault) continue;
            if (kInts[i].allows(values[r]))
                kInts[i].set(prompts[r].options, values[r]);
            else
                set_error(prompts[r], fmt::format("{} is {}, expected {}", kInts[i].name, values[r],
                                                  kInts[i].range()));
        }
    }
    for (size_t i = 0; i < kFloats.size(); ++i) {
        if (!floats_[i]) continue;
        const std::vector<double> values = floats_[i]->read<double>(first, count);
        for (size_t r = 0; r < values.size(); ++r) {
            if (std::isnan(values[r])) continue;
            if (kFloats[i].allows(values[r]))
                prompts[r].options.*kFloats[i].member = values[r];
            else
                set_error(prompts[r], fmt::format("{} is {}, expected {}", kFloats[i].name,
                                                  values[r], kFloats[i].range()));
        }
    }
    read_stop_tokens(first, prompts, vocab_size);
    read_stop_text(first, prompts);
}

void PromptOptions::read_stop_tokens(int64_t first, std::span<Prompt> prompts,
                                     int64_t vocab_size) const {
    const int64_t limit = vocab_size > 0 ? vocab_size - 1 : kMaxToken;
    const auto check = [&](Prompt& prompt, int64_t token) {
        if (token < 0 || token > limit)
            set_error(prompt, fmt::format("stop token {} is outside 0 to {}", token, limit));
    };
    if (stop_tokens_.values) {
        const int64_t* at = stop_tokens_.offsets.data() + first;
        const std::vector<int64_t> values =
            stop_tokens_.values->read_clamped(at[0], at[prompts.size()] - at[0]);
        for (size_t r = 0; r < prompts.size(); ++r) {
            if (at[r + 1] == at[r]) continue;
            prompts[r].options.stop_tokens.clear();
            for (int64_t i = at[r] - at[0]; i < at[r + 1] - at[0]; ++i) {
                const int64_t token = values[static_cast<size_t>(i)];
                check(prompts[r], token);
                if (token >= 0 && token <= limit)
                    prompts[r].options.stop_tokens.push_back(static_cast<int32_t>(token));
            }
        }
    }
    if (base_.stop_tokens.empty()) return;
    for (Prompt& prompt : prompts)
        for (const int32_t token : prompt.options.stop_tokens) check(prompt, token);
}

void PromptOptions::read_stop_text(int64_t first, std::span<Prompt> prompts) const {
    if (!stop_text_.values) return;
    const int64_t* at = stop_text_.offsets.data() + first;
    const std::vector<std::string> values =
        stop_text_.values->read_strings(at[0], at[prompts.size()] - at[0]);
    for (size_t r = 0; r < prompts.size(); ++r) {
        if (at[r + 1] == at[r]) continue;
        const auto begin = values.begin() + (at[r] - at[0]);
        const auto end = values.begin() + (at[r + 1] - at[0]);
        for (auto text = begin; text != end; ++text) {
            if (text->empty()) set_error(prompts[r], "stop_text holds an empty string");
            if (find_broken_utf8(*text) != std::string::npos)
                set_error(prompts[r], "stop_text is not UTF-8");
        }
        prompts[r].options.stop_text.assign(begin, end);
    }
}

int64_t PromptOptions::largest_logprobs() const {
    int64_t largest = base_.logprobs;
    if (!ints_[kLogprobs]) return largest;
    for (int64_t first = 0; first < records_; first += kSlice) {
        const int64_t count = std::min(kSlice, records_ - first);
        for (const int64_t value : ints_[kLogprobs]->read<int64_t>(first, count))
            if (kInts[kLogprobs].allows(value)) largest = std::max(largest, value);
    }
    return largest;
}

bool PromptOptions::has_stop_text() const {
    return !base_.stop_text.empty() ||
           (stop_text_.values.has_value() && stop_text_.offsets.back() > 0);
}

std::vector<int64_t> PromptOptions::ints(size_t i, int64_t first, int64_t count, int64_t usual,
                                         int64_t otherwise) const {
    std::vector<int64_t> out(static_cast<size_t>(count), usual);
    if (!ints_[i]) return out;
    const std::vector<int64_t> values = ints_[i]->read<int64_t>(first, count);
    for (size_t r = 0; r < out.size(); ++r)
        if (values[r] != kIntDefault) out[r] = kInts[i].allows(values[r]) ? values[r] : otherwise;
    return out;
}

std::vector<int64_t> PromptOptions::max_new_tokens(int64_t first, int64_t count) const {
    return ints(kMaxNewTokens, first, count, base_.max_new_tokens, -1);
}

std::vector<int64_t> PromptOptions::samples(int64_t first, int64_t count) const {
    return ints(kSamples, first, count, base_.samples, 1);
}

std::vector<double> PromptOptions::temperatures(int64_t first, int64_t count) const {
    if (!floats_[kTemperature])
        return std::vector<double>(static_cast<size_t>(count), base_.temperature);
    std::vector<double> values = floats_[kTemperature]->read<double>(first, count);
    for (double& value : values) value = std::isnan(value) ? base_.temperature : value;
    return values;
}

}  // namespace quadrille
