// SPDX-License-Identifier: Apache-2.0
#include "io/h5/h5_library.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace quadrille::h5 {
namespace {

herr_t collect_reason(unsigned, const H5E_error2_t* error, void* out) {
    auto& reasons = *static_cast<std::vector<std::string>*>(out);
    if (error->desc != nullptr && *error->desc != '\0') reasons.emplace_back(error->desc);
    return 0;
}

const char* class_name(H5T_class_t type_class) {
    switch (type_class) {
        case H5T_BITFIELD:
            return "bit field";
        case H5T_OPAQUE:
            return "opaque";
        case H5T_COMPOUND:
            return "compound";
        case H5T_REFERENCE:
            return "reference";
        case H5T_VLEN:
            return "variable-length list";
        case H5T_ARRAY:
            return "array";
        default:
            return "unknown type";
    }
}

}  // namespace

std::string library_version() {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    check(H5get_libversion(&major, &minor, &release), ErrorKind::internal, "HDF5", "version");
    return fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

int close_any(int64_t id) {
    return H5Idec_ref(id);
}

// Three levels say enough, the innermost is the cause. Of a failed system call the times and
// addresses around the system's message are left out.
std::string library_reason() {
    std::vector<std::string> reasons;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_reason, &reasons);
    if (reasons.empty()) return "HDF5 gives no reason";
    constexpr std::string_view kSystem = "error message = '";
    if (const size_t at = reasons[0].find(kSystem); at != std::string::npos) {
        const size_t begin = at + kSystem.size();
        return reasons[0].substr(0, reasons[0].find_first_of(":,")) + ": " +
               reasons[0].substr(begin, reasons[0].find('\'', begin) - begin);
    }
    reasons.resize(std::min<size_t>(reasons.size(), 3));
    std::reverse(reasons.begin(), reasons.end());
    return fmt::format("{}", fmt::join(reasons, ": "));
}

[[noreturn]] void fail(ErrorKind kind, const std::string& where, const char* what) {
    throw Error(kind, fmt::format("{}: {}: {}", where, what, library_reason()));
}

int64_t check(int64_t result, ErrorKind kind, const std::string& where, const char* what) {
    if (result < 0) fail(kind, where, what);
    return result;
}

Id own(int64_t id, ErrorKind kind, const std::string& where, const char* what) {
    return Id(check(id, kind, where, what), close_any);
}

Id string_type(size_t size, H5T_cset_t charset) {
    Id type = own(H5Tcopy(H5T_C_S1), ErrorKind::internal, "string type", "H5Tcopy");
    check(H5Tset_size(type.get(), size), ErrorKind::internal, "string type", "H5Tset_size");
    check(H5Tset_cset(type.get(), charset), ErrorKind::internal, "string type", "H5Tset_cset");
    return type;
}

Id utf8_type() {
    return string_type(H5T_VARIABLE, H5T_CSET_UTF8);
}

Id file_type(Element element) {
    const auto copy = [](int64_t type) {
        return own(H5Tcopy(type), ErrorKind::internal, "type", "H5Tcopy");
    };
    switch (element) {
        case Element::u8:
            return copy(H5T_STD_U8LE);
        case Element::u16:
            return copy(H5T_STD_U16LE);
        case Element::i32:
            return copy(H5T_STD_I32LE);
        case Element::i64:
            return copy(H5T_STD_I64LE);
        case Element::f32:
            return copy(H5T_IEEE_F32LE);
        case Element::f64:
            return copy(H5T_IEEE_F64LE);
        case Element::string:
            return utf8_type();
    }
    throw Error(ErrorKind::internal, "unknown element type");
}

Type type_of(int64_t id) {
    const H5T_class_t type_class = H5Tget_class(id);
    Type type;
    type.size = static_cast<int64_t>(H5Tget_size(id));
    if (type_class == H5T_ENUM) {
        const Id base = own(H5Tget_super(id), ErrorKind::input, "enum type", "no base type");
        type = type_of(base.get());
        type.name = "enum " + type.name;
    } else if (type_class == H5T_INTEGER || type_class == H5T_FLOAT) {
        const bool integer = type_class == H5T_INTEGER;
        type.is_signed = !integer || H5Tget_sign(id) == H5T_SGN_2;
        type.name = fmt::format("{}{}{}", type.is_signed ? "" : "u", integer ? "int" : "float",
                                8 * type.size);
        if (H5Tget_order(id) == H5T_ORDER_BE && type.size > 1) type.name += " (big-endian)";
        if (type.size <= 8 || !integer)
            type.kind = integer ? TypeClass::integer : TypeClass::floating;
    } else if (type_class == H5T_STRING) {
        type.kind = TypeClass::string;
        type.variable = H5Tis_variable_str(id) > 0;
        type.name = type.variable ? "string" : fmt::format("string of {} bytes", type.size);
    } else {
        type.name = class_name(type_class);
    }
    return type;
}

std::string trimmed(const char* data, size_t size, H5T_str_t padding) {
    const std::string_view whole(data, size);
    if (padding == H5T_STR_NULLTERM) return std::string(whole.substr(0, whole.find('\0')));
    const size_t last = whole.find_last_not_of(padding == H5T_STR_SPACEPAD ? ' ' : '\0');
    return std::string(whole.substr(0, last == std::string_view::npos ? 0 : last + 1));
}

void check_unsigned(std::span<const int64_t> values, int64_t first, const std::string& where) {
    for (size_t i = 0; i < values.size(); ++i)
        if (values[i] < 0)
            throw Error(ErrorKind::input, fmt::format("{}[{}]: {} does not fit int64", where,
                                                      first + static_cast<int64_t>(i),
                                                      static_cast<uint64_t>(values[i])));
}

std::vector<const char*> c_strings(std::span<const std::string> values, const std::string& where) {
    std::vector<const char*> out;
    out.reserve(values.size());
    for (const std::string& value : values) {
        if (value.find('\0') != std::string::npos)
            throw Error(ErrorKind::internal, where + ": a string with a NUL inside");
        out.push_back(value.c_str());
    }
    return out;
}

}  // namespace quadrille::h5
