// SPDX-License-Identifier: Apache-2.0
// The chat template of GLM-5.3-Flash: a conversation in OpenAI's chat format to the text that the
// model is prompted with. Text only: images, video and audio are errors. Where the released
// template passes over what it does not know (a role, a kind of content, a message's `reasoning` or
// `function_call`), this is an error too.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
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

// The checkpoint's own template where it is not the one above: "FILE (digest …)", which is not run
// in any case. "": the folder has none, or one known to be the same. Looks at chat_template.jinja,
// else at chat_template in tokenizer_config.json. Error{input}: one of them cannot be read.
std::string other_template(const std::filesystem::path& folder);

// As Python's json.dumps(value, ensure_ascii=False) prints it.
std::string python_json(const nlohmann::ordered_json& value);

}  // namespace quadrille
