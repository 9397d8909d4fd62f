// SPDX-License-Identifier: Apache-2.0
#include "io/h5/schema.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <variant>

namespace quadrille::schema {
namespace {

template <typename T>
const T* typed(const std::optional<h5::Value>& value, const h5::File& file, const char* name,
               const char* expected) {
    if (!value) return nullptr;
    const T* held = std::get_if<T>(&*value);
    if (held == nullptr)
        throw Error(ErrorKind::input,
                    fmt::format("{}: attribute {} must be {}, found {}", file.where(), name,
                                expected, h5::describe(*value)));
    return held;
}

}  // namespace

void stamp(h5::File& file, const std::string& kind) {
    file.set_attribute(kFormatAttribute, kFormat);
    file.set_attribute(kKindAttribute, kind);
}

std::string kind_of(const h5::File& file, std::vector<std::string>& notices) {
    const auto format_value = file.attribute(kFormatAttribute);
    const auto kind_value = file.attribute(kKindAttribute);
    const auto* format = typed<int64_t>(format_value, file, kFormatAttribute, "an integer");
    const auto* kind = typed<std::string>(kind_value, file, kKindAttribute, "a string");
    if (format != nullptr && *format > kFormat)
        throw Error(ErrorKind::input,
                    fmt::format("{}: {} is {}, this program reads up to {}: use a newer version",
                                file.where(), kFormatAttribute, *format, kFormat));
    if (format != nullptr && *format < 1)
        throw Error(ErrorKind::input, fmt::format("{}: {} is {}, expected 1", file.where(),
                                                  kFormatAttribute, *format));
    if (kind != nullptr && format != nullptr) return *kind;
    if (kind == nullptr && !file.has_group("prompts"))
        throw Error(ErrorKind::input,
                    fmt::format("{}: not a file of this program: no attribute {} and no /prompts",
                                file.where(), kKindAttribute));
    notices.push_back(fmt::format("{}: read as format 1, kind {} (no attribute {})", file.where(),
                                  kind != nullptr ? *kind : kPrompts,
                                  format == nullptr ? kFormatAttribute : kKindAttribute));
    return kind != nullptr ? *kind : kPrompts;
}

bool is_newer(const std::filesystem::path& path) {
    try {
        const auto value = h5::File::open(path).attribute(kFormatAttribute);
        const auto* format = value ? std::get_if<int64_t>(&*value) : nullptr;
        return format != nullptr && *format > kFormat;
    } catch (const Error&) {
        return false;
    }
}

void expect_kind(const h5::File& file, const std::string& kind, std::vector<std::string>& notices) {
    const std::string found = kind_of(file, notices);
    if (found != kind)
        throw Error(ErrorKind::input, fmt::format("{}: expected a file of kind '{}', found '{}'",
                                                  file.where(), kind, found));
}

}  // namespace quadrille::schema
