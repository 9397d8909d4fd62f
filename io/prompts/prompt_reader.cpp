// SPDX-License-Identifier: Apache-2.0
#include "io/prompts/prompt_reader.h"

#include "io/digest.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>

namespace quadrille {
namespace {

constexpr int64_t kSlice = 65536;

const std::set<std::string>& known_datasets() {
    static const std::set<std::string> names = [] {
        std::set<std::string> all = PromptOptions::datasets();
        all.insert({"tokens", "offsets", "text", "id", "completion", "error", "kind"});
        return all;
    }();
    return names;
}

std::string not_a_token(int64_t token, int64_t position, int64_t limit) {
    return fmt::format("token {} at position {} is outside 0 to {}", token, position, limit);
}

int64_t largest_token(const PromptLimits& limits) {
    return limits.vocab_size > 0 ? limits.vocab_size - 1 : std::numeric_limits<int32_t>::max();
}

std::string fills_context(int64_t tokens, int64_t context) {
    return fmt::format("a prompt of {} tokens fills the context of {}", tokens, context);
}

template <typename T>
void refuse_duplicates(const std::vector<T>& ids, const std::string& where) {
    std::vector<int64_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    const auto id = [&](int64_t record) -> const T& { return ids[static_cast<size_t>(record)]; };
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return id(a) < id(b) || (id(a) == id(b) && a < b); });
    for (size_t i = 1; i < order.size(); ++i)
        if (id(order[i]) == id(order[i - 1]))
            throw Error(ErrorKind::input, fmt::format("{}: records {} and {} have the same id {}",
                                                      where, order[i - 1], order[i], id(order[i])));
}

h5::File open_sound(const std::filesystem::path& path) {
    refuse_broken_seal(path);
    return h5::File::open(path);
}

void expect_list(const h5::Dataset& dataset, h5::TypeClass kind, const char* expected) {
    if (dataset.type().kind != kind || dataset.shape().size() != 1)
        throw Error(ErrorKind::input, fmt::format("{}: expected {}, found {}", dataset.where(),
                                                  expected, dataset.describe()));
}

}  // namespace

void check_tokens(Prompt& prompt, const PromptLimits& limits) {
    if (!prompt.error.empty()) return;
    const int64_t last = largest_token(limits);
    if (prompt.tokens.empty()) prompt.error = "empty prompt";
    for (size_t i = 0; i < prompt.tokens.size() && prompt.error.empty(); ++i)
        if (prompt.tokens[i] < 0 || prompt.tokens[i] > last)
            prompt.error = not_a_token(prompt.tokens[i], static_cast<int64_t>(i), last);
    if (prompt.error.empty() && limits.context > 0 && std::ssize(prompt.tokens) >= limits.context)
        prompt.error = fills_context(std::ssize(prompt.tokens), limits.context);
}

PromptReader::PromptReader(const std::filesystem::path& path, const RecordOptions& defaults,
                           const std::set<std::string>& honoured)
    : path_(path), file_(open_sound(path)) {
    schema::expect_kind(file_, schema::kPrompts, notices_);
    const h5::Group prompts = file_.group("prompts");
    open_prompts(prompts);
    read_ids(prompts);
    read_remarks(prompts);
    options_.emplace(prompts, records_, defaults, honoured);
    note_unknown(prompts);
    measure();
}

void PromptReader::open_prompts(const h5::Group& prompts) {
    const bool has_tokens = prompts.has("tokens");
    const bool has_text = prompts.has("text");
    if (has_tokens && has_text)
        throw Error(ErrorKind::input,
                    prompts.where() + ": holds both tokens and text, expected one of them");
    if (!has_tokens && !has_text)
        throw Error(ErrorKind::input,
                    prompts.where() + ": holds neither tokens (with offsets) nor text");
    if (has_text) {
        if (prompts.has("offsets"))
            throw Error(ErrorKind::input, prompts.where() + ": offsets without tokens");
        text_ = prompts.dataset("text");
        expect_list(*text_, h5::TypeClass::string, "strings [n]");
        records_ = text_->rows();
        return;
    }
    tokens_ = prompts.dataset("tokens");
    expect_list(*tokens_, h5::TypeClass::integer, "integers [tokens]");
    offsets_ = read_offsets(prompts, "offsets", -1, tokens_->rows());
    records_ = std::ssize(offsets_) - 1;
}

void PromptReader::read_ids(const h5::Group& prompts) {
    if (!prompts.has("id")) return;
    const h5::Dataset column = prompts.dataset("id");
    expect_column(column, records_);
    if (column.type().kind == h5::TypeClass::integer) {
        auto ids = column.read<int64_t>(0, records_);
        refuse_duplicates(ids, column.where());
        ids_ = std::move(ids);
    } else if (column.type().kind == h5::TypeClass::string) {
        auto ids = column.read_strings(0, records_);
        for (size_t i = 0; i < ids.size(); ++i)
            if (storable_text(ids[i]) != ids[i])
                throw Error(ErrorKind::input,
                            fmt::format("{}[{}]: is not UTF-8 without NUL", column.where(), i));
        refuse_duplicates(ids, column.where());
        ids_ = std::move(ids);
    } else {
        throw Error(ErrorKind::input, fmt::format("{}: expected integers or strings, found {}",
                                                  column.where(), column.describe()));
    }
}

void PromptReader::read_remarks(const h5::Group& prompts) {
    if (prompts.has("completion")) {
        const h5::Dataset column = prompts.dataset("completion");
        expect_list(column, h5::TypeClass::integer, "integers [n]");
        expect_column(column, records_);
        for (const int64_t flag : column.read<int64_t>(0, records_)) {
            completions_.push_back(flag != 0);
        }
    }
    if (prompts.has("error")) {
        errors_ = prompts.dataset("error");
        expect_list(*errors_, h5::TypeClass::string, "strings [n]");
        expect_column(*errors_, records_);
    }
}

void PromptReader::note_unknown(const h5::Group& prompts) {
    std::vector<std::string> unknown;
    for (const std::string& name : file_.names())
        if (name != "prompts") unknown.push_back("/" + name);
    for (const std::string& name : prompts.names())
        if (!known_datasets().contains(name)) unknown.push_back("/prompts/" + name);
    for (const std::string& name : prompts.attribute_names())
        if (!PromptOptions::names().contains(name))
            unknown.push_back("attribute " + name + " of /prompts");
    if (!unknown.empty())
        notices_.push_back(
            fmt::format("{}: not known and ignored: {}", path_.string(), fmt::join(unknown, ", ")));
}

void PromptReader::measure() {
    for (int64_t first = 0; first < records_; first += kSlice) {
        const int64_t count = std::min(kSlice, records_ - first);
        const std::vector<int64_t> limits = options_->max_new_tokens(first, count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t limit = limits[static_cast<size_t>(i)];
            largest_max_new_tokens_ = std::max(largest_max_new_tokens_, limit);
            if (limit >= 0 && prompt_tokens(first + i) > 0)
                largest_total_ = std::max(largest_total_,
                                          std::max<int64_t>(limit, 1) + prompt_tokens(first + i));
        }
    }
}

int64_t PromptReader::prompt_tokens(int64_t record) const {
    require(record >= 0 && record < records_, "prompt reader: a record of the file");
    if (is_text()) return 0;
    const auto at = static_cast<size_t>(record);
    return offsets_[at + 1] - offsets_[at];
}

int64_t PromptReader::longest_prompt() const {
    int64_t longest = 0;
    for (int64_t i = 0; i < records_; ++i) longest = std::max(longest, prompt_tokens(i));
    return longest;
}

std::string PromptReader::digest() const {
    Digest digest;
    const h5::Group prompts = file_.group("prompts");
    for (const std::string& name : prompts.attribute_names())
        if (PromptOptions::names().contains(name)) {
            digest.add(name);
            digest.add(h5::describe(*prompts.attribute(name)));
        }
    const auto add_numbers = [&](const auto& values) {
        digest.add(std::as_bytes(std::span(values)));
    };
    const auto add_values = [&](const h5::Dataset& dataset, int64_t first, int64_t count) {
        if (dataset.type().kind == h5::TypeClass::string)
            for (const std::string& text : dataset.read_strings(first, count)) digest.add(text);
        else if (dataset.type().kind == h5::TypeClass::integer)
            add_numbers(dataset.read_clamped(first, count));
        else
            add_numbers(dataset.read<double>(first, count));
    };
    for (const std::string& name : prompts.names()) {
        if (!known_datasets().contains(name)) continue;
        const h5::Dataset dataset = prompts.dataset(name);
        digest.add(name);
        digest.add(static_cast<uint64_t>(dataset.rows()));
        for (int64_t first = 0; first < dataset.rows(); first += kSlice)
            add_values(dataset, first, std::min(kSlice, dataset.rows() - first));
    }
    return digest.hex();
}

std::vector<Prompt> PromptReader::read(int64_t first, int64_t count,
                                       const PromptLimits& limits) const {
    require(first >= 0 && count >= 0 && count <= records_ - first,
            "prompt reader: a slice of the file");
    std::vector<Prompt> prompts(static_cast<size_t>(count));
    for (size_t i = 0; i < prompts.size(); ++i) prompts[i].index = first + static_cast<int64_t>(i);
    options_->read(first, prompts, limits.vocab_size);
    if (is_text())
        read_text(prompts);
    else
        read_tokens(prompts, limits);
    if (errors_ && !prompts.empty()) {
        std::vector<std::string> errors = errors_->read_strings(first, count);
        for (size_t i = 0; i < prompts.size(); ++i)
            if (!errors[i].empty()) prompts[i].error = storable_text(errors[i]);
    }
    return prompts;
}

void PromptReader::read_text(std::vector<Prompt>& prompts) const {
    if (prompts.empty()) return;
    std::vector<std::string> texts =
        text_->read_strings(prompts.front().index, std::ssize(prompts));
    for (size_t i = 0; i < prompts.size(); ++i) {
        Prompt& prompt = prompts[i];
        prompt.text = std::move(texts[i]);
        const size_t broken = find_broken_utf8(prompt.text);
        if (prompt.text.empty())
            prompt.error = "empty prompt";
        else if (broken != std::string::npos)
            prompt.error = fmt::format("text is not UTF-8: broken at byte {}", broken);
    }
}

// One read for each run of records that are short enough.
void PromptReader::read_tokens(std::vector<Prompt>& prompts, const PromptLimits& limits) const {
    const int64_t last = largest_token(limits);
    const auto too_long = [&](const Prompt& prompt) {
        return limits.context > 0 && prompt_tokens(prompt.index) >= limits.context;
    };
    for (size_t begin = 0, end = 0; begin < prompts.size(); begin = end) {
        end = begin + 1;
        if (too_long(prompts[begin])) {
            prompts[begin].error =
                fills_context(prompt_tokens(prompts[begin].index), limits.context);
            continue;
        }
        while (end < prompts.size() && !too_long(prompts[end])) ++end;
        const int64_t at = offsets_[static_cast<size_t>(prompts[begin].index)];
        const int64_t stop = offsets_[static_cast<size_t>(prompts[end - 1].index) + 1];
        const std::vector<int64_t> block = tokens_->read_clamped(at, stop - at);
        for (size_t i = begin, next = 0; i < end; ++i) {
            Prompt& prompt = prompts[i];
            const auto length = static_cast<size_t>(prompt_tokens(prompt.index));
            prompt.tokens.reserve(length);
            for (size_t t = 0; t < length; ++t) {
                const int64_t token = block[next + t];
                if (token < 0 || token > last) {
                    if (prompt.error.empty())
                        prompt.error = not_a_token(token, static_cast<int64_t>(t), last);
                    prompt.tokens.clear();
                    break;
                }
                prompt.tokens.push_back(static_cast<int32_t>(token));
            }
            next += length;
            if (length == 0) prompt.error = "empty prompt";
        }
    }
}

}  // namespace quadrille
