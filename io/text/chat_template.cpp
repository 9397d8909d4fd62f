// SPDX-License-Identifier: Apache-2.0
// The blocks of a conversation follow each other without line breaks; each begins with the token of
// its role.
#include "io/text/chat_template.h"

#include "io/digest.h"
#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace quadrille {

namespace {

using Json = nlohmann::ordered_json;

// Digests of templates that render as this file does, without the line feeds at their end: that of
// the released GLM-5.3-Flash.
constexpr std::array<std::string_view, 1> kKnownTemplates = {"e54502c1f6165571"};

constexpr const char* kToolsBefore =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr const char* kToolsAfter =
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>"
    "{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>"
    "...</tool_call>";

// A value with its place in the document, for messages.
struct Node {
    const Json* value;
    std::string path;

    bool is_absent() const { return value == nullptr || value->is_null(); }
};

class Renderer {
  public:
    Renderer(const ChatOptions& options, std::string place)
        : options_(options), place_(std::move(place)) {}

    std::string render(const Node& messages, const Node& tools);

  private:
    [[noreturn]] void fail(const Node& node, std::string_view expected) const {
        throw Error(ErrorKind::input,
                    fmt::format("{}: {}: expected {}, found {}", place_, node.path, expected,
                                node.value ? shortened(node) : "nothing"));
    }
    static std::string shortened(const Node& node) { return shown(nlohmann::json(*node.value)); }

    static Node member(const Node& object, const char* key) {
        const auto found = object.value->find(key);
        return {found == object.value->end() ? nullptr : &*found, object.path + "." + key};
    }
    std::vector<Node> items(const Node& node, std::string_view expected) const;
    std::string text(const Node& node) const;
    std::string role(const Node& message) const;
    void refuse_unheard(const Node& message) const;
    std::string visible_text(const Node& content) const;
    static std::string id_of(const Node& object);
    static bool is_set(const Node& flag);

    void add_tools(const Node& tools);
    void add_assistant(const Node& message, bool reasoning_shown);
    void add_call(const Node& call);
    void add_results(std::vector<Node> results, const Node* asked);

    const ChatOptions& options_;
    std::string place_;
    std::string out_;
};

// The characters that Python's str.strip() removes.
bool is_space(std::string_view character) {
    static constexpr std::array<std::string_view, 29> kSpaces = {
        "\t",           "\n",           "\v",           "\f",           "\r",
        "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    return std::ranges::find(kSpaces, character) != kSpaces.end();
}

bool is_continuation(char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

std::string_view stripped(std::string_view text) {
    while (!text.empty()) {
        size_t size = 1;
        while (size < text.size() && is_continuation(text[size])) ++size;
        if (!is_space(text.substr(0, size))) break;
        text.remove_prefix(size);
    }
    while (!text.empty()) {
        size_t start = text.size() - 1;
        while (start > 0 && is_continuation(text[start])) --start;
        if (!is_space(text.substr(start))) break;
        text.remove_suffix(text.size() - start);
    }
    return text;
}

std::vector<Node> Renderer::items(const Node& node, std::string_view expected) const {
    if (node.value == nullptr || !node.value->is_array()) fail(node, expected);
    std::vector<Node> result;
    for (const Json& item : *node.value) {
        result.push_back({&item, fmt::format("{}[{}]", node.path, result.size())});
    }
    return result;
}

std::string Renderer::text(const Node& node) const {
    if (node.value == nullptr || !node.value->is_string()) fail(node, "a string");
    return node.value->get<std::string>();
}

std::string Renderer::role(const Node& message) const {
    if (!message.value->is_object()) fail(message, "an object");
    const Node node = member(message, "role");
    const std::string name = text(node);
    for (const char* known : {"system", "user", "assistant", "tool"}) {
        if (name == known) return name;
    }
    fail(node, "system, user, assistant or tool");
}

// Other servers' names for what stands elsewhere here, and answers that are no text.
void Renderer::refuse_unheard(const Node& message) const {
    static constexpr std::array<std::pair<const char*, const char*>, 4> kElsewhere = {
        {{"reasoning", "nothing (the reasoning stands in reasoning_content)"},
         {"function_call", "nothing (calls stand in tool_calls)"},
         {"refusal", "nothing (the template has no place for it)"},
         {"audio", "nothing (audio is not supported)"}}};
    for (const auto& [key, expected] : kElsewhere) {
        const Node node = member(message, key);
        if (!node.is_absent()) fail(node, expected);
    }
}

// A string, a list of text parts, or nothing.
std::string Renderer::visible_text(const Node& content) const {
    if (content.is_absent()) return "";
    if (content.value->is_string()) return content.value->get<std::string>();
    std::string result;
    for (const Node& part : items(content, "a string or a list of text parts")) {
        if (part.value->is_string()) {
            result += part.value->get<std::string>();
            continue;
        }
        if (!part.value->is_object()) fail(part, "a text part");
        const Node type = member(part, "type");
        if (text(type) != "text") {
            fail(type, "\"text\" (images, video and audio are not supported)");
        }
        result += text(member(part, "text"));
    }
    return result;
}

std::string Renderer::id_of(const Node& object) {
    for (const char* key : {"tool_call_id", "id"}) {
        const Node id = member(object, key);
        if (!id.is_absent() && id.value->is_string()) {
            if (auto text = id.value->get<std::string>(); !text.empty()) return text;
        }
    }
    return "";
}

bool Renderer::is_set(const Node& flag) {
    return !flag.is_absent() && flag.value->is_boolean() && flag.value->get<bool>();
}

// One line of JSON a tool, `strict` and `defer_loading` left out.
void Renderer::add_tools(const Node& tools) {
    if (tools.is_absent()) return;
    const auto list = items(tools, "a list of tools");
    if (list.empty()) return;
    out_ += kToolsBefore;
    for (Node tool : list) {
        if (!tool.value->is_object()) fail(tool, "an object");
        if (const Node function = member(tool, "function"); function.value) tool = function;
        if (!tool.value->is_object()) fail(tool, "an object");
        text(member(tool, "name"));
        if (is_set(member(tool, "defer_loading"))) continue;
        std::string line;
        for (const auto& [key, value] : tool.value->items()) {
            if (key == "defer_loading" || key == "strict") continue;
            line += fmt::format("{}\"{}\": {}", line.empty() ? "" : ", ", key, python_json(value));
        }
        out_ += "{" + line + "}\n";
    }
    out_ += kToolsAfter;
}

void Renderer::add_call(const Node& call) {
    if (!call.value->is_object()) fail(call, "an object");
    const Node wrapped = member(call, "function");
    const Node& function = wrapped.is_absent() ? call : wrapped;
    if (!function.value->is_object()) fail(function, "an object");
    out_ += "<tool_call>" + text(member(function, "name"));
    const Node given = member(function, "arguments");
    Json arguments = Json::object();
    if (!given.is_absent() && given.value->is_string()) {
        // OpenAI's form: the object as a string of JSON; "" where there are none.
        const auto source = given.value->get<std::string>();
        if (!stripped(source).empty()) {
            arguments = parse_ordered_json(source, place_ + ": " + given.path);
        }
    } else if (!given.is_absent()) {
        arguments = *given.value;
    }
    if (!arguments.is_object()) fail(given, "an object of arguments");
    for (const auto& [key, value] : arguments.items()) {
        out_ += fmt::format("<arg_key>{}</arg_key><arg_value>{}</arg_value>", key,
                            value.is_string() ? value.get<std::string>() : python_json(value));
    }
    out_ += "</tool_call>";
}

// Reasoning stands in its own field or at the start of the content, up to </think>.
void Renderer::add_assistant(const Node& message, bool reasoning_shown) {
    constexpr std::string_view kOpen = "<think>";
    constexpr std::string_view kClose = "</think>";
    std::string content = visible_text(member(message, "content"));
    std::string reasoning;
    const Node field = member(message, "reasoning_content");
    if (!field.is_absent()) {
        reasoning = text(field);
    } else if (const size_t first = content.find(kClose); first != std::string::npos) {
        reasoning = content.substr(0, first);
        const size_t open = reasoning.rfind(kOpen);
        if (open != std::string::npos) reasoning.erase(0, open + kOpen.size());
        content.erase(0, content.rfind(kClose) + kClose.size());
    }
    out_ += "<|assistant|><think>";
    if (reasoning_shown) out_ += reasoning;
    out_ += kClose;
    out_ += stripped(content);
    const Node calls = member(message, "tool_calls");
    if (calls.is_absent()) return;
    for (const Node& call : items(calls, "a list of tool calls")) add_call(call);
}

// Results of one turn, put in the order of the calls when every id matches exactly one.
// `asked`: the assistant's message before them, if that is what stands there.
void Renderer::add_results(std::vector<Node> results, const Node* asked) {
    std::vector<std::string> order;
    if (asked != nullptr && !member(*asked, "tool_calls").is_absent()) {
        for (const Node& call : items(member(*asked, "tool_calls"), "a list of tool calls")) {
            order.push_back(id_of(call));
        }
    }
    const auto once = [](const std::vector<std::string>& ids, const std::string& id) {
        return !id.empty() && std::ranges::count(ids, id) == 1;
    };
    std::vector<std::string> ids;
    for (const Node& result : results) ids.push_back(id_of(result));
    const bool sortable = !order.empty() && std::ranges::all_of(order, [&](const std::string& id) {
        return once(order, id);
    }) && std::ranges::all_of(ids, [&](const std::string& id) {
        return once(ids, id) && once(order, id);
    });
    if (sortable) {
        std::ranges::stable_sort(results, {}, [&](const Node& result) {
            return std::ranges::find(order, id_of(result)) - order.begin();
        });
    }
    out_ += "<|observation|>";
    for (const Node& result : results) {
        out_ += "<tool_response>" + visible_text(member(result, "content")) + "</tool_response>";
    }
}

std::string Renderer::render(const Node& messages, const Node& tools) {
    const auto list = items(messages, "a list of messages");
    if (list.empty()) fail(messages, "at least one message");
    std::vector<std::string> roles;
    for (const Node& message : list) {
        roles.push_back(role(message));
        refuse_unheard(message);
    }
    const std::string& effort = options_.reasoning_effort;
    out_ = "[gMASK]<sop><|system|>Reasoning Effort: ";
    out_ += effort == "low" ? "Low" : effort == "high" ? "High" : "Max";
    add_tools(tools);
    const auto last_user = std::ranges::find(roles.rbegin(), roles.rend(), "user");
    const auto after_user = static_cast<size_t>(roles.rend() - last_user);
    for (size_t i = 0; i < list.size(); ++i) {
        if (roles[i] == "assistant") {
            add_assistant(list[i], !options_.clear_thinking || i >= after_user);
        } else if (roles[i] == "tool") {
            size_t end = i;
            while (end < list.size() && roles[end] == "tool") ++end;
            const bool answers = i > 0 && roles[i - 1] == "assistant";
            add_results({list.begin() + static_cast<ptrdiff_t>(i),
                         list.begin() + static_cast<ptrdiff_t>(end)},
                        answers ? &list[i - 1] : nullptr);
            i = end - 1;
        } else {
            out_ += "<|" + roles[i] + "|>" + visible_text(member(list[i], "content"));
        }
    }
    if (options_.add_generation_prompt) {
        out_ += options_.enable_thinking ? "<|assistant|><think>" : "<|assistant|><think></think>";
    }
    return std::move(out_);
}

// Python's repr: shortest digits, exponents from 1e16 and below 1e-4, and always a mark of a float.
std::string python_number(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
}

}  // namespace

std::string other_template(const std::filesystem::path& folder) {
    constexpr int64_t kMaxBytes = 64 << 20;
    std::filesystem::path file = folder / "chat_template.jinja";
    std::string text;
    if (std::filesystem::exists(file)) {
        text = read_file(file, kMaxBytes);
    } else {
        file = folder / "tokenizer_config.json";
        if (!std::filesystem::exists(file)) return "";
        const nlohmann::json config = read_json(file, kMaxBytes);
        const JsonObject object(config, file.string());
        if (!object.has("chat_template")) return "";
        const nlohmann::json& held = *object.find("chat_template");
        text = held.is_string() ? held.get<std::string>() : held.dump();
    }
    while (text.ends_with('\n')) text.pop_back();
    Digest digest;
    digest.add(text);
    if (std::ranges::find(kKnownTemplates, digest.hex()) != kKnownTemplates.end()) return "";
    return fmt::format("{} (digest {})", file.string(), digest.hex());
}

std::string python_json(const Json& value) {
    std::string result;
    if (value.is_object()) {
        for (const auto& [key, member] : value.items()) {
            result += (result.empty() ? "" : ", ") + Json(key).dump() + ": " + python_json(member);
        }
        return "{" + result + "}";
    }
    if (value.is_array()) {
        for (size_t i = 0; i < value.size(); ++i) {
            result += (i == 0 ? "" : ", ") + python_json(value[i]);
        }
        return "[" + result + "]";
    }
    return value.is_number_float() ? python_number(value.get<double>()) : value.dump();
}

std::string render_chat(const Json& messages, const Json& tools, const ChatOptions& options,
                        const std::string& place, const std::string& path) {
    const std::string before = path.empty() ? "" : path + ".";
    return Renderer(options, place)
        .render({&messages, before + "messages"}, {&tools, before + "tools"});
}

}  // namespace quadrille
