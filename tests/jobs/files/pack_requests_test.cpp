// SPDX-License-Identifier: Apache-2.0
// OpenAI batch lines and conversations: what a line asks for is given, or said.
#include "jobs/files/pack.h"
#include "kernels/error.h"
#include "tests/jobs/files/packing.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

using test::expect_error;
using PackRequests = test::Pack;

std::string batch(const std::string& body, const std::string& url = "/v1/chat/completions") {
    return R"({"custom_id": "r-1", "method": "POST", "url": ")" + url + R"(", "body": )" + body +
           "}\n";
}

TEST_F(PackRequests, ReadsOpenAiBatchLines) {
    const auto prompts = packed(
        "in.jsonl",
        batch(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 1, )"
              R"("max_completion_tokens": 9, "temperature": 0.7, "top_p": 0.5, "seed": 4, )"
              R"("stop": ["a", "b"], "logprobs": true, "top_logprobs": 5, "stream": false, )"
              R"("presence_penalty": 0, "user": "u", "top_k": 20, "repetition_penalty": 1.1, )"
              R"("tools": [{"type": "function", "function": {"name": "f"}}], )"
              R"("tool_choice": "none", "wish": null, "metadata": {"a": "b"}})") +
            R"({"custom_id": "r-2", "body": {"prompt": "raw text", "max_tokens": 7.0, )"
            R"("logprobs": 2, "stop": "x", "stop_token_ids": [4], "ignore_eos": true}})");
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(std::get<std::vector<std::string>>(reader_->ids()),
              (std::vector<std::string>{"r-1", "r-2"}));
    EXPECT_EQ(prompts[0].text,
              "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hi<|assistant|><think>");
    EXPECT_EQ(prompts[0].options.max_new_tokens, 9);
    EXPECT_EQ(prompts[0].options.temperature, 0.7);
    EXPECT_EQ(prompts[0].options.top_p, 0.5);
    EXPECT_EQ(prompts[0].options.top_k, 20);
    EXPECT_EQ(prompts[0].options.repetition_penalty, 1.1);
    EXPECT_EQ(prompts[0].options.seed, 4);
    EXPECT_EQ(prompts[0].options.logprobs, 5);
    EXPECT_EQ(prompts[0].options.stop_text, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(prompts[1].text, "raw text");
    EXPECT_EQ(prompts[1].options.max_new_tokens, 7);
    EXPECT_EQ(prompts[1].options.logprobs, 2);
    EXPECT_EQ(prompts[1].options.stop_text, std::vector<std::string>{"x"});
    EXPECT_EQ(prompts[1].options.stop_tokens, std::vector<int32_t>{4});
    EXPECT_TRUE(prompts[1].options.ignore_eos);
    EXPECT_TRUE(summary_.notices.empty());
    const auto tokens = packed("in.jsonl", batch(R"({"prompt": [5, 6]})", "/v1/completions"));
    EXPECT_EQ(tokens.at(0).tokens, (std::vector<int32_t>{5, 6}));
}

TEST_F(PackRequests, MakesWhatABatchLineAsksForInVainItsOwnError) {
    const auto chat = [](const std::string& more) {
        return batch(R"({"messages": [{"role": "user", "content": "hi"}], )" + more + "}");
    };
    failed(chat(R"("n": 0)"), {"in.jsonl:1: body.n", "1 to", "found 0"});
    failed(chat(R"("n": 2, "best_of": 3)"), {"in.jsonl:1: body.best_of", "2", "found 3"});
    failed(chat(R"("guided_json": {"type": "object"})"), {"body.guided_json"});
    failed(chat(R"("reasoning_effort": "none")"), {"body.reasoning_effort", "max", "none"});
    failed(chat(R"("presence_penalty": 0.5)"), {"body.presence_penalty", "0.5"});
    failed(chat(R"("response_format": {"type": "json_object"})"), {"body.response_format"});
    failed(chat(R"("logit_bias": {"5": 1})"), {"body.logit_bias"});
    failed(chat(R"("stream": true)"), {"body.stream"});
    failed(chat(R"("wish": 1)"), {"in.jsonl:1: body.wish", "no such field", "found 1"});
    failed(chat(R"("tool_choice": "required")"), {"body.tool_choice", "required"});
    failed(chat(R"("max_tokens": 5, "max_completion_tokens": 6)"), {"body.max_tokens", "6"});
    failed(chat(R"("max_tokens": -2)"), {"body.max_tokens", "0 to"});
    failed(chat(R"("top_logprobs": 5)"), {"body.logprobs", "top_logprobs"});
    failed(chat(R"("logprobs": 3)"), {"body.logprobs", "true or false"});
    failed(chat(R"("temperature": "x")"), {"body.temperature", "a number"});
    failed(chat(R"("stop": [""])"), {"body.stop"});
    failed(batch(R"({"messages": []})"), {"in.jsonl:1: body.messages", "at least one"});
    failed(batch(R"({"prompt": "x"})"), {"body.messages", "found nothing"});
    failed(batch(R"({"messages": null})"), {"body.messages"});
    failed(batch(R"({"prompt": ["a", "b"]})", "/v1/completions"), {"body.prompt[0]"});
    failed(batch(R"({"prompt": []})", "/v1/completions"), {"body.prompt"});
    failed(batch("{}", "/v1/embeddings"), {"in.jsonl:1: url", "/v1/embeddings"});
    failed(batch("5"), {"in.jsonl:1: body", "an object"});
    refused(R"({"body": {}})", {"in.jsonl:1: custom_id", "found nothing"});
    refused(R"({"custom_id": 5, "body": {}})", {"in.jsonl:1: custom_id", "a string"});
    failed(R"({"custom_id": "a", "method": "GET", "body": {}})", {"in.jsonl:1: method", "POST"});
}

TEST_F(PackRequests, ReadsWhatABatchLineAsksForAndGets) {
    const auto prompts =
        packed("in.jsonl", batch(R"({"messages": [{"role": "user", "content": "hi"}], "n": 3, )"
                                 R"("max_tokens": 4.0, "reasoning_effort": "max"})") +
                               R"({"custom_id": "r-2", "url": "/v1/completions", )"
                               R"("body": {"prompt": "raw", "max_tokens": 0}})");
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(prompts[0].error, "");
    EXPECT_EQ(prompts[0].options.samples, 3);
    EXPECT_EQ(prompts[0].options.max_new_tokens, 4);
    EXPECT_EQ(prompts[1].error, "");
    EXPECT_EQ(prompts[1].options.max_new_tokens, 0);
    EXPECT_EQ(reader_->completions(), (std::vector<bool>{false, true}));
}

TEST_F(PackRequests, NamesMessagesThatNoTemplateHears) {
    const auto message = [](const std::string& more) {
        return R"({"messages": [{"role": "assistant", "content": "a", )" + more + "}]}";
    };
    refused(message(R"("reasoning": "because")"),
            {"in.jsonl:1: messages[0].reasoning", "reasoning_content", "because"});
    refused(message(R"("function_call": {"name": "f"})"),
            {"in.jsonl:1: messages[0].function_call", "tool_calls"});
    EXPECT_EQ(packed("in.jsonl", message(R"("reasoning": null)")).at(0).error, "");
    failed(R"({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "medium"})",
           {"in.jsonl:1: reasoning_effort", "\"low\", \"high\" or \"max\"", "medium"});
}

TEST_F(PackRequests, RefusesJsonThatIsNoLines) {
    for (const char* content : {"{\n  \"text\": \"a\"\n}\n", "[\n{\"text\": \"a\"}\n]\n"}) {
        folder_.write("in.json", content);
        expect_error(ErrorKind::input, {"in.json:1", "JSON lines"},
                     [&] { pack(options({"in.json"})); });
    }
}

TEST_F(PackRequests, TellsOfAnotherTemplateOfTheCheckpoint) {
    folder_.write("in.jsonl", R"({"messages": [{"role": "user", "content": "hi"}]})");
    folder_.write("plain.txt", "hi");
    folder_.write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    PackOptions chats = options({"in.jsonl"});
    chats.target = folder_.path().string();
    const PackSummary told = pack(chats);
    ASSERT_EQ(told.notices.size(), 1u);
    EXPECT_NE(told.notices[0].find("chat_template.jinja (digest "), std::string::npos);
    PackOptions texts = options({"plain.txt"});
    texts.target = chats.target;
    texts.output_exists = OutputExists::overwrite;
    EXPECT_EQ(pack(texts).notices, std::vector<std::string>{});
}

}  // namespace
}  // namespace quadrille
