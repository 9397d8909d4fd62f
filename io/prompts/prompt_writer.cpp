// SPDX-License-Identifier: Apache-2.0
// Extendable datasets, appended a batch at a time; a list is its values and the running ends.
#include "io/prompts/prompt_writer.h"

#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace quadrille {

namespace {

using h5::Element;

constexpr size_t kBatchRecords = 4096;
constexpr int64_t kBatchBytes = 16 << 20;
constexpr int64_t kChunkRows = 4096;
constexpr int64_t kChunkTokens = 65536;
constexpr int64_t kLeastChunk = 8;       // rows
constexpr int64_t kTokensARecord = 128;  // that chunks of tokens are made for

int64_t bytes_of(const PromptRecord& record) {
    if (const auto* text = std::get_if<std::string>(&record.prompt)) return std::ssize(*text);
    return 4 * std::ssize(std::get<std::vector<int32_t>>(record.prompt));
}

}  // namespace

void PromptColumns::note(const PromptRecord& record) {
    for (size_t i = 0; i < options::kInts.size(); ++i) {
        if (record.ints[i]) options.insert(options::kInts[i].name);
    }
    for (size_t i = 0; i < options::kFloats.size(); ++i) {
        if (record.floats[i]) options.insert(options::kFloats[i].name);
    }
    if (!record.stop_tokens.empty()) options.insert(options::kStopTokens);
    if (!record.stop_text.empty()) options.insert(options::kStopText);
    completion = completion || record.completion;
    kind = kind || !record.kind.empty();
    error = error || !record.error.empty();
}

PromptWriter::PromptWriter(const std::filesystem::path& out, const PromptColumns& columns)
    : out_(out), partial_(out.string() + ".partial"), columns_(columns) {
    file_ = h5::File::create(partial_);
    try {
        schema::stamp(*file_, schema::kPrompts);
        prompts_ = file_->create_group("prompts");
        create_columns();
    } catch (...) {
        discard();
        throw;
    }
}

PromptWriter::~PromptWriter() {
    if (file_) discard();
}

void PromptWriter::discard() noexcept {
    datasets_.clear();
    prompts_.reset();
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);
}

// A file of few records is small: a chunk takes its place on disk whole.
void PromptWriter::create_columns() {
    const int64_t expected = columns_.expected > 0 ? columns_.expected + 1 : kChunkRows;
    const int64_t rows = std::clamp<int64_t>(expected, kLeastChunk, kChunkRows);
    const int64_t tokens = std::min(rows * kTokensARecord, kChunkTokens);
    const auto create = [&](const std::string& name, Element element, int64_t chunk_rows) {
        datasets_.emplace(name, prompts_->create_extendable(name, element, {}, chunk_rows));
    };
    const auto create_list = [&](const std::string& name, const std::string& offsets,
                                 Element element, int64_t chunk_rows) {
        create(name, element, chunk_rows);
        create(offsets, Element::i64, rows);
        const int64_t first = 0;
        column(offsets).append(std::span(&first, 1));
    };
    if (columns_.text) {
        create("text", Element::string, rows);
    } else {
        create_list("tokens", "offsets", Element::i32, tokens);
    }
    if (columns_.id != PromptColumns::Id::none) {
        create("id", columns_.id == PromptColumns::Id::integers ? Element::i64 : Element::string,
               rows);
    }
    if (columns_.completion) create("completion", Element::u8, rows);
    if (columns_.kind) create("kind", Element::string, rows);
    if (columns_.error) create("error", Element::string, rows);
    for (const auto& option : options::kInts) {
        if (columns_.options.contains(option.name)) create(option.name, Element::i64, rows);
    }
    for (const auto& option : options::kFloats) {
        if (columns_.options.contains(option.name)) create(option.name, Element::f64, rows);
    }
    if (columns_.options.contains(options::kStopTokens)) {
        create_list(options::kStopTokens, options::offsets_name(options::kStopTokens), Element::i32,
                    rows);
    }
    if (columns_.options.contains(options::kStopText)) {
        create_list(options::kStopText, options::offsets_name(options::kStopText), Element::string,
                    rows);
    }
}

void PromptWriter::add(PromptRecord record) {
    require(file_.has_value(), "prompt writer: open");
    if (!record.error.empty()) {
        if (columns_.text) {
            record.prompt = std::string();
        } else {
            record.prompt = std::vector<int32_t>();
        }
    }
    require(record.is_text() == columns_.text, "prompt writer: the file's form of prompt");
    batch_bytes_ += bytes_of(record);
    batch_.push_back(std::move(record));
    ++records_;
    if (batch_.size() >= kBatchRecords || batch_bytes_ >= kBatchBytes) flush();
}

void PromptWriter::flush() {
    flush_prompts();
    flush_remarks();
    flush_options();
    batch_.clear();
    batch_bytes_ = 0;
}

void PromptWriter::flush_prompts() {
    if (columns_.text) {
        std::vector<std::string> texts;
        for (PromptRecord& record : batch_) {
            texts.push_back(std::move(std::get<std::string>(record.prompt)));
        }
        column("text").append_strings(texts);
    } else {
        std::vector<int32_t> tokens;
        std::vector<int64_t> ends;
        for (const PromptRecord& record : batch_) {
            const auto& ids = std::get<std::vector<int32_t>>(record.prompt);
            tokens.insert(tokens.end(), ids.begin(), ids.end());
            ends.push_back(tokens_ += std::ssize(ids));
        }
        column("tokens").append<int32_t>(tokens);
        column("offsets").append<int64_t>(ends);
    }
    if (columns_.id == PromptColumns::Id::integers) {
        std::vector<int64_t> ids;
        for (const PromptRecord& record : batch_) ids.push_back(std::get<int64_t>(record.id));
        column("id").append<int64_t>(ids);
    } else if (columns_.id == PromptColumns::Id::strings) {
        std::vector<std::string> ids;
        for (const PromptRecord& record : batch_) {
            const auto* text = std::get_if<std::string>(&record.id);
            ids.push_back(text ? *text : fmt::format("{}", std::get<int64_t>(record.id)));
        }
        column("id").append_strings(ids);
    }
}

void PromptWriter::flush_remarks() {
    if (columns_.completion) {
        std::vector<uint8_t> flags;
        for (const PromptRecord& record : batch_) flags.push_back(record.completion ? 1 : 0);
        column("completion").append<uint8_t>(flags);
    }
    if (columns_.kind) {
        std::vector<std::string> kinds;
        for (const PromptRecord& record : batch_) kinds.push_back(record.kind);
        column("kind").append_strings(kinds);
    }
    if (columns_.error) {
        std::vector<std::string> errors;
        for (const PromptRecord& record : batch_) errors.push_back(storable_text(record.error));
        column("error").append_strings(errors);
    }
}

void PromptWriter::flush_options() {
    for (size_t i = 0; i < options::kInts.size(); ++i) {
        if (!columns_.options.contains(options::kInts[i].name)) continue;
        std::vector<int64_t> values;
        for (const PromptRecord& record : batch_) {
            values.push_back(record.ints[i].value_or(options::kIntDefault));
        }
        column(options::kInts[i].name).append<int64_t>(values);
    }
    for (size_t i = 0; i < options::kFloats.size(); ++i) {
        if (!columns_.options.contains(options::kFloats[i].name)) continue;
        std::vector<double> values;
        for (const PromptRecord& record : batch_) {
            values.push_back(record.floats[i].value_or(std::numeric_limits<double>::quiet_NaN()));
        }
        column(options::kFloats[i].name).append<double>(values);
    }
    std::vector<int64_t> ends;
    if (columns_.options.contains(options::kStopTokens)) {
        std::vector<int32_t> tokens;
        for (const PromptRecord& record : batch_) {
            tokens.insert(tokens.end(), record.stop_tokens.begin(), record.stop_tokens.end());
            ends.push_back(stop_tokens_ += std::ssize(record.stop_tokens));
        }
        column(options::kStopTokens).append<int32_t>(tokens);
        column(options::offsets_name(options::kStopTokens)).append<int64_t>(ends);
    }
    if (columns_.options.contains(options::kStopText)) {
        std::vector<std::string> texts;
        ends.clear();
        for (const PromptRecord& record : batch_) {
            texts.insert(texts.end(), record.stop_text.begin(), record.stop_text.end());
            ends.push_back(stop_texts_ += std::ssize(record.stop_text));
        }
        column(options::kStopText).append_strings(texts);
        column(options::offsets_name(options::kStopText)).append<int64_t>(ends);
    }
}

void PromptWriter::finish() {
    require(file_.has_value(), "prompt writer: open");
    flush();
    file_->flush();
    datasets_.clear();
    prompts_.reset();
    file_->close();
    seal_file(partial_);
    rename_durably(partial_, out_);
    file_.reset();
}

}  // namespace quadrille
