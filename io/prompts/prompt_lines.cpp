// SPDX-License-Identifier: Apache-2.0
// Lines in our own names; those of OpenAI batch files: io/prompts/batch_line.h.
#include "io/prompts/prompt_lines.h"

#include "io/prompts/batch_line.h"
#include "io/prompts/prompt_fields.h"
#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

namespace quadrille {

namespace {

using nlohmann::json;

// The one of text, tokens and messages that is there.
void read_prompt(const JsonObject& object, std::string_view line, PromptRecord& record) {
    std::vector<std::string> given;
    for (const char* form : {"text", "tokens", "messages"}) {
        if (object.has(form)) given.push_back(form);
    }
    if (given.size() != 1) {
        throw Error(
            ErrorKind::input,
            fmt::format("{}: expected one of text, tokens and messages, found {}", object.place(),
                        given.empty() ? "none" : fmt::format("{}", fmt::join(given, ", "))));
    }
    if (given[0] == "text") {
        record.prompt = read_text(object, "text");
    } else if (given[0] == "messages") {
        record.prompt = read_chat(object, line, "", true);
        record.chat = true;
    } else {
        auto tokens = read_tokens(object, "tokens");
        if (tokens.empty()) object.reject("tokens", "at least one token");
        record.prompt = std::move(tokens);
    }
}

void read_id(const JsonObject& object, PromptRecord& record) {
    const json* id = object.find("id");
    if (!id) return;
    if (id->is_string()) {
        record.id = read_text(object, "id");
    } else if (const std::optional<int64_t> number = read_integer(*id)) {
        record.id = *number;
    } else {
        object.fail("id", "an integer or a string");
    }
}

constexpr const char* kStopExpected = "a token id or a list of them, 0 to 2147483647";

void read_stops(const JsonObject& object, PromptRecord& record) {
    if (const json* value = object.find(options::kStopTokens)) {
        if (value->is_array()) {
            record.stop_tokens = read_tokens(object, options::kStopTokens);
        } else if (const std::optional<int64_t> token = read_integer(*value)) {
            if (*token < 0 || *token > options::kMaxToken) {
                object.reject(options::kStopTokens, kStopExpected);
            }
            record.stop_tokens = {static_cast<int32_t>(*token)};
        } else {
            object.fail(options::kStopTokens, kStopExpected);
        }
    }
    if (object.has(options::kStopText)) {
        record.stop_text = read_texts(object, options::kStopText);
    }
}

// An object in our own names. Keys that only a conversation has mean nothing without one.
void read_plain_line(const JsonObject& object, std::string_view line, PromptRecord& record,
                     std::map<std::string, int64_t>& unknown_keys) {
    read_prompt(object, line, record);
    for (const auto& option : options::kInts) {
        read_option(object, option.name, option.name, record);
    }
    for (const auto& option : options::kFloats) {
        read_option(object, option.name, option.name, record);
    }
    read_stops(object, record);
    if (object.has("kind")) record.kind = read_text(object, "kind");
    if (object.has("continuation")) {
        if (!record.is_text()) object.reject("continuation", "text or messages beside it");
        record.continuation = read_text(object, "continuation");
    }
    const bool chat = object.has("messages");
    for (const auto& item : object.value().items()) {
        const auto named = [&](const auto& option) { return item.key() == option.name; };
        const bool known = item.key() == "id" || item.key() == "kind" || item.key() == "text" ||
                           item.key() == "tokens" || item.key() == "continuation" ||
                           item.key() == options::kStopTokens || item.key() == options::kStopText ||
                           std::ranges::any_of(options::kInts, named) ||
                           std::ranges::any_of(options::kFloats, named) ||
                           (chat && is_chat_key(item.key()));
        if (!known) ++unknown_keys[item.key()];
    }
}

}  // namespace

void join_continuation(PromptRecord& record, const Tokenizer& tokenizer) {
    std::string context = std::get<std::string>(record.prompt);
    const std::string whole = context + std::exchange(record.continuation, {});
    context.resize(context.find_last_not_of(" \t\n\v\f\r") + 1);
    const auto from = static_cast<int64_t>(tokenizer.encode(context).size());
    std::vector<int32_t> tokens = tokenizer.encode(whole);
    if (from == 0 || from >= std::ssize(tokens)) {
        record.error = fmt::format(
            "continuation: expected a token before it and one of its own, "
            "found {} and {}",
            from, std::max<int64_t>(std::ssize(tokens) - from, 0));
    }
    record.prompt = std::move(tokens);
    record.ints[options::kScoreFrom] = std::max<int64_t>(from, 1);
}

LineFormat line_format_of(const std::filesystem::path& file) {
    std::string suffix = file.extension().string();
    std::ranges::transform(suffix, suffix.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool lines = suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json";
    return lines ? LineFormat::jsonl : LineFormat::text;
}

PromptLines::PromptLines(const std::filesystem::path& file, LineFormat format)
    : lines_(file), format_(format) {}

bool PromptLines::next(PromptRecord& record) {
    while (lines_.next()) {
        record = {};
        if (lines_.line().find_first_not_of(" \t") == std::string_view::npos) {
            ++blank_lines_;
        } else if (format_ == LineFormat::jsonl) {
            read_object(record);
            return true;
        } else {
            const std::string_view text = lines_.line();
            if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
                throw Error(ErrorKind::input,
                            fmt::format("{}: expected text, found NUL at offset {}", place(), nul));
            }
            record.prompt = std::string(text);
            return true;
        }
    }
    return false;
}

void PromptLines::read_object(PromptRecord& record) {
    refuse_spread_json();
    const json line = parse_json(lines_.line(), place());
    const JsonObject object(line, place());
    const bool batch = is_batch_line(object);
    if (batch) {
        record.id = read_text(object, "custom_id");
    } else {
        read_id(object, record);
    }
    const auto fail = [&](const Error& error) {
        PromptRecord failed;
        failed.id = std::move(record.id);
        failed.error = error.what();
        record = std::move(failed);
    };
    try {
        if (batch) return read_batch_line(object, lines_.line(), record);
        read_plain_line(object, lines_.line(), record, unknown_keys_);
    } catch (const ValueError& error) {
        fail(error);
    } catch (const Error& error) {
        if (!batch || error.kind() != ErrorKind::input) throw;
        fail(error);
    }
}

// A file of one JSON value over many lines, or a list of all records: the parser would only say
// what its first line lacks.
void PromptLines::refuse_spread_json() const {
    const std::string_view line = lines_.line();
    const size_t first = line.find_first_not_of(" \t");
    const size_t last = line.find_last_not_of(" \t");
    const bool opens_only = line[first] == '{' && first == last;
    if (line[first] != '[' && !opens_only) return;
    throw Error(ErrorKind::input,
                fmt::format("{}: expected JSON lines, an object in each line, found {}", place(),
                            shown(std::string(line.substr(first)))));
}

}  // namespace quadrille
