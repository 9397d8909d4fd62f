// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/batch_output.h"

#include "io/text/tokenizer.h"
#include "io/text/utf8.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace quadrille {

using nlohmann::ordered_json;

namespace {

constexpr double kLeast = -9999.0;  // that interface's word for a probability of 0

const char* finish_name(FinishReason reason) {
    const bool cut = reason == FinishReason::length || reason == FinishReason::context;
    return cut ? "length" : "stop";
}

// A token may end inside a character: "bytes" is exact, "token" has U+FFFD there.
ordered_json token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
    const std::string bytes = tokenizer.token_bytes(id);
    ordered_json values = ordered_json::array();
    for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
    return {{"token", replace_broken_utf8(bytes)},
            {"logprob", std::max(double{logprob}, kLeast)},
            {"bytes", std::move(values)}};
}

// null where the record did not ask.
ordered_json logprobs_json(const Generation& sample, const Tokenizer* tokenizer) {
    const std::vector<float>& chosen = sample.chosen_logprobs;
    if (tokenizer == nullptr || chosen.empty() || std::isnan(chosen.front())) return nullptr;
    const size_t width = sample.top_ids.size() / chosen.size();
    ordered_json content = ordered_json::array();
    for (size_t t = 0; t < chosen.size(); ++t) {
        ordered_json entry = token_json(*tokenizer, sample.tokens[t], chosen[t]);
        entry["top_logprobs"] = ordered_json::array();
        for (size_t i = t * width; i < (t + 1) * width && sample.top_ids[i] >= 0; ++i) {
            entry["top_logprobs"].push_back(
                token_json(*tokenizer, sample.top_ids[i], sample.top_logprobs[i]));
        }
        content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}};
}

ordered_json usage(int64_t prompt_tokens, int64_t completion_tokens) {
    if (prompt_tokens < 0) return {{"completion_tokens", completion_tokens}};
    return {{"prompt_tokens", prompt_tokens},
            {"completion_tokens", completion_tokens},
            {"total_tokens", prompt_tokens + completion_tokens}};
}

// A completion's form: parallel lists, offsets counted in bytes of the text.
ordered_json completion_logprobs_json(const Generation& sample, const Tokenizer* tokenizer) {
    const std::vector<float>& chosen = sample.chosen_logprobs;
    if (tokenizer == nullptr || chosen.empty() || std::isnan(chosen.front())) return nullptr;
    const auto text_of = [&](int32_t id) {
        return replace_broken_utf8(tokenizer->token_bytes(id));
    };
    const size_t width = sample.top_ids.size() / chosen.size();
    ordered_json tokens = ordered_json::array(), logprobs = ordered_json::array();
    ordered_json tops = ordered_json::array(), offsets = ordered_json::array();
    size_t offset = 0;
    for (size_t t = 0; t < chosen.size(); ++t) {
        tokens.push_back(text_of(sample.tokens[t]));
        logprobs.push_back(std::max(double{chosen[t]}, kLeast));
        offsets.push_back(offset);
        offset += tokenizer->token_bytes(sample.tokens[t]).size();
        ordered_json top = ordered_json::object();
        for (size_t i = t * width; i < (t + 1) * width && sample.top_ids[i] >= 0; ++i) {
            top[text_of(sample.top_ids[i])] = std::max(double{sample.top_logprobs[i]}, kLeast);
        }
        tops.push_back(std::move(top));
    }
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(logprobs)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
}

ordered_json choice(const Generation& sample, const Tokenizer* tokenizer) {
    ordered_json result = {{"index", sample.sample}};
    if (sample.completion) {
        result["text"] = sample.text;
        result["logprobs"] = completion_logprobs_json(sample, tokenizer);
    } else {
        result["message"] = {{"role", "assistant"}, {"content", sample.text}};
        result["logprobs"] = logprobs_json(sample, tokenizer);
    }
    result["finish_reason"] = finish_name(sample.finish_reason);
    return result;
}

ordered_json body(const std::vector<Generation>& samples, const BatchOutput& output,
                  const std::string& name) {
    ordered_json choices = ordered_json::array();
    int64_t tokens = 0;
    for (const Generation& sample : samples) {
        if (sample.status != Status::ok) continue;
        tokens += std::ssize(sample.tokens);
        choices.push_back(choice(sample, output.tokenizer));
    }
    const bool completion = samples.front().completion;
    return {{"id", (completion ? "cmpl-" : "chatcmpl-") + name},
            {"object", completion ? "text_completion" : "chat.completion"},
            {"created", output.created},
            {"model", output.model},
            {"choices", std::move(choices)},
            {"usage", usage(samples.front().prompt_tokens, tokens)}};
}

}  // namespace

std::string custom_id(const Generation& generation) {
    if (const auto* number = std::get_if<int64_t>(&generation.id)) {
        return fmt::format("{}", *number);
    }
    const auto* text = std::get_if<std::string>(&generation.id);
    if (text != nullptr && !text->empty()) return *text;
    if (generation.source == 0) return fmt::format("record-{}", generation.prompt_index);
    return fmt::format("record-{}-{}", generation.source, generation.prompt_index);
}

ordered_json to_batch_output(const std::vector<Generation>& samples, const BatchOutput& output) {
    const Generation& first = samples.front();
    const std::string name = fmt::format("{}-{}", first.source, first.prompt_index);
    ordered_json line = {{"id", "batch_req_" + name}, {"custom_id", custom_id(first)}};
    const auto worked = [](const Generation& sample) { return sample.status == Status::ok; };
    if (std::any_of(samples.begin(), samples.end(), worked)) {
        line["response"] = {{"status_code", 200},
                            {"request_id", "req-" + name},
                            {"body", body(samples, output, name)}};
        line["error"] = nullptr;
    } else {
        line["response"] = nullptr;
        line["error"] = {{"code", "record_error"}, {"message", first.error}};
    }
    return line;
}

}  // namespace quadrille
