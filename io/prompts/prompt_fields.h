// SPDX-License-Identifier: Apache-2.0
// Parts of a record as JSON objects give them: texts, tokens, stops, conversations, options. Types
// and ranges are those of the columns of prompts.h5, so that what is read here is never refused
// later. Every failure is Error{input} "PLACE: field: expected …, found …"; a value of the right
// type outside its range is a ValueError.
#pragma once

#include "io/prompts/prompt_writer.h"
#include "io/text/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

std::string read_text(const JsonObject& object, const std::string& key);  // not empty, no NUL
// Any number; 4.0 is the integer 4, here and wherever an integer is read.
std::vector<int32_t> read_tokens(const JsonObject& object, const std::string& key);
std::vector<std::string> read_texts(const JsonObject& object, const std::string& key);  // or one

// nullopt: no integer, or one that int64 does not hold.
std::optional<int64_t> read_integer(const nlohmann::json& value);

// Sets the option `name` of io/prompts/option_table.h from object[key]; null and the columns'
// marker -1 mean "default". Absent: nothing happens.
void read_option(const JsonObject& object, const std::string& key, std::string_view name,
                 PromptRecord& record);

// The prompt that the chat template makes of `messages` and `tools`, with the settings that stand
// beside them or in `chat_template_kwargs`: reasoning_effort, clear_thinking, enable_thinking,
// add_generation_prompt. reasoning_effort is one of the template's three. `line` is the text that
// `object` was parsed from, `path` the object's place in it ("" or "body"): the order of keys
// counts there.
std::string read_chat(const JsonObject& object, std::string_view line, const std::string& path,
                      bool with_tools);

// Keys that read_chat looks at.
bool is_chat_key(const std::string& key);

}  // namespace quadrille
