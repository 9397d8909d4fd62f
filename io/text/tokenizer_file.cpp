// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json: checks every section, undoes the GPT-2 byte alphabet, resolves merges to
// ids.
#include "io/text/tokenizer_file.h"

#include "io/digest.h"
#include "io/text/json.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace quadrille {

namespace {

using nlohmann::json;

constexpr int64_t kMaxFile = 1 << 29;
constexpr int64_t kMaxToken = 1 << 24;

// GPT-2's alphabet: printable bytes stand for themselves, the other 68 for U+0100, U+0101, …
class ByteAlphabet {
  public:
    ByteAlphabet() {
        bytes_.fill(-1);
        char32_t next = 0x100;
        for (int byte = 0; byte < 256; ++byte) {
            const bool printable =
                (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae);
            bytes_[printable ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
        }
    }

    // Raw bytes of a vocabulary entry (well-formed UTF-8); nothing when it uses other characters.
    std::optional<std::string> decode(std::string_view text) const {
        std::string result;
        for (size_t at = 0; at < text.size();) {
            // Every letter of the alphabet has one or two bytes.
            const auto first = static_cast<uint8_t>(text[at++]);
            size_t letter = first;
            if (first >= 0x80) {
                if (first >= 0xe0) return std::nullopt;
                letter = (first & 0x1fu) << 6 | (static_cast<uint8_t>(text[at++]) & 0x3fu);
            }
            if (letter >= bytes_.size() || bytes_[letter] < 0) return std::nullopt;
            result.push_back(static_cast<char>(bytes_[letter]));
        }
        return result;
    }

  private:
    std::array<int16_t, 0x100 + 68> bytes_{};
};

using Vocabulary = std::unordered_map<std::string_view, int32_t>;  // keys as written in the file

void expect(const JsonObject& object, const char* key, const json& value) {
    const json* found = object.find(key);
    if (found ? *found != value : !value.is_null()) {
        object.fail(key, shown(value) + " (no other is supported)");
    }
}

// Absent counts as false.
void expect_off(const JsonObject& object, const char* key) {
    if (object.has(key) && object.boolean(key)) object.fail(key, "false (true is not supported)");
}

std::vector<JsonObject> members(const JsonObject& object, const char* key) {
    const json& list = object.at(key, "a list");
    if (!list.is_array()) object.fail(key, "a list");
    std::vector<JsonObject> result;
    for (const json& item : list) {
        result.emplace_back(item, object.place(),
                            fmt::format("{}[{}]", object.name(key), result.size()));
    }
    return result;
}

// Split(Regex, Isolated) followed by ByteLevel without prefix space and regex of its own.
std::string read_split(const JsonObject& top) {
    const JsonObject pre = top.object("pre_tokenizer");
    expect(pre, "type", "Sequence");
    const auto steps = members(pre, "pretokenizers");
    if (steps.size() != 2) pre.fail("pretokenizers", "[Split, ByteLevel]");
    expect(steps[0], "type", "Split");
    expect(steps[0], "behavior", "Isolated");
    expect_off(steps[0], "invert");
    expect(steps[1], "type", "ByteLevel");
    expect_off(steps[1], "add_prefix_space");
    // This one is on unless it is turned off.
    expect(steps[1], "use_regex", false);
    return steps[0].object("pattern").string("Regex");
}

// A post-processor may be there as long as it adds no token.
void check_post_processor(const JsonObject& processor) {
    const std::string type = processor.string("type");
    if (type == "Sequence") {
        for (const JsonObject& member : members(processor, "processors")) {
            check_post_processor(member);
        }
    } else if (type == "TemplateProcessing") {
        for (const JsonObject& piece : members(processor, "single")) {
            if (!piece.has("Sequence")) processor.fail("single", "no special tokens");
        }
    } else if (type != "ByteLevel") {
        processor.fail("type", "\"ByteLevel\" (or another that adds no tokens)");
    }
}

void check_sections(const JsonObject& top) {
    expect(top, "truncation", nullptr);
    expect(top, "padding", nullptr);
    expect(top, "normalizer", nullptr);
    if (top.has("post_processor")) check_post_processor(top.object("post_processor"));
    expect(top.object("decoder"), "type", "ByteLevel");
    const JsonObject model = top.object("model");
    expect(model, "type", "BPE");
    if (model.has("dropout")) expect(model, "dropout", 0.0);
    if (model.has("continuing_subword_prefix")) expect(model, "continuing_subword_prefix", "");
    if (model.has("end_of_word_suffix")) expect(model, "end_of_word_suffix", "");
    expect_off(model, "byte_fallback");
    // unk_token and fuse_unk may say anything: with all 256 bytes present nothing is unknown.
}

// Grows the table to hold `id` and claims it; nullptr when it is taken.
TokenizerFile::Token* claim(TokenizerFile& result, int64_t id) {
    const auto at = static_cast<size_t>(id);
    if (at >= result.tokens.size()) result.tokens.resize(at + 1);
    TokenizerFile::Token& token = result.tokens[at];
    if (token.known) return nullptr;
    token.known = true;
    return &token;
}

Vocabulary read_vocabulary(const JsonObject& model, TokenizerFile& result) {
    const JsonObject vocabulary = model.object("vocab");
    const ByteAlphabet alphabet;
    Vocabulary ids;
    ids.reserve(vocabulary.value().size());
    result.tokens.reserve(vocabulary.value().size() + 64);
    for (auto at = vocabulary.value().begin(); at != vocabulary.value().end(); ++at) {
        const int64_t id = vocabulary.integer(at.key(), 0, kMaxToken);
        TokenizerFile::Token* token = claim(result, id);
        if (!token) vocabulary.fail(at.key(), "an id that no other token has");
        auto bytes = alphabet.decode(at.key());
        token->encodable = bytes.has_value();
        token->bytes = bytes ? std::move(*bytes) : at.key();
        ids.emplace(at.key(), static_cast<int32_t>(id));
    }
    return ids;
}

// The two halves of a merge: ["a", "b"] or "a b".
std::pair<std::string_view, std::string_view> halves(const json& merge) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    }
    if (!merge.is_string()) return {};
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return {};
    }
    return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonObject& model, const Vocabulary& ids, TokenizerFile& result) {
    const json& merges = model.at("merges", "a list");
    if (!merges.is_array()) model.fail("merges", "a list");
    result.merges.reserve(merges.size());
    result.merged.reserve(merges.size());
    const auto fail = [&](const std::string& expected) {
        const size_t rank = result.merges.size();
        throw Error(ErrorKind::input,
                    fmt::format("{}: {}[{}]: expected {}, found {}", model.place(),
                                model.name("merges"), rank, expected, shown(merges[rank])));
    };
    std::string both;
    for (const json& merge : merges) {
        const auto [left, right] = halves(merge);
        if (left.empty() || right.empty()) fail("two tokens");
        both.assign(left).append(right);
        const auto first = ids.find(left);
        const auto second = ids.find(right);
        const auto whole = ids.find(both);
        if (first == ids.end() || second == ids.end()) fail("two tokens of the vocabulary");
        if (whole == ids.end()) fail(fmt::format("the result {} in the vocabulary", shown(both)));
        result.merges.emplace_back(first->second, second->second);
        result.merged.push_back(whole->second);
    }
}

void read_added(const JsonObject& top, const Vocabulary& ids, TokenizerFile& result) {
    if (!top.has("added_tokens")) return;
    std::unordered_map<std::string, int32_t> seen;
    for (const JsonObject& entry : members(top, "added_tokens")) {
        AddedToken token;
        token.id = static_cast<int32_t>(entry.integer("id", 0, kMaxToken));
        token.content = entry.string("content");
        token.special = entry.has("special") && entry.boolean("special");
        token.normalized = entry.has("normalized") ? entry.boolean("normalized") : !token.special;
        for (const char* key : {"single_word", "lstrip", "rstrip"}) expect_off(entry, key);
        if (token.content.empty()) entry.fail("content", "some text");
        if (!seen.emplace(token.content, token.id).second) {
            entry.fail("content", "a text that no other added token has");
        }
        const auto base = ids.find(token.content);
        if (base != ids.end()) {
            if (base->second != token.id) {
                entry.fail("id", fmt::format("{} (the vocabulary's)", base->second));
            }
        } else if (!claim(result, token.id)) {
            entry.fail("id", "an id that no other token has");
        }
        // Written out literally, also where the vocabulary has it.
        result.tokens[static_cast<size_t>(token.id)].bytes = token.content;
        result.added.push_back(std::move(token));
    }
}

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& file) {
    const std::string text = read_file(file, kMaxFile);
    const json document = parse_json(text, file.string());
    const JsonObject top(document, file.string());
    check_sections(top);
    TokenizerFile result;
    Digest digest;
    digest.add(text);
    result.digest = digest.hex();
    result.pattern = read_split(top);
    const JsonObject model = top.object("model");
    result.ignore_merges = model.has("ignore_merges") && model.boolean("ignore_merges");
    const Vocabulary ids = read_vocabulary(model, result);
    read_merges(model, ids, result);
    read_added(top, ids, result);
    return result;
}

}  // namespace quadrille
