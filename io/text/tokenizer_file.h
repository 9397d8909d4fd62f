// SPDX-License-Identifier: Apache-2.0
// The contents of tokenizer.json that a byte-level BPE tokenizer needs. Whatever else the file
// asks for (a normalizer, another model, another split) is an error naming the section, because
// ignoring it would change token ids silently.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {

struct AddedToken {
    int32_t id = 0;
    std::string content;      // matched literally in the text
    bool special = false;     // left out of a decoded text on request
    bool normalized = false;  // matched after those that are not
};

struct TokenizerFile {
    struct Token {
        std::string bytes;       // raw bytes, the GPT-2 alphabet undone
        bool known = false;      // false: no token has this id
        bool encodable = false;  // part of the BPE vocabulary and written in the byte alphabet
    };
    std::vector<Token> tokens;                        // by id
    std::vector<std::pair<int32_t, int32_t>> merges;  // by rank: ids of the two halves
    std::vector<int32_t> merged;                      // by rank: id of the result
    std::vector<AddedToken> added;
    std::string pattern;         // the split's regular expression
    bool ignore_merges = false;  // a piece that is a token is taken whole
    std::string digest;          // of the file's bytes
};

// Throws Error{input} naming file, section, expected and found.
TokenizerFile read_tokenizer_file(const std::filesystem::path& file);

}  // namespace quadrille
