// SPDX-License-Identifier: Apache-2.0
// The tokenizer proper: added tokens are cut out of the text, the rest is split by the file's
// regular expression (ICU) and each piece encoded by BPE. Equal to the tokenizers library on every
// Unicode character up to the ICU's Unicode version: letters added later count as unassigned here.
#include "io/text/tokenizer.h"

#include "io/text/bpe.h"
#include "io/text/tokenizer_file.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

namespace quadrille {

namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // ICU counts UTF-16 units in 32 bits
constexpr size_t kCachedPiece = 48;           // bytes of a piece worth keeping
constexpr size_t kCachedPieces = 1 << 16;

// The text is to blame: the expression was compiled.
void check(UErrorCode status) {
    if (U_FAILURE(status)) {
        throw Error(ErrorKind::input,
                    fmt::format("text: the tokenizer's regular expression gives up on it ({})",
                                u_errorName(status)));
    }
}

// `pattern` with \s as [\s], and so on. ICU matches a repeated set in constant space, but keeps a
// place to go back to for every character that a repeated \s takes: 8 MB of them hold 340,000
// blanks.
std::string with_sets(std::string_view pattern) {
    std::string result;
    bool in_set = false;
    for (size_t at = 0; at < pattern.size(); ++at) {
        const char letter = pattern[at];
        if (letter == '\\' && at + 1 < pattern.size()) {
            const std::string_view both = pattern.substr(at++, 2);
            const bool wrapped = !in_set && both.find_first_of("sSwW") == 1;
            result.append(wrapped ? "[" : "").append(both).append(wrapped ? "]" : "");
            continue;
        }
        in_set = letter == '[' || (in_set && letter != ']');
        result.push_back(letter);
    }
    return result;
}

// Splits text into the matches of a regular expression and what lies between them.
class Splitter {
  public:
    Splitter(const std::string& pattern, const std::string& place) {
        UErrorCode status = U_ZERO_ERROR;
        UParseError where{};
        pattern_.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(with_sets(pattern)),
                                                  0, where, status));
        if (U_FAILURE(status)) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: pre_tokenizer: expected a regular expression, found {} "
                                    "({} at offset {})",
                                    place, pattern, u_errorName(status), where.offset));
        }
    }

    // Calls visit(piece) for each piece of `text` (well-formed UTF-8, at most kMaxText bytes).
    template <class Visit>
    void split(std::string_view text, Visit&& visit) const {
        const icu::UnicodeString wide = icu::UnicodeString::fromUTF8(
            icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
        UErrorCode status = U_ZERO_ERROR;
        const std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(wide, status));
        check(status);
        const char16_t* units = wide.getBuffer();
        int32_t done = 0;  // UTF-16 units
        size_t at = 0;     // the same place in `text`
        const auto piece_to = [&](int32_t end) {
            size_t bytes = 0;
            for (; done < end; ++done) {
                const char16_t unit = units[done];
                const bool surrogate = (unit & 0xf800) == 0xd800;  // half of four bytes
                bytes += unit < 0x80 ? 1 : unit < 0x800 || surrogate ? 2 : 3;
            }
            if (bytes > 0) visit(text.substr(at, bytes));
            at += bytes;
        };
        while (matcher->find(status)) {
            const int32_t start = matcher->start(status);
            const int32_t end = matcher->end(status);
            check(status);
            piece_to(start);
            piece_to(end);
        }
        check(status);
        piece_to(wide.length());
    }

  private:
    std::unique_ptr<icu::RegexPattern> pattern_;
};

// Finds added tokens literally: leftmost, the longest of those that start there.
class AddedTokens {
  public:
    explicit AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
        std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
            return a.content.size() > b.content.size();
        });
        for (const AddedToken& token : tokens_) {
            starting_[static_cast<uint8_t>(token.content[0])].push_back(&token);
        }
    }
    AddedTokens(const AddedTokens&) = delete;
    AddedTokens& operator=(const AddedTokens&) = delete;

    // The first token in `text` and its offset; {nullptr, size} when there is none.
    std::pair<const AddedToken*, size_t> find(std::string_view text) const {
        if (tokens_.empty()) return {nullptr, text.size()};
        for (size_t at = 0; at < text.size(); ++at) {
            for (const AddedToken* token : starting_[static_cast<uint8_t>(text[at])]) {
                if (text.substr(at).starts_with(token->content)) return {token, at};
            }
        }
        return {nullptr, text.size()};
    }

  private:
    std::vector<AddedToken> tokens_;
    std::array<std::vector<const AddedToken*>, 256> starting_;
};

std::vector<AddedToken> chosen(const std::vector<AddedToken>& tokens, bool normalized) {
    std::vector<AddedToken> result;
    std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(result),
                 [&](const AddedToken& token) { return token.normalized == normalized; });
    return result;
}

class BpeTokenizer final : public Tokenizer {
  public:
    explicit BpeTokenizer(const std::filesystem::path& file)
        : file_(read_tokenizer_file(file)),
          splitter_(file_.pattern, file.string()),
          bpe_(file_, file.string()),
          literal_(chosen(file_.added, false)),
          normalized_(chosen(file_.added, true)) {
        special_.resize(file_.tokens.size());
        for (const AddedToken& token : file_.added) {
            special_[static_cast<size_t>(token.id)] = token.special;
        }
    }

    std::vector<int32_t> encode(std::string_view text) const override {
        if (text.size() > kMaxText) {
            throw Error(ErrorKind::input, fmt::format("text: expected at most {} bytes, found {}",
                                                      kMaxText, text.size()));
        }
        if (const size_t bad = find_broken_utf8(text); bad != std::string_view::npos) {
            throw Error(ErrorKind::input,
                        fmt::format("text: expected UTF-8, found byte 0x{:02x} at offset {}",
                                    static_cast<uint8_t>(text[bad]), bad));
        }
        // One caller at a time has the cache; others do without.
        const std::unique_lock lock(mutex_, std::try_to_lock);
        std::vector<int32_t> ids;
        cut(text, literal_, ids, [&](std::string_view outer) {
            cut(outer, normalized_, ids, [&](std::string_view inner) {
                splitter_.split(inner, [&](std::string_view piece) {
                    encode_piece(piece, lock.owns_lock(), ids);
                });
            });
        });
        return ids;
    }

    std::string decode(std::span<const int32_t> tokens, bool skip_special) const override {
        std::string bytes;
        for (const int32_t token : tokens) {
            if (!is_known(token)) continue;
            if (skip_special && is_special(token)) continue;
            bytes += file_.tokens[static_cast<size_t>(token)].bytes;
        }
        return replace_broken_utf8(bytes);
    }

    std::string token_bytes(int32_t token) const override {
        return is_known(token) ? file_.tokens[static_cast<size_t>(token)].bytes : std::string();
    }

    bool is_known(int32_t token) const override {
        return token >= 0 && token < size() && file_.tokens[static_cast<size_t>(token)].known;
    }

    bool is_special(int32_t token) const override {
        return is_known(token) && special_[static_cast<size_t>(token)];
    }

    int32_t added_token(std::string_view text) const override {
        const auto found = std::ranges::find(file_.added, text, &AddedToken::content);
        return found == file_.added.end() ? -1 : found->id;
    }

    int32_t size() const override { return static_cast<int32_t>(file_.tokens.size()); }
    std::string digest() const override { return file_.digest; }

  private:
    // Calls rest(gap) for what lies between the tokens of `added`, and appends their ids.
    template <class Rest>
    static void cut(std::string_view text, const AddedTokens& added, std::vector<int32_t>& ids,
                    Rest&& rest) {
        while (!text.empty()) {
            const auto [token, at] = added.find(text);
            if (at > 0) rest(text.substr(0, at));
            if (!token) return;
            ids.push_back(token->id);
            text.remove_prefix(at + token->content.size());
        }
    }

    void encode_piece(std::string_view piece, bool cached, std::vector<int32_t>& ids) const {
        if (!cached || piece.size() > kCachedPiece) {
            bpe_.encode(piece, ids);
            return;
        }
        std::string key(piece);
        auto found = cache_.find(key);
        if (found == cache_.end()) {
            if (cache_.size() >= kCachedPieces) cache_.clear();
            std::vector<int32_t> encoded;
            bpe_.encode(piece, encoded);
            found = cache_.emplace(std::move(key), std::move(encoded)).first;
        }
        ids.insert(ids.end(), found->second.begin(), found->second.end());
    }

    TokenizerFile file_;
    Splitter splitter_;
    Bpe bpe_;
    AddedTokens literal_;
    AddedTokens normalized_;
    std::vector<bool> special_;  // by id
    mutable std::mutex mutex_;
    mutable std::unordered_map<std::string, std::vector<int32_t>> cache_;
};

}  // namespace

bool has_tokenizer(const std::filesystem::path& folder) {
    return std::filesystem::exists(folder / "tokenizer.json");
}

bool text_supported() {
    return true;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& folder) {
    return std::make_unique<BpeTokenizer>(folder / "tokenizer.json");
}

}  // namespace quadrille
