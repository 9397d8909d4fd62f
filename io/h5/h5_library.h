// SPDX-License-Identifier: Apache-2.0
// Shared by the h5*.cpp files only: checked calls of the HDF5 library, its types, its strings.
#pragma once

#include "io/h5/h5.h"
#include "kernels/error.h"

#include <hdf5.h>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace quadrille::h5 {

static_assert(std::is_same_v<hid_t, int64_t>, "HDF5 1.10 or newer");

// Why the last call failed: the library's error stack, outermost first.
std::string library_reason();
[[noreturn]] void fail(ErrorKind kind, const std::string& where, const char* what);
int64_t check(int64_t result, ErrorKind kind, const std::string& where, const char* what);
// Wraps a fresh identifier; a negative one is an Error.
Id own(int64_t id, ErrorKind kind, const std::string& where, const char* what);
int close_any(int64_t id);

Id utf8_type();                 // variable-length UTF-8
Id file_type(Element element);  // little-endian
Type type_of(int64_t type);

inline bool is_wide_unsigned(const Type& type) {
    return !type.is_signed && type.size == 8;
}

// A uint64 was read into int64 bit by bit: values above the range show up as negative.
void check_unsigned(std::span<const int64_t> values, int64_t first, const std::string& where);

// C pointers for a write; Error{internal} for a string with a NUL inside.
std::vector<const char*> c_strings(std::span<const std::string> values, const std::string& where);

Id string_type(size_t size, H5T_cset_t charset);
std::string trimmed(const char* data, size_t size, H5T_str_t padding);

// Strings of type `type` through read(memory type, buffer), as H5Dread and H5Aread offer.
template <typename Read>
std::vector<std::string> collect_strings(int64_t type, int64_t count, const Read& read) {
    std::vector<std::string> out(static_cast<size_t>(count));
    if (H5Tis_variable_str(type) > 0) {
        const Id memory = string_type(H5T_VARIABLE, H5Tget_cset(type));
        const auto extent = static_cast<hsize_t>(count);
        const Id space = own(H5Screate_simple(1, &extent, nullptr), ErrorKind::internal, "strings",
                             "H5Screate_simple");
        std::vector<char*> pointers(out.size(), nullptr);
        read(memory.get(), static_cast<void*>(pointers.data()));
        for (size_t i = 0; i < out.size(); ++i)
            if (pointers[i] != nullptr) out[i] = pointers[i];
        H5Dvlen_reclaim(memory.get(), space.get(), H5P_DEFAULT, pointers.data());
        return out;
    }
    const size_t size = H5Tget_size(type);
    const H5T_str_t padding = H5Tget_strpad(type);
    std::vector<char> bytes(size * out.size());
    read(type, static_cast<void*>(bytes.data()));
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = trimmed(bytes.data() + i * size, size, padding);
    return out;
}

}  // namespace quadrille::h5
