// SPDX-License-Identifier: Apache-2.0
#include "io/h5/h5_library.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <type_traits>
#include <utility>

namespace quadrille::h5 {
namespace {

template <typename T>
int64_t native_type() {
    if constexpr (std::is_same_v<T, uint8_t>) return H5T_NATIVE_UINT8;
    if constexpr (std::is_same_v<T, uint16_t>) return H5T_NATIVE_UINT16;
    if constexpr (std::is_same_v<T, int32_t>) return H5T_NATIVE_INT32;
    if constexpr (std::is_same_v<T, int64_t>) return H5T_NATIVE_INT64;
    if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
    if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
}

template <typename T>
void narrow(std::span<const int64_t> from, std::span<T> to, int64_t first,
            const std::string& where) {
    for (size_t i = 0; i < from.size(); ++i) {
        if (!std::in_range<T>(from[i]))
            throw Error(ErrorKind::input,
                        fmt::format("{}[{}]: {} does not fit {}int{}", where,
                                    first + static_cast<int64_t>(i), from[i],
                                    std::is_signed_v<T> ? "" : "u", 8 * sizeof(T)));
        to[i] = static_cast<T>(from[i]);
    }
}

// The rows as a selection of the file and the matching memory extent.
struct RowSelection {
    Id file;
    Id memory;

    RowSelection(int64_t dataset, const std::vector<int64_t>& shape, int64_t first, int64_t count,
                 const std::string& where)
        : file(own(H5Dget_space(dataset), ErrorKind::internal, where, "H5Dget_space")) {
        std::vector<hsize_t> start(shape.size(), 0);
        std::vector<hsize_t> extent(shape.begin(), shape.end());
        start[0] = static_cast<hsize_t>(first);
        extent[0] = static_cast<hsize_t>(count);
        check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(),
                                  nullptr),
              ErrorKind::internal, where, "H5Sselect_hyperslab");
        memory = own(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr),
                     ErrorKind::internal, where, "H5Screate_simple");
    }
};

void require_rows(const std::vector<int64_t>& shape, int64_t first, int64_t count,
                  const std::string& where) {
    if (shape.empty() || first < 0 || count < 0 || first > shape[0] || count > shape[0] - first)
        throw Error(ErrorKind::internal, fmt::format("{}: rows {} + {} are outside [{}]", where,
                                                     first, count, fmt::join(shape, ", ")));
}

}  // namespace

Dataset::Dataset(Id id, std::string where) : Object(std::move(id), std::move(where)) {
    const Id type = own(H5Dget_type(id_.get()), ErrorKind::input, where_, "no type");
    const Id space = own(H5Dget_space(id_.get()), ErrorKind::input, where_, "no extent");
    type_ = type_of(type.get());
    const int64_t rank =
        check(H5Sget_simple_extent_ndims(space.get()), ErrorKind::input, where_, "no extent");
    std::vector<hsize_t> extent(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space.get(), extent.data(), nullptr);
    for (const hsize_t size : extent) {
        if (!std::in_range<int64_t>(size))
            throw Error(ErrorKind::input, where_ + ": extent too large");
        shape_.push_back(static_cast<int64_t>(size));
    }
    if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) shape_ = {0};
    int64_t elements = 1;
    for (size_t axis = shape_.size(); axis-- > 0;) {
        row_elements_ = elements;
        if (__builtin_mul_overflow(elements, shape_[axis], &elements))
            throw Error(ErrorKind::input,
                        fmt::format("{}: extent too large: {}", where_, describe()));
    }
}

std::string Dataset::describe() const {
    return fmt::format("{} [{}]", type_.name, fmt::join(shape_, ", "));
}

void Dataset::transfer_in(int64_t memory_type, int64_t first, int64_t count, void* out) const {
    require_rows(shape_, first, count, where_);
    if (count == 0 || row_elements_ == 0) return;
    if (!data_there_) require_data();
    data_there_ = true;
    const RowSelection rows(id_.get(), shape_, first, count, where_);
    if (H5Dread(id_.get(), memory_type, rows.memory.get(), rows.file.get(), H5P_DEFAULT, out) < 0)
        fail_to_read();
}

void Dataset::transfer_out(int64_t memory_type, int64_t first, int64_t count, const void* data) {
    require_rows(shape_, first, count, where_);
    if (count == 0 || row_elements_ == 0) return;
    data_there_ = true;
    const RowSelection rows(id_.get(), shape_, first, count, where_);
    check(H5Dwrite(id_.get(), memory_type, rows.memory.get(), rows.file.get(), H5P_DEFAULT, data),
          ErrorKind::io, where_, "cannot write");
}

template <typename T>
void Dataset::read(int64_t first, std::span<T> out) const {
    constexpr bool integer = std::is_integral_v<T>;
    if (type_.kind != (integer ? TypeClass::integer : TypeClass::floating))
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected {}, found {}", where_,
                                integer ? "integers" : "floating point", describe()));
    const int64_t count = row_elements_ == 0 ? 0 : std::ssize(out) / row_elements_;
    require(count * row_elements_ == std::ssize(out), "h5: a read is whole rows");
    if constexpr (!integer) {
        transfer_in(native_type<T>(), first, count, out.data());
    } else if constexpr (std::is_same_v<T, int64_t>) {
        const bool wide = is_wide_unsigned(type_);
        transfer_in(wide ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, first, count, out.data());
        if (wide) check_unsigned(out, first * row_elements_, where_);
    } else if (type_.size == static_cast<int64_t>(sizeof(T)) &&
               type_.is_signed == std::is_signed_v<T>) {
        transfer_in(native_type<T>(), first, count, out.data());
    } else {
        std::vector<int64_t> wide(out.size());
        read(first, std::span(wide));
        narrow<T>(wide, out, first * row_elements_, where_);
    }
}

template <typename T>
std::vector<T> Dataset::read(int64_t first, int64_t count) const {
    require_rows(shape_, first, count, where_);
    std::vector<T> out(static_cast<size_t>(count * row_elements_));
    read(first, std::span(out));
    return out;
}

std::vector<int64_t> Dataset::read_clamped(int64_t first, int64_t count) const {
    if (type_.kind != TypeClass::integer) return read<int64_t>(first, count);
    require_rows(shape_, first, count, where_);
    std::vector<int64_t> out(static_cast<size_t>(count * row_elements_));
    transfer_in(H5T_NATIVE_INT64, first, count, out.data());  // HDF5 clamps
    return out;
}

std::vector<std::string> Dataset::read_strings(int64_t first, int64_t count) const {
    if (type_.kind != TypeClass::string)
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected strings, found {}", where_, describe()));
    require_rows(shape_, first, count, where_);
    const Id type = own(H5Dget_type(id_.get()), ErrorKind::input, where_, "no type");
    return collect_strings(type.get(), count * row_elements_, [&](int64_t memory, void* out) {
        transfer_in(memory, first, count, out);
    });
}

template <typename T>
void Dataset::write(int64_t first, std::span<const T> values) {
    require(type_.size == static_cast<int64_t>(sizeof(T)) &&
                type_.kind == (std::is_integral_v<T> ? TypeClass::integer : TypeClass::floating),
            "h5: a write has the dataset's own type");
    const int64_t count = row_elements_ == 0 ? 0 : std::ssize(values) / row_elements_;
    require(count * row_elements_ == std::ssize(values), "h5: a write is whole rows");
    transfer_out(native_type<T>(), first, count, values.data());
}

void Dataset::write_strings(int64_t first, std::span<const std::string> values) {
    require(type_.kind == TypeClass::string && type_.variable && row_elements_ == 1,
            "h5: strings are written to a 1-D dataset of variable length");
    const std::vector<const char*> pointers = c_strings(values, where_);
    transfer_out(utf8_type().get(), first, std::ssize(values), pointers.data());
}

int64_t Dataset::grow(int64_t rows) {
    const int64_t first = shape_.at(0);
    shape_[0] += rows;
    const std::vector<hsize_t> extent(shape_.begin(), shape_.end());
    check(H5Dset_extent(id_.get(), extent.data()), ErrorKind::io, where_, "cannot extend");
    return first;
}

template <typename T>
void Dataset::append(std::span<const T> values) {
    require(row_elements_ > 0 && std::ssize(values) % row_elements_ == 0,
            "h5: an append is whole rows");
    write(grow(std::ssize(values) / row_elements_), values);
}

void Dataset::append_strings(std::span<const std::string> values) {
    write_strings(grow(std::ssize(values)), values);
}

#define QUADRILLE_H5_INSTANTIATE(T)                                   \
    template void Dataset::read<T>(int64_t, std::span<T>) const;      \
    template std::vector<T> Dataset::read<T>(int64_t, int64_t) const; \
    template void Dataset::write<T>(int64_t, std::span<const T>);     \
    template void Dataset::append<T>(std::span<const T>);
QUADRILLE_H5_INSTANTIATE(uint8_t)
QUADRILLE_H5_INSTANTIATE(uint16_t)
QUADRILLE_H5_INSTANTIATE(int32_t)
QUADRILLE_H5_INSTANTIATE(int64_t)
QUADRILLE_H5_INSTANTIATE(float)
QUADRILLE_H5_INSTANTIATE(double)
#undef QUADRILLE_H5_INSTANTIATE

}  // namespace quadrille::h5
