// SPDX-License-Identifier: Apache-2.0
// Stands in for io/text/tokenizer.cpp in a build without ICU: token files work, text does not.
#include "io/text/tokenizer.h"
#include "kernels/error.h"

#include <fmt/format.h>

namespace quadrille {

bool has_tokenizer(const std::filesystem::path& folder) {
    return std::filesystem::exists(folder / "tokenizer.json");
}

bool text_supported() {
    return false;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& folder) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: this build has no tokenizer (configured without ICU): only files "
                            "of token ids can be read",
                            (folder / "tokenizer.json").string()));
}

}  // namespace quadrille
