// SPDX-License-Identifier: Apache-2.0
#include "io/prompts/prompt_fields.h"

#include "io/text/chat_template.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace quadrille {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kSettings = {"reasoning_effort", "clear_thinking",
                                                       "enable_thinking", "add_generation_prompt"};

constexpr std::array<std::string_view, 3> kEfforts = {"low", "high", "max"};

bool is_setting(const std::string& key) {
    return std::ranges::find(kSettings, key) != kSettings.end();
}

// The released template gives the maximum for every name but its own three, "none" too: a name that
// it does not know would get the opposite of what it asks for.
void take_chat_options(const JsonObject& object, ChatOptions& options) {
    if (object.has("reasoning_effort")) {
        options.reasoning_effort = object.string("reasoning_effort");
        if (std::ranges::find(kEfforts, options.reasoning_effort) == kEfforts.end()) {
            object.reject("reasoning_effort", "\"low\", \"high\" or \"max\"");
        }
    }
    if (object.has("clear_thinking")) options.clear_thinking = object.boolean("clear_thinking");
    if (object.has("enable_thinking")) options.enable_thinking = object.boolean("enable_thinking");
    if (object.has("add_generation_prompt")) {
        options.add_generation_prompt = object.boolean("add_generation_prompt");
    }
}

bool is_integral(const json& value) {
    if (!value.is_number_float()) return value.is_number_integer();
    const auto number = value.get<double>();
    return std::trunc(number) == number;
}

void read_int(const JsonObject& object, const std::string& key, const options::IntOption& option,
              std::optional<int64_t>& result) {
    const json& value = *object.find(key);
    const std::string expected = "an integer, " + option.range();
    if (value.is_boolean() && option.low == 0 && option.high == 1) {
        result = value.get<bool>() ? 1 : 0;
        return;
    }
    if (!is_integral(value)) object.fail(key, expected);
    const std::optional<int64_t> number = read_integer(value);
    if (number == options::kIntDefault) return;
    if (!number || !option.allows(*number)) object.reject(key, expected);
    result = number;
}

void read_float(const JsonObject& object, const std::string& key,
                const options::FloatOption& option, std::optional<double>& result) {
    const json& value = *object.find(key);
    const std::string expected = "a number, " + option.range();
    if (!value.is_number()) object.fail(key, expected);
    const auto number = value.get<double>();
    if (!std::isfinite(number) || !option.allows(number)) object.reject(key, expected);
    result = number;
}

}  // namespace

std::optional<int64_t> read_integer(const json& value) {
    constexpr double kEnd = 9223372036854775808.0;  // 2^63
    if (!is_integral(value)) return std::nullopt;
    if (value.is_number_float()) {
        const auto number = value.get<double>();
        if (!(number >= -kEnd && number < kEnd)) return std::nullopt;
        return static_cast<int64_t>(number);
    }
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return std::nullopt;
    }
    return value.get<int64_t>();
}

std::string read_text(const JsonObject& object, const std::string& key) {
    std::string text = object.string(key);
    if (text.empty()) object.reject(key, "some text");
    if (text.find('\0') != std::string::npos) object.reject(key, "text without NUL");
    return text;
}

std::vector<int32_t> read_tokens(const JsonObject& object, const std::string& key) {
    const std::string expected = fmt::format("an integer in 0..{}", options::kMaxToken);
    const json& list = object.at(key, "a list of token ids");
    if (!list.is_array()) object.fail(key, "a list of token ids");
    std::vector<int32_t> tokens;
    tokens.reserve(list.size());
    for (const json& item : list) {
        const std::optional<int64_t> token = read_integer(item);
        if (token && *token >= 0 && *token <= options::kMaxToken) {
            tokens.push_back(static_cast<int32_t>(*token));
            continue;
        }
        const std::string complaint =
            fmt::format("{}: {}[{}]: expected {}, found {}", object.place(), object.name(key),
                        tokens.size(), expected, shown(item));
        if (is_integral(item)) throw ValueError(complaint);
        throw Error(ErrorKind::input, complaint);
    }
    return tokens;
}

std::vector<std::string> read_texts(const JsonObject& object, const std::string& key) {
    const json& value = object.at(key, "a string or a list of strings");
    std::vector<std::string> texts =
        value.is_array() ? object.strings(key) : std::vector<std::string>{object.string(key)};
    for (const std::string& text : texts) {
        if (text.empty() || text.find('\0') != std::string::npos) {
            object.reject(key, "texts that are not empty and hold no NUL");
        }
    }
    return texts;
}

void read_option(const JsonObject& object, const std::string& key, std::string_view name,
                 PromptRecord& record) {
    if (!object.has(key)) return;
    for (size_t i = 0; i < options::kInts.size(); ++i) {
        if (name == options::kInts[i].name) {
            return read_int(object, key, options::kInts[i], record.ints[i]);
        }
    }
    for (size_t i = 0; i < options::kFloats.size(); ++i) {
        if (name == options::kFloats[i].name) {
            return read_float(object, key, options::kFloats[i], record.floats[i]);
        }
    }
    require(false, "prompt fields: a known option");
}

bool is_chat_key(const std::string& key) {
    return key == "messages" || key == "tools" || key == "chat_template_kwargs" || is_setting(key);
}

std::string read_chat(const JsonObject& object, std::string_view line, const std::string& path,
                      bool with_tools) {
    ChatOptions options;
    take_chat_options(object, options);
    if (object.has("chat_template_kwargs")) {
        const JsonObject extra = object.object("chat_template_kwargs");
        take_chat_options(extra, options);
        for (const auto& item : extra.value().items()) {
            if (!is_setting(item.key())) {
                extra.fail(item.key(),
                           fmt::format("one of the settings {}", fmt::join(kSettings, ", ")));
            }
        }
    }
    const nlohmann::ordered_json document = parse_ordered_json(line, object.place());
    const nlohmann::ordered_json& holder = path.empty() ? document : document.at(path);
    const auto tools = holder.find("tools");
    const bool has_tools = with_tools && tools != holder.end();
    std::string text =
        render_chat(holder.at("messages"), has_tools ? *tools : nlohmann::ordered_json(), options,
                    object.place(), path);
    if (text.find('\0') != std::string::npos) object.reject("messages", "text without NUL");
    return text;
}

}  // namespace quadrille
