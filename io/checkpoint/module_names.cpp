// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/module_names.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

namespace quadrille {

namespace {

// In the order of TensorPart.
constexpr std::array kSuffixes = {"",        "weight", "bias", "weight_scale_inv",
                                  "trellis", "suh",    "svh",  "su",
                                  "sv",      "mcg",    "mul1", "scale"};
constexpr std::string_view kRank = ".rank";
constexpr std::array kTextPrefixes = {"model.language_model.", "model.", ""};
constexpr const char* kEmbedding = "embed_tokens";

// A number of at most 9 digits and nothing else.
std::optional<int32_t> number(std::string_view text) {
    const bool digits =
        std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (text.empty() || text.size() > 9 || !digits) return std::nullopt;
    int32_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

// `visit` sees the parts between dots, first to last, until it returns true.
template <class Visit>
bool any_part(std::string_view name, const Visit& visit) {
    for (size_t begin = 0; begin <= name.size();) {
        const size_t end = std::min(name.find('.', begin), name.size());
        if (visit(name.substr(begin, end - begin))) return true;
        begin = end + 1;
    }
    return false;
}

}  // namespace

const char* suffix(TensorPart part) {
    return kSuffixes.at(static_cast<size_t>(part));
}

bool holds_weights(TensorPart part) {
    return part == TensorPart::bare || part == TensorPart::weight || part == TensorPart::bias ||
           part == TensorPart::trellis;
}

TensorName parse_tensor_name(const std::string& name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return {.module = name};
    const auto known =
        std::find(kSuffixes.begin() + 1, kSuffixes.end(), std::string_view(name).substr(dot + 1));
    if (known == kSuffixes.end()) return {.module = name};
    TensorName out{.module = name.substr(0, dot),
                   .part = static_cast<TensorPart>(known - kSuffixes.begin())};
    const size_t split = out.module.rfind(kRank);
    if (split == std::string::npos) return out;
    if (const auto rank = number(std::string_view(out.module).substr(split + kRank.size()))) {
        out.rank = *rank;
        out.module.resize(split);
    }
    return out;
}

std::string tensor_name(const std::string& module, TensorPart part, int32_t rank) {
    std::string name = module;
    if (rank >= 0) name += fmt::format("{}{}", kRank, rank);
    return part == TensorPart::bare ? name : name + '.' + suffix(part);
}

StoredAs stored_as(const Checkpoint& checkpoint, const std::string& module) {
    StoredAs found = StoredAs::absent;
    const auto look = [&](StoredAs form, TensorPart part, int32_t rank = -1) {
        if (checkpoint.find(tensor_name(module, part, rank)) == nullptr) return;
        if (found != StoredAs::absent) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: module {} is stored more than once (native and EXL3)",
                                    checkpoint.folder().string(), module));
        }
        found = form;
    };
    look(StoredAs::bare, TensorPart::bare);
    look(StoredAs::weight, TensorPart::weight);
    look(StoredAs::exl3, TensorPart::trellis);
    look(StoredAs::exl3_split, TensorPart::trellis, 0);
    return found;
}

std::optional<std::string> find_text_prefix(const Checkpoint& checkpoint) {
    for (const std::string prefix : kTextPrefixes) {
        if (checkpoint.find(tensor_name(prefix + kEmbedding, TensorPart::weight)) != nullptr) {
            return prefix;
        }
    }
    return std::nullopt;
}

std::string text_prefix(const Checkpoint& checkpoint) {
    if (const auto prefix = find_text_prefix(checkpoint)) return *prefix;
    throw Error(ErrorKind::input,
                fmt::format("{}: tensor {}{}.weight is missing", checkpoint.folder().string(),
                            kTextPrefixes.front(), kEmbedding));
}

bool is_vision(const std::string& name) {
    return any_part(
        name, [](std::string_view part) { return part == "visual" || part == "vision_model"; });
}

int64_t layer_of(const std::string& name) {
    bool behind = false;
    int64_t layer = -1;
    any_part(name, [&](std::string_view part) {
        const auto index = behind ? number(part) : std::nullopt;
        if (index) layer = *index;
        behind = part == "layers";
        return index.has_value();
    });
    return layer;
}

std::vector<std::string> stored_modules(const FusedNames& names, const std::string& prefix,
                                        const std::function<bool(const std::string&)>& has) {
    if (has(prefix + names.whole)) return {prefix + names.whole};
    std::vector<std::string> modules;
    for (const char* part : names.parts) modules.push_back(prefix + part);
    return modules;
}

}  // namespace quadrille
