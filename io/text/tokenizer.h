// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: byte-level BPE with the GLM pre-tokenizer. Added tokens are cut out first,
// literally; nothing is added at either end. Built only with the meson feature `text` (ICU);
// without it make_tokenizer throws Error{usage} saying so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    // Text must be UTF-8: Error{input} names the byte offset of the first broken sequence.
    virtual std::vector<int32_t> encode(std::string_view text) const = 0;
    // Broken UTF-8 becomes U+FFFD. `skip_special`: special added tokens are left out.
    virtual std::string decode(std::span<const int32_t> tokens, bool skip_special) const = 0;
    // Raw bytes of one token (a text token may end inside a character); empty for an unknown id.
    virtual std::string token_bytes(int32_t token) const = 0;
    virtual bool is_known(int32_t token) const = 0;
    virtual bool is_special(int32_t token) const = 0;  // left out by skip_special
    // The added token that is spelled so; -1: none.
    virtual int32_t added_token(std::string_view text) const = 0;
    virtual int32_t size() const = 0;  // largest known id + 1
    virtual std::string digest() const = 0;
};

bool has_tokenizer(const std::filesystem::path& folder);  // FOLDER/tokenizer.json exists
bool text_supported();                                    // built with the feature `text`
std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& folder);

}  // namespace quadrille
