// SPDX-License-Identifier: Apache-2.0
#include "jobs/batch_output.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace quadrille {

using nlohmann::ordered_json;

namespace {

std::string custom_id(const Generation& generation) {
    if (const auto* text = std::get_if<std::string>(&generation.id)) return *text;
    if (const auto* number = std::get_if<int64_t>(&generation.id)) {
        return fmt::format("{}", *number);
    }
    return fmt::format("record-{}", generation.prompt_index);
}

const char* finish_name(FinishReason reason) {
    const bool cut = reason == FinishReason::length || reason == FinishReason::context;
    return cut ? "length" : "stop";
}

ordered_json body(const std::vector<Generation>& samples, const std::string& model,
                  const std::string& name) {
    ordered_json choices = ordered_json::array();
    int64_t tokens = 0;
    for (const Generation& sample : samples) {
        if (sample.status != Status::ok) continue;
        tokens += std::ssize(sample.tokens);
        choices.push_back({{"index", sample.sample},
                           {"message", {{"role", "assistant"}, {"content", sample.text}}},
                           {"logprobs", nullptr},
                           {"finish_reason", finish_name(sample.finish_reason)}});
    }
    return {{"id", "chatcmpl-" + name},
            {"object", "chat.completion"},
            {"model", model},
            {"choices", std::move(choices)},
            {"usage", {{"completion_tokens", tokens}}}};
}

}  // namespace

ordered_json to_batch_output(const std::vector<Generation>& samples, const std::string& model) {
    const Generation& first = samples.front();
    const std::string name = fmt::format("{}-{}", first.source, first.prompt_index);
    ordered_json line = {{"id", "batch_req_" + name}, {"custom_id", custom_id(first)}};
    const auto worked = [](const Generation& sample) { return sample.status == Status::ok; };
    if (std::any_of(samples.begin(), samples.end(), worked)) {
        line["response"] = {{"status_code", 200},
                            {"request_id", "req-" + name},
                            {"body", body(samples, model, name)}};
        line["error"] = nullptr;
    } else {
        line["response"] = nullptr;
        line["error"] = {{"code", "record_error"}, {"message", first.error}};
    }
    return line;
}

}  // namespace quadrille
