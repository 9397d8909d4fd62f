// SPDX-License-Identifier: Apache-2.0
// One JSON object to one record: types and ranges are those of the columns, so that what is packed
// here is never refused later.
#include "io/prompt_lines.h"

#include "io/json.h"
#include "kernels/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace quadrille {

namespace {

using nlohmann::json;

std::string checked_text(const JsonObject& object, const std::string& key) {
    std::string text = object.string(key);
    if (text.empty()) object.fail(key, "some text");
    if (text.find('\0') != std::string::npos) object.fail(key, "text without NUL");
    return text;
}

std::vector<int32_t> checked_tokens(const JsonObject& object, const std::string& key) {
    const auto wide = object.integers(key, 0, options::kMaxToken);
    return {wide.begin(), wide.end()};
}

void read_prompt(const JsonObject& object, PromptRecord& record) {
    if (object.has("text") == object.has("tokens")) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected one of text and tokens, found {}", object.place(),
                                object.has("text") ? "both" : "neither"));
    }
    if (object.has("text")) {
        record.prompt = checked_text(object, "text");
        return;
    }
    auto tokens = checked_tokens(object, "tokens");
    if (tokens.empty()) object.fail("tokens", "at least one token");
    record.prompt = std::move(tokens);
}

void read_id(const JsonObject& object, PromptRecord& record) {
    const json* id = object.find("id");
    if (!id) return;
    if (id->is_string()) {
        record.id = checked_text(object, "id");
    } else if (id->is_number_integer()) {
        record.id = object.integer("id", INT64_MIN, INT64_MAX);
    } else {
        object.fail("id", "an integer or a string");
    }
}

// null and the column's marker -1 mean "default".
void read_options(const JsonObject& object, PromptRecord& record) {
    for (size_t i = 0; i < options::kInts.size(); ++i) {
        const auto& option = options::kInts[i];
        const json* value = object.find(option.name);
        if (!value) continue;
        if (value->is_boolean() && option.low == 0 && option.high == 1) {
            record.ints[i] = value->get<bool>() ? 1 : 0;
            continue;
        }
        const std::string expected = "an integer, " + option.range();
        if (!value->is_number_integer()) object.fail(option.name, expected);
        if (*value == options::kIntDefault) continue;
        const bool fits = value->is_number_unsigned()
                              ? value->get<uint64_t>() <= static_cast<uint64_t>(option.high)
                              : value->get<int64_t>() >= option.low;
        if (!fits || !option.allows(value->get<int64_t>())) object.fail(option.name, expected);
        record.ints[i] = value->get<int64_t>();
    }
    for (size_t i = 0; i < options::kFloats.size(); ++i) {
        const auto& option = options::kFloats[i];
        const json* value = object.find(option.name);
        if (!value) continue;
        const std::string expected = "a number, " + option.range();
        if (!value->is_number()) object.fail(option.name, expected);
        const auto number = value->get<double>();
        if (!std::isfinite(number) || !option.allows(number)) object.fail(option.name, expected);
        record.floats[i] = number;
    }
}

void read_stops(const JsonObject& object, PromptRecord& record) {
    if (const json* value = object.find(options::kStopTokens)) {
        if (value->is_array()) {
            record.stop_tokens = checked_tokens(object, options::kStopTokens);
        } else {
            record.stop_tokens = {
                static_cast<int32_t>(object.integer(options::kStopTokens, 0, options::kMaxToken))};
        }
    }
    if (const json* value = object.find(options::kStopText)) {
        if (value->is_array()) {
            record.stop_text = object.strings(options::kStopText);
        } else {
            record.stop_text = {object.string(options::kStopText)};
        }
        for (const std::string& text : record.stop_text) {
            if (text.empty() || text.find('\0') != std::string::npos) {
                object.fail(options::kStopText, "texts that are not empty and hold no NUL");
            }
        }
    }
}

bool is_known(const std::string& key) {
    const auto named = [&](const auto& option) { return key == option.name; };
    return key == "id" || key == "text" || key == "tokens" || key == options::kStopTokens ||
           key == options::kStopText || std::ranges::any_of(options::kInts, named) ||
           std::ranges::any_of(options::kFloats, named);
}

}  // namespace

LineFormat line_format_of(const std::filesystem::path& file) {
    std::string suffix = file.extension().string();
    std::ranges::transform(suffix, suffix.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return suffix == ".jsonl" || suffix == ".ndjson" ? LineFormat::jsonl : LineFormat::text;
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
    const json line = parse_json(lines_.line(), place());
    const JsonObject object(line, place());
    read_prompt(object, record);
    read_id(object, record);
    read_options(object, record);
    read_stops(object, record);
    for (const auto& item : line.items()) {
        if (!is_known(item.key())) ++unknown_keys_[item.key()];
    }
}

}  // namespace quadrille
