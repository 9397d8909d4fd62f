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

bool is_setting(const std::string& key) {
    return std::ranges::find(kSettings, key) != kSettings.end();
}

void take_chat_options(const JsonObject& object, ChatOptions& options) {
    if (object.has("reasoning_effort")) {
        options.reasoning_effort = object.string("reasoning_effort");
    }
    if (object.has("clear_thinking")) options.clear_thinking = object.boolean("clear_thinking");
    if (object.has("enable_thinking")) options.enable_thinking = object.boolean("enable_thinking");
    if (object.has("add_generation_prompt")) {
        options.add_generation_prompt = object.boolean("add_generation_prompt");
    }
}

}  // namespace

std::string read_text(const JsonObject& object, const std::string& key) {
    std::string text = object.string(key);
    if (text.empty()) object.fail(key, "some text");
    if (text.find('\0') != std::string::npos) object.fail(key, "text without NUL");
    return text;
}

std::vector<int32_t> read_tokens(const JsonObject& object, const std::string& key) {
    const auto wide = object.integers(key, 0, options::kMaxToken);
    return {wide.begin(), wide.end()};
}

std::vector<std::string> read_texts(const JsonObject& object, const std::string& key) {
    const json& value = object.at(key, "a string or a list of strings");
    std::vector<std::string> texts =
        value.is_array() ? object.strings(key) : std::vector<std::string>{object.string(key)};
    for (const std::string& text : texts) {
        if (text.empty() || text.find('\0') != std::string::npos) {
            object.fail(key, "texts that are not empty and hold no NUL");
        }
    }
    return texts;
}

void read_option(const JsonObject& object, const std::string& key, std::string_view name,
                 PromptRecord& record) {
    const json* value = object.find(key);
    if (!value) return;
    for (size_t i = 0; i < options::kInts.size(); ++i) {
        const auto& option = options::kInts[i];
        if (name != option.name) continue;
        const std::string expected = "an integer, " + option.range();
        const bool is_flag = option.low == 0 && option.high == 1;
        if (value->is_boolean() && is_flag) {
            record.ints[i] = value->get<bool>() ? 1 : 0;
        } else if (!value->is_number_integer()) {
            object.fail(key, expected);
        } else if (*value != options::kIntDefault) {
            // As unsigned first: what exceeds int64 would come out negative.
            const bool fits = !value->is_number_unsigned() ||
                              value->get<uint64_t>() <= static_cast<uint64_t>(option.high);
            if (!fits || !option.allows(value->get<int64_t>())) object.fail(key, expected);
            record.ints[i] = value->get<int64_t>();
        }
        return;
    }
    for (size_t i = 0; i < options::kFloats.size(); ++i) {
        const auto& option = options::kFloats[i];
        if (name != option.name) continue;
        const std::string expected = "a number, " + option.range();
        if (!value->is_number()) object.fail(key, expected);
        const auto number = value->get<double>();
        if (!std::isfinite(number) || !option.allows(number)) object.fail(key, expected);
        record.floats[i] = number;
        return;
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
    if (text.find('\0') != std::string::npos) object.fail("messages", "text without NUL");
    return text;
}

}  // namespace quadrille
