// SPDX-License-Identifier: Apache-2.0
// The chat template of GLM-5.3-Flash: a conversation in OpenAI's chat format to the text that the
// model is prompted with. Text only: images, video and audio are errors. Where the released
// template passes over what it does not know (a role, a kind of content), this is an error too.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace quadrille {

struct ChatOptions {
    std::string reasoning_effort = {};  // exactly "low" or "high"; anything else is the maximum
    bool clear_thinking = false;        // leaves out the reasoning before the last user message
    bool add_generation_prompt = true;  // ends with the start of the assistant's answer
    bool enable_thinking = true;        // false: the answer starts with an empty reasoning
};

// `messages`: an array of {role, content, …}; `tools`: an array, or null. Order of keys counts.
// Error{input} "PLACE: messages[2].content: expected …, found …"; `path` stands before `messages`.
std::string render_chat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                        const ChatOptions& options, const std::string& place,
                        const std::string& path = "");

// As Python's json.dumps(value, ensure_ascii=False) prints it.
std::string python_json(const nlohmann::ordered_json& value);

}  // namespace quadrille
