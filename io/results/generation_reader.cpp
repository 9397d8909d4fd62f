// SPDX-License-Identifier: Apache-2.0
#include "io/results/generation_reader.h"

#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/prompts/prompt_options.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace quadrille {
namespace {

using h5::TypeClass;

const char* class_name(TypeClass kind) {
    switch (kind) {
        case TypeClass::integer:
            return "integers";
        case TypeClass::floating:
            return "floating point";
        case TypeClass::string:
            return "strings";
        case TypeClass::other:
            break;
    }
    return "another type";
}

// Cuts `values` into the lists of consecutive records; `bounds` points at the first one's offset.
template <typename T, typename Set>
void share_out(const std::vector<T>& values, const int64_t* bounds, int64_t width,
               std::vector<Generation>& out, const Set& set) {
    for (size_t i = 0; i < out.size(); ++i) {
        const auto begin = values.begin() + (bounds[i] - bounds[0]) * width;
        const auto end = values.begin() + (bounds[i + 1] - bounds[0]) * width;
        set(out[i]).assign(begin, end);
    }
}

// Seals of parts are looked at by those who take parts up: they are opened again and again.
h5::File open_sound(const std::filesystem::path& path, const std::string& kind) {
    if (kind != schema::kPart) refuse_broken_seal(path);
    return h5::File::open(path);
}

template <typename Enum>
Enum to_enum(int32_t value, const std::vector<std::string>& names, const h5::Dataset& dataset,
             int64_t row) {
    if (value < 0 || value >= std::ssize(names))
        throw Error(ErrorKind::input, fmt::format("{}[{}]: {} is not one of 0 to {}",
                                                  dataset.where(), row, value, names.size() - 1));
    return static_cast<Enum>(value);
}

}  // namespace

GenerationReader::GenerationReader(const std::filesystem::path& path, const std::string& kind)
    : path_(path), file_(open_sound(path, kind)) {
    std::vector<std::string> notices;
    schema::expect_kind(file_, kind, notices);
    const h5::Group generations = file_.group("generations");
    tokens_ = generations.dataset("tokens");
    offsets_ = read_offsets(generations, "offsets", -1, tokens_.rows());
    records_ = std::ssize(offsets_) - 1;
    tokens_ = open("generations/tokens", TypeClass::integer, {offsets_.back()});
    status_ = open("generations/status", TypeClass::integer, {records_});
    finish_reason_ = open("generations/finish_reason", TypeClass::integer, {records_});
    error_ = open("generations/error", TypeClass::string, {records_});
    prompt_index_ = open("generations/prompt_index", TypeClass::integer, {records_});
    open_optional();
    open_acceptance();
    open_logprobs();
}

h5::Dataset GenerationReader::open(const std::string& path, TypeClass kind,
                                   const std::vector<int64_t>& shape) const {
    h5::Dataset dataset = file_.dataset(path);
    if (dataset.type().kind != kind || dataset.shape() != shape)
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected {} [{}], found {}", dataset.where(), class_name(kind),
                                fmt::join(shape, ", "), dataset.describe()));
    return dataset;
}

void GenerationReader::open_optional() {
    if (file_.has("generations/prompt_tokens"))
        prompt_tokens_ = open("generations/prompt_tokens", TypeClass::integer, {records_});
    if (file_.has("generations/id")) {
        const bool text = file_.dataset("generations/id").type().kind == TypeClass::string;
        layout_.id = text ? IdKind::string : IdKind::integer;
        id_ = open("generations/id", text ? TypeClass::string : TypeClass::integer, {records_});
    }
    if (file_.has("generations/completion"))
        completion_ = open("generations/completion", TypeClass::integer, {records_});
    if (file_.has("generations/kind"))
        kind_ = open("generations/kind", TypeClass::string, {records_});
    layout_.text = file_.has("generations/text");
    if (layout_.text) text_ = open("generations/text", TypeClass::string, {records_});
    layout_.origin = file_.has("generations/source");
    if (!layout_.origin) return;
    source_ = open("generations/source", TypeClass::integer, {records_});
    sample_ = open("generations/sample", TypeClass::integer, {records_});
    layout_.sources = source_names();
}

// Older files have them as an attribute of `source`.
std::vector<std::string> GenerationReader::source_names() const {
    if (file_.has("generations/source_names")) {
        const h5::Dataset names = file_.dataset("generations/source_names");
        return names.read_strings(0, names.rows());
    }
    const auto names = source_->attribute(schema::kNamesAttribute);
    const auto* list = names ? std::get_if<std::vector<std::string>>(&*names) : nullptr;
    return list == nullptr ? std::vector<std::string>() : *list;
}

void GenerationReader::open_acceptance() {
    const auto column = [&](const char* name) {
        return open(std::string("acceptance/") + name, TypeClass::integer, {records_});
    };
    steps_ = column("steps");
    drafted_ = column("drafted");
    accepted_ = column("accepted");
    emitted_ = column("emitted");
    const h5::Dataset positions = file_.dataset("acceptance/by_position");
    layout_.k = positions.shape().size() == 2 ? positions.shape()[1] : 0;
    by_position_ = open("acceptance/by_position", TypeClass::integer, {records_, layout_.k});
    histogram_ = open("acceptance/histogram", TypeClass::integer, {records_, layout_.k + 1});
    layout_.trace = file_.has("acceptance/trace");
    if (!layout_.trace) return;
    trace_ = file_.dataset("acceptance/trace/accepted");
    trace_offsets_ =
        read_offsets(file_.group("acceptance/trace"), "offsets", records_, trace_->rows());
    trace_ = open("acceptance/trace/accepted", TypeClass::integer, {trace_offsets_.back()});
}

void GenerationReader::open_logprobs() {
    if (!file_.has("logprobs")) return;
    const int64_t tokens = offsets_.back();
    const h5::Dataset top = file_.dataset("logprobs/top");
    layout_.logprobs = top.shape().size() == 2 ? top.shape()[1] : 0;
    chosen_ = open("logprobs/chosen", TypeClass::floating, {tokens});
    top_ids_ = open("logprobs/top_ids", TypeClass::integer, {tokens, layout_.logprobs});
    top_ = open("logprobs/top", TypeClass::floating, {tokens, layout_.logprobs});
    layout_.scores = file_.has("scores");
    if (layout_.scores) is_greedy_ = open("scores/is_greedy", TypeClass::integer, {records_});
}

bool GenerationReader::is_complete() const {
    return file_.attribute(schema::kCompleteAttribute) == h5::Value(int64_t{1});
}

std::vector<RecordKey> GenerationReader::keys(int64_t first, int64_t count) const {
    const auto indices = prompt_index_.read<int64_t>(first, count);
    std::vector<RecordKey> out(indices.size());
    for (size_t i = 0; i < out.size(); ++i) out[i].prompt_index = indices[i];
    if (!layout_.origin) return out;
    const auto sources = source_->read<int32_t>(first, count);
    const auto samples = sample_->read<int32_t>(first, count);
    for (size_t i = 0; i < out.size(); ++i) {
        out[i].source = sources[i];
        out[i].sample = samples[i];
    }
    return out;
}

std::vector<Generation> GenerationReader::read(int64_t first, int64_t count) const {
    require(first >= 0 && count >= 0 && count <= records_ - first,
            "generation reader: a slice of the file");
    std::vector<Generation> out(static_cast<size_t>(count));
    if (count == 0) return out;
    const int64_t* bounds = offsets_.data() + first;
    share_out(
        tokens_.read<int32_t>(bounds[0], bounds[count] - bounds[0]), bounds, 1, out,
        [](Generation & g) -> auto& { return g.tokens; });
    read_columns(first, out);
    read_acceptance(first, out);
    if (layout_.logprobs >= 0) read_logprobs(first, out);
    return out;
}

void GenerationReader::read_columns(int64_t first, std::vector<Generation>& out) const {
    const int64_t count = std::ssize(out);
    const auto records = keys(first, count);
    const auto status = status_.read<int32_t>(first, count);
    const auto finish = finish_reason_.read<int32_t>(first, count);
    auto errors = error_.read_strings(first, count);
    for (size_t i = 0; i < out.size(); ++i) {
        const int64_t row = first + static_cast<int64_t>(i);
        out[i].source = records[i].source;
        out[i].prompt_index = records[i].prompt_index;
        out[i].sample = records[i].sample;
        out[i].status = to_enum<Status>(status[i], schema::kStatusNames, status_, row);
        out[i].finish_reason =
            to_enum<FinishReason>(finish[i], schema::kFinishNames, finish_reason_, row);
        out[i].error = std::move(errors[i]);
    }
    std::vector<int64_t> prompt_tokens(out.size(), -1);
    if (prompt_tokens_) prompt_tokens = prompt_tokens_->read<int64_t>(first, count);
    for (size_t i = 0; i < out.size(); ++i) out[i].prompt_tokens = prompt_tokens[i];
    if (completion_) {
        const auto flags = completion_->read<int64_t>(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].completion = flags[i] != 0;
    }
    if (kind_) {
        auto kinds = kind_->read_strings(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].kind = std::move(kinds[i]);
    }
    if (is_greedy_) {
        const auto flags = is_greedy_->read<int64_t>(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].is_greedy = flags[i] != 0;
    }
    if (text_) {
        auto texts = text_->read_strings(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].text = std::move(texts[i]);
    }
    if (layout_.id == IdKind::integer) {
        const auto ids = id_->read<int64_t>(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].id = ids[i];
    } else if (layout_.id == IdKind::string) {
        auto ids = id_->read_strings(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].id = std::move(ids[i]);
    }
}

void GenerationReader::read_acceptance(int64_t first, std::vector<Generation>& out) const {
    const int64_t count = std::ssize(out);
    const auto take = [&](const h5::Dataset& dataset, int64_t Acceptance::*member) {
        const auto values = dataset.read<int64_t>(first, count);
        for (size_t i = 0; i < out.size(); ++i) out[i].acceptance.*member = values[i];
    };
    take(steps_, &Acceptance::steps);
    take(drafted_, &Acceptance::drafted);
    take(accepted_, &Acceptance::accepted);
    take(emitted_, &Acceptance::emitted);
    const auto take_rows = [&](const h5::Dataset& dataset,
                               std::vector<int64_t> Acceptance::*member) {
        const auto values = dataset.read<int64_t>(first, count);
        const int64_t width = dataset.row_elements();
        for (size_t i = 0; i < out.size(); ++i) {
            const auto begin = values.begin() + static_cast<int64_t>(i) * width;
            (out[i].acceptance.*member).assign(begin, begin + width);
        }
    };
    take_rows(by_position_, &Acceptance::by_position);
    take_rows(histogram_, &Acceptance::histogram);
    if (!trace_) return;
    const int64_t* bounds = trace_offsets_.data() + first;
    share_out(
        trace_->read<uint8_t>(bounds[0], bounds[count] - bounds[0]), bounds, 1, out,
        [](Generation & g) -> auto& { return g.acceptance.trace; });
}

void GenerationReader::read_logprobs(int64_t first, std::vector<Generation>& out) const {
    const int64_t* bounds = offsets_.data() + first;
    const int64_t tokens = bounds[out.size()] - bounds[0];
    share_out(
        chosen_->read<float>(bounds[0], tokens), bounds, 1, out,
        [](Generation & g) -> auto& { return g.chosen_logprobs; });
    share_out(
        top_ids_->read<int32_t>(bounds[0], tokens), bounds, layout_.logprobs, out,
        [](Generation & g) -> auto& { return g.top_ids; });
    share_out(
        top_->read<float>(bounds[0], tokens), bounds, layout_.logprobs, out,
        [](Generation & g) -> auto& { return g.top_logprobs; });
}

}  // namespace quadrille
