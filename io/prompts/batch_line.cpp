// SPDX-License-Identifier: Apache-2.0
// OpenAI's names, and those that vLLM and others added for the same options, to ours.
#include "io/prompts/batch_line.h"

#include "io/prompts/prompt_fields.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace quadrille {

namespace {

using nlohmann::json;

// Same name, or another that means the same.
constexpr std::pair<const char*, const char*> kOptions[] = {
    {"n", "n"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"repetition_penalty", "repetition_penalty"},
    {"ignore_eos", "ignore_eos"},
};

// Fields that may say nothing but this (or null): nothing else can be honoured.
const std::pair<const char*, json> kOnly[] = {
    {"stream", false},
    {"echo", false},
    {"suffix", ""},
    {"presence_penalty", 0.0},
    {"frequency_penalty", 0.0},
    {"logit_bias", json::object()},
    {"response_format", {{"type", "text"}}},
    {"modalities", {"text"}},
    {"functions", json::array()},
    {"prompt_logprobs", 0},
    {"min_tokens", 0},
    {"length_penalty", 1.0},
    {"use_beam_search", false},
    {"bad_words", json::array()},
    {"guided_json", json::object()},
    {"guided_regex", ""},
    {"guided_choice", json::array()},
    {"guided_grammar", ""},
    {"structured_outputs", json::object()},
    {"function_call", "none"},
    {"prediction", json::object()},
    {"audio", json::object()},
    {"web_search_options", json::object()},
};

// Read elsewhere, or without influence on what is generated.
constexpr std::array<std::string_view, 18> kOthers = {"best_of",
                                                      "model",
                                                      "prompt",
                                                      "max_tokens",
                                                      "max_completion_tokens",
                                                      "stop",
                                                      "stop_token_ids",
                                                      "logprobs",
                                                      "top_logprobs",
                                                      "tool_choice",
                                                      "user",
                                                      "metadata",
                                                      "parallel_tool_calls",
                                                      "service_tier",
                                                      "store",
                                                      "stream_options",
                                                      "safety_identifier",
                                                      "prompt_cache_key"};

bool is_known(const std::string& key) {
    const auto named = [&](const auto& pair) { return key == pair.first; };
    return is_chat_key(key) || std::ranges::any_of(kOptions, named) ||
           std::ranges::any_of(kOnly, named) || std::ranges::find(kOthers, key) != kOthers.end();
}

void read_prompt(const JsonObject& body, PromptRecord& record) {
    const json& prompt = body.at("prompt", "a string or a list of token ids");
    if (prompt.is_string()) {
        record.prompt = read_text(body, "prompt");
        return;
    }
    if (!prompt.is_array() || prompt.empty())
        body.fail("prompt", "a string or a list of token ids");
    record.prompt = read_tokens(body, "prompt");
}

// Tools are offered unless the request says "none"; it cannot be made to call one.
bool rank_candidates_tools(const JsonObject& body) {
    const json* choice = body.find("tool_choice");
    if (!choice || *choice == "auto") return true;
    if (*choice != "none") body.fail("tool_choice", "\"auto\" or \"none\"");
    return false;
}

void read_length(const JsonObject& body, PromptRecord& record) {
    const bool both = body.has("max_tokens") && body.has("max_completion_tokens");
    if (both && *body.find("max_tokens") != *body.find("max_completion_tokens")) {
        body.fail("max_tokens", fmt::format("{} (max_completion_tokens)",
                                            shown(*body.find("max_completion_tokens"))));
    }
    read_option(body, body.has("max_tokens") ? "max_tokens" : "max_completion_tokens",
                "max_new_tokens", record);
}

// The best of as many answers as are asked for are all of them.
void check_best_of(const JsonObject& body) {
    const json one = 1;
    const json* answers = body.find("n");
    const json* best_of = body.find("best_of");
    if (!answers) answers = &one;
    if (best_of && *best_of != *answers) body.fail("best_of", shown(*answers) + " (n)");
}

// Chat: logprobs is a switch and top_logprobs their number. Completions: logprobs is the number.
void read_logprobs(const JsonObject& body, bool chat, PromptRecord& record) {
    if (!chat) {
        if (const json* value = body.find("logprobs"); value && *value == false) return;
        read_option(body, "logprobs", "logprobs", record);
        return;
    }
    const bool wanted = body.has("logprobs") && body.boolean("logprobs");
    if (body.has("top_logprobs")) {
        if (!wanted && *body.find("top_logprobs") != 0) {
            body.fail("logprobs", "true, as top_logprobs is given");
        }
        if (wanted) read_option(body, "top_logprobs", "logprobs", record);
    } else if (wanted) {
        record.ints[options::kLogprobs] = 0;  // the chosen token's alone
    }
}

}  // namespace

bool is_batch_line(const JsonObject& line) {
    const bool ours = line.has("text") || line.has("tokens") || line.has("messages");
    return !ours && (line.has("custom_id") || line.has("body"));
}

void read_batch_line(const JsonObject& line, std::string_view text, PromptRecord& record) {
    if (line.has("method") && line.string("method") != "POST") line.fail("method", "\"POST\"");
    const JsonObject body = line.object("body");
    bool chat = body.has("messages");
    if (line.has("url")) {
        const std::string url = line.string("url");
        if (url != "/v1/chat/completions" && url != "/v1/completions") {
            line.fail("url", "/v1/chat/completions or /v1/completions");
        }
        chat = url == "/v1/chat/completions";
    }
    for (const auto& [key, value] : kOnly) {
        const json* found = body.find(key);
        if (found && *found != value) body.fail(key, shown(value) + " (no other is supported)");
    }
    if (chat) {
        body.at("messages", "a list of messages");
        record.prompt = read_chat(body, text, "body", rank_candidates_tools(body));
        record.chat = true;
    } else {
        record.completion = true;
        read_prompt(body, record);
    }
    for (const auto& [theirs, ours] : kOptions) read_option(body, theirs, ours, record);
    check_best_of(body);
    read_length(body, record);
    read_logprobs(body, chat, record);
    if (body.has("stop")) record.stop_text = read_texts(body, "stop");
    if (body.has("stop_token_ids")) record.stop_tokens = read_tokens(body, "stop_token_ids");
    for (const auto& item : body.value().items()) {
        if (item.value().is_null() || is_known(item.key())) continue;
        body.fail(item.key(), "no such field: what it asks for cannot be honoured");
    }
}

}  // namespace quadrille
