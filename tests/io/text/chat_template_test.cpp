// SPDX-License-Identifier: Apache-2.0
#include "io/text/chat_template.h"

#include "io/text/json.h"
#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace quadrille {
namespace {

using Json = nlohmann::ordered_json;
using test::expect_error;

Json parse(const std::string& text) {
    return parse_ordered_json(text, "test");
}

std::string chat(const std::string& messages, const ChatOptions& options = {},
                 const std::string& tools = "null") {
    return render_chat(parse(messages), parse(tools), options, "f.jsonl:3");
}

// Text written by the model's released template.
TEST(ChatTemplate, MatchesTheReleasedTemplate) {
    std::ifstream in(test::data("chat_template.json"));
    std::stringstream text;
    text << in.rdbuf();
    const Json cases = parse(text.str());
    ASSERT_EQ(cases.size(), 8u);
    for (const Json& one : cases) {
        ChatOptions options;
        options.reasoning_effort = one.value("reasoning_effort", "");
        options.clear_thinking = one.value("clear_thinking", false);
        options.add_generation_prompt = one.value("add_generation_prompt", true);
        EXPECT_EQ(render_chat(one["messages"], one.value("tools", Json()), options, "case"),
                  one["text"].get<std::string>());
    }
}

TEST(ChatTemplate, WritesArgumentsFromObjectsAndFromTheirText) {
    const std::string call = R"([{"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": ARGS}}]}])";
    const auto with = [&](const std::string& arguments) {
        std::string text = call;
        return chat(text.replace(text.find("ARGS"), 4, arguments),
                    {.add_generation_prompt = false});
    };
    const std::string object = R"({"z": "as is <>", "a": [1, 2.0, true, null], "m": {"k": "é"}})";
    const std::string written =
        "[gMASK]<sop><|system|>Reasoning Effort: Max<|assistant|><think></think><tool_call>f"
        "<arg_key>z</arg_key><arg_value>as is <></arg_value>"
        "<arg_key>a</arg_key><arg_value>[1, 2.0, true, null]</arg_value>"
        "<arg_key>m</arg_key><arg_value>{\"k\": \"é\"}</arg_value></tool_call>";
    EXPECT_EQ(with(object), written);
    EXPECT_EQ(with(Json(object).dump()), written);
    for (const char* none : {"{}", "\"\"", "\"{}\"", "null"}) {
        EXPECT_TRUE(with(none).ends_with("<tool_call>f</tool_call>")) << none;
    }
    expect_error(ErrorKind::input, {"messages[0].tool_calls[0].function.arguments", "[1]"},
                 [&] { with("[1]"); });
    expect_error(ErrorKind::input, {"tool_calls[0].function.arguments", "expected JSON"},
                 [&] { with("\"{\""); });
    expect_error(ErrorKind::input, {"tool_calls[0].function.arguments", "an object"},
                 [&] { with("\"[]\""); });
}

std::string results(const std::string& calls, const std::string& answers) {
    std::string messages = R"([{"role": "assistant", "tool_calls": [)";
    for (const char id : calls) {
        if (messages.back() != '[') messages += ", ";
        messages += R"({"id": ")" + std::string(1, id) + R"(", "function": {"name": "f"}})";
    }
    messages += "]}";
    for (const char id : answers) {
        messages += R"(, {"role": "tool", "content": ")" + std::string(1, id) + "\"";
        if (id != '-') messages += R"(, "tool_call_id": ")" + std::string(1, id) + "\"";
        messages += "}";
    }
    const std::string text = chat(messages + "]", {.add_generation_prompt = false});
    std::string order;
    for (size_t at = text.find("<|observation|>");
         (at = text.find("<tool_response>", at)) != std::string::npos;) {
        at += 15;
        order += text[at];
    }
    return order;
}

TEST(ChatTemplate, PutsToolResultsInTheOrderOfTheirCalls) {
    EXPECT_EQ(results("abc", "cab"), "abc");
    EXPECT_EQ(results("abc", "ca"), "ac");
    // Not when an id is missing, unknown or not unique.
    EXPECT_EQ(results("abc", "cb-"), "cb-");
    EXPECT_EQ(results("abc", "cxa"), "cxa");
    EXPECT_EQ(results("abc", "cac"), "cac");
    EXPECT_EQ(results("aba", "ba"), "ba");
    EXPECT_EQ(results("", "ba"), "ba");
}

TEST(ChatTemplate, GroupsResultsUnderOneObservation) {
    EXPECT_EQ(chat(R"([{"role": "tool", "content": "x"},
                       {"role": "tool", "content": [{"type": "text", "text": "y"}, "z"]},
                       {"role": "system", "content": "s"}, {"role": "tool"}])",
                   {.add_generation_prompt = false}),
              "[gMASK]<sop><|system|>Reasoning Effort: Max<|observation|><tool_response>x"
              "</tool_response><tool_response>yz</tool_response><|system|>s<|observation|>"
              "<tool_response></tool_response>");
}

TEST(ChatTemplate, KeepsOrClearsReasoning) {
    const std::string messages = R"([{"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>old</think>a"},
        {"role": "user", "content": "r"},
        {"role": "assistant", "reasoning_content": "new", "content": "x</think>b\u2003"}])";
    const std::string before = "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>q";
    EXPECT_EQ(chat(messages, {.add_generation_prompt = false}),
              before +
                  "<|assistant|><think>old</think>a<|user|>r<|assistant|><think>new</think>"
                  "x</think>b");
    EXPECT_EQ(chat(messages, {.clear_thinking = true, .add_generation_prompt = false}),
              before +
                  "<|assistant|><think></think>a<|user|>r<|assistant|><think>new</think>"
                  "x</think>b");
    EXPECT_TRUE(
        chat(messages, {.enable_thinking = false}).ends_with("<|assistant|><think></think>"));
}

TEST(ChatTemplate, ListsToolsThatAreNotDeferred) {
    const std::string text = chat(R"([{"role": "user", "content": "u"}])", {}, R"([
        {"type": "function", "function": {"name": "a", "strict": true, "x": {"b": 1, "a": 1e-7}}},
        {"name": "b", "defer_loading": false}, {"name": "c", "defer_loading": true}])");
    EXPECT_NE(text.find("<tools>\n{\"name\": \"a\", \"x\": {\"b\": 1, \"a\": 1e-07}}\n"
                        "{\"name\": \"b\"}\n</tools>\n\nFor each"),
              std::string::npos)
        << text;
    EXPECT_EQ(chat(R"([{"role": "user", "content": "u"}])", {}, "[]").find("Tools"),
              std::string::npos);
}

TEST(ChatTemplate, PrintsJsonAsPythonDoes) {
    const std::string same[] = {"0",
                                "-5",
                                "18446744073709551615",
                                "1.0",
                                "-0.0",
                                "0.1",
                                "1e+16",
                                "1000000000000000.0",
                                "1.5e+300",
                                "0.0001",
                                "1e-05",
                                "1.25e-07",
                                "true",
                                "null",
                                "[]",
                                "{}",
                                "[1, [2]]",
                                "{\"b\": {}, \"a\": \"é\"}",
                                "\"\\u001f\\n\\t\\\"\\\\/\x7f\""};
    for (const std::string& text : same) EXPECT_EQ(python_json(parse(text)), text);
    EXPECT_EQ(python_json(parse("[1E2, 1e22, 123456789012345680.0, 5e-324]")),
              "[100.0, 1e+22, 1.2345678901234568e+17, 5e-324]");
    expect_error(ErrorKind::input, {"test", "18446744073709551616", "64 bits"},
                 [] { parse("[18446744073709551616]"); });
    std::string many = "{\"0\": 1";
    for (int i = 1; i <= 5000; ++i) many += ", \"" + std::to_string(i) + "\": 1";
    expect_error(ErrorKind::input, {"test", "4096 keys"}, [&] { parse(many + "}"); });
    expect_error(ErrorKind::input, {"\"a\" appears twice"}, [] { parse(R"({"a": 1, "a": 2})"); });
}

TEST(ChatTemplate, NamesWhatItCannotRender) {
    const auto refused = [](const std::string& messages, std::initializer_list<std::string> parts,
                            const std::string& tools = "null") {
        expect_error(ErrorKind::input, parts, [&] { chat(messages, {}, tools); });
    };
    refused("{}", {"f.jsonl:3: messages", "a list"});
    refused("[]", {"messages", "at least one"});
    refused("[1]", {"messages[0]", "an object", "1"});
    refused("[{}]", {"messages[0].role", "found nothing"});
    refused(R"([{"role": "developer"}])", {"messages[0].role", "developer"});
    refused(R"([{"role": "user", "content": 5}])", {"messages[0].content", "5"});
    refused(R"([{"role": "user", "content": [5]}])", {"messages[0].content[0]", "a text part"});
    refused(R"([{"role": "user", "content": [{"type": "text"}]}])", {"content[0].text", "nothing"});
    for (const char* type : {"image_url", "image", "video_url", "input_audio"}) {
        refused(R"([{"role": "user", "content": [{"type": ")" + std::string(type) + "\"}]}]",
                {"messages[0].content[0].type", type, "images, video and audio"});
    }
    refused(R"([{"role": "assistant", "reasoning_content": 1}])", {"reasoning_content", "1"});
    refused(R"([{"role": "assistant", "tool_calls": {}}])", {"messages[0].tool_calls", "a list"});
    refused(R"([{"role": "assistant", "tool_calls": [{}]}])", {"tool_calls[0].name", "nothing"});
    refused(R"([{"role": "assistant", "tool_calls": [{"function": 3}]}])",
            {"tool_calls[0].function", "an object"});
    const std::string fine = R"([{"role": "user", "content": "u"}])";
    refused(fine, {"tools", "a list"}, "{}");
    refused(fine, {"tools[0]", "an object"}, "[1]");
    refused(fine, {"tools[0].name", "nothing"}, "[{}]");
    refused(fine, {"tools[0].function", "an object"}, R"([{"function": 1}])");
}

}  // namespace
}  // namespace quadrille
