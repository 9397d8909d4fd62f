// SPDX-License-Identifier: Apache-2.0
#include "io/h5/h5_library.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace quadrille::h5 {
namespace {

template <typename T>
Value scalar_or_list(std::vector<T> values, bool scalar) {
    if (scalar) return std::move(values.front());
    return values;
}

Value read_attribute(int64_t attribute, const std::string& where) {
    const Id type_id = own(H5Aget_type(attribute), ErrorKind::input, where, "no type");
    const Id space = own(H5Aget_space(attribute), ErrorKind::input, where, "no extent");
    const bool scalar = H5Sget_simple_extent_type(space.get()) == H5S_SCALAR;
    if (!scalar && H5Sget_simple_extent_ndims(space.get()) != 1) return {};
    const int64_t count = H5Sget_simple_extent_npoints(space.get());
    const Type type = type_of(type_id.get());
    const auto read = [&](int64_t memory, void* out) {
        if (count > 0)
            check(H5Aread(attribute, memory, out), ErrorKind::input, where, "cannot read");
    };
    if (type.kind == TypeClass::integer) {
        std::vector<int64_t> values(static_cast<size_t>(count));
        read(is_wide_unsigned(type) ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, values.data());
        if (is_wide_unsigned(type)) check_unsigned(values, 0, where);
        return scalar_or_list(std::move(values), scalar);
    }
    if (type.kind == TypeClass::floating) {
        std::vector<double> values(static_cast<size_t>(count));
        read(H5T_NATIVE_DOUBLE, values.data());
        return scalar_or_list(std::move(values), scalar);
    }
    if (type.kind == TypeClass::string)
        return scalar_or_list(collect_strings(type_id.get(), count, read), scalar);
    return {};
}

constexpr size_t kLargest = 64'000;  // bytes; an object's header holds 64 KB

void write_attribute(int64_t object, const std::string& name, int64_t type, int64_t memory,
                     const Id& space, const void* data, const std::string& where) {
    const Id attribute =
        own(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
            ErrorKind::io, where, "cannot make the attribute");
    if (H5Sget_simple_extent_npoints(space.get()) > 0)
        check(H5Awrite(attribute.get(), memory, data), ErrorKind::io, where,
              "cannot write the attribute");
}

herr_t collect_name(hid_t, const char* name, const H5A_info_t*, void* out) {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
}

}  // namespace

std::string describe(const Value& value) {
    struct Describer {
        std::string operator()(std::monostate) const { return "(not readable)"; }
        std::string operator()(int64_t v) const { return fmt::format("{}", v); }
        std::string operator()(double v) const { return fmt::format("{}", v); }
        std::string operator()(const std::string& v) const { return v; }
        std::string operator()(const std::vector<int64_t>& v) const { return fmt::format("{}", v); }
        std::string operator()(const std::vector<double>& v) const { return fmt::format("{}", v); }
        std::string operator()(const std::vector<std::string>& v) const {
            return fmt::format("[{}]", fmt::join(v, ", "));
        }
    };
    return std::visit(Describer{}, value);
}

bool Object::has_attribute(const std::string& name) const {
    return check(H5Aexists(id_.get(), name.c_str()), ErrorKind::input, where_, "H5Aexists") > 0;
}

std::vector<std::string> Object::attribute_names() const {
    std::vector<std::string> names;
    hsize_t index = 0;
    check(H5Aiterate2(id_.get(), H5_INDEX_NAME, H5_ITER_INC, &index, collect_name, &names),
          ErrorKind::input, where_, "cannot list attributes");
    return names;
}

std::optional<Value> Object::attribute(const std::string& name) const {
    if (!has_attribute(name)) return std::nullopt;
    const std::string where = fmt::format("{}, attribute {}", where_, name);
    const Id id =
        own(H5Aopen(id_.get(), name.c_str(), H5P_DEFAULT), ErrorKind::input, where, "cannot open");
    return read_attribute(id.get(), where);
}

Attributes Object::attributes() const {
    Attributes values;
    for (const std::string& name : attribute_names()) values[name] = *attribute(name);
    return values;
}

void Object::set_attribute(const std::string& name, const Value& value) {
    const std::string where = fmt::format("{}, attribute {}", where_, name);
    if (has_attribute(name))
        check(H5Adelete(id_.get(), name.c_str()), ErrorKind::io, where, "cannot replace");
    const auto write = [&](Element element, int64_t memory, int64_t count, const void* data) {
        const auto extent = static_cast<hsize_t>(count);
        const Id space =
            own(count < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr),
                ErrorKind::internal, where, "no dataspace");
        const Id type = file_type(element);
        const size_t bytes =
            H5Tget_size(type.get()) * static_cast<size_t>(std::max<int64_t>(count, 1));
        if (bytes > kLargest)
            throw Error(ErrorKind::internal,
                        fmt::format("{}: a list of {} values belongs in a dataset", where, count));
        write_attribute(id_.get(), name, type.get(), memory, space, data, where);
    };
    const auto write_text = [&](std::span<const std::string> values, int64_t count) {
        const std::vector<const char*> pointers = c_strings(values, where);
        write(Element::string, utf8_type().get(), count, pointers.data());
    };
    constexpr int64_t kScalar = -1;
    if (const auto* i = std::get_if<int64_t>(&value))
        write(Element::i64, H5T_NATIVE_INT64, kScalar, i);
    else if (const auto* d = std::get_if<double>(&value))
        write(Element::f64, H5T_NATIVE_DOUBLE, kScalar, d);
    else if (const auto* s = std::get_if<std::string>(&value))
        write_text(std::span(s, 1), kScalar);
    else if (const auto* li = std::get_if<std::vector<int64_t>>(&value))
        write(Element::i64, H5T_NATIVE_INT64, std::ssize(*li), li->data());
    else if (const auto* ld = std::get_if<std::vector<double>>(&value))
        write(Element::f64, H5T_NATIVE_DOUBLE, std::ssize(*ld), ld->data());
    else if (const auto* ls = std::get_if<std::vector<std::string>>(&value))
        write_text(*ls, std::ssize(*ls));
    else
        throw Error(ErrorKind::internal, where + ": no value to write");
}

void Object::set_attributes(const Attributes& values) {
    for (const auto& [name, value] : values) set_attribute(name, value);
}

}  // namespace quadrille::h5
