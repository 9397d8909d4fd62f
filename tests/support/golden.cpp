// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace quadrille::test {

namespace {

// An HDF5 handle with the function that closes it.
class Handle {
  public:
    Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
        if (id < 0) throw std::runtime_error(fmt::format("golden: cannot open {}", what));
    }
    ~Handle() { close_(id_); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)

  private:
    hid_t id_;
    herr_t (*close_)(hid_t);
};

void check(herr_t status, const std::string& what) {
    if (status < 0) throw std::runtime_error(fmt::format("golden: cannot read {}", what));
}

template <class T>
int64_t memory_type_of();
template <>
int64_t memory_type_of<float>() {
    return H5T_NATIVE_FLOAT;
}
template <>
int64_t memory_type_of<double>() {
    return H5T_NATIVE_DOUBLE;
}
template <>
int64_t memory_type_of<int64_t>() {
    return H5T_NATIVE_INT64;
}
template <>
int64_t memory_type_of<int32_t>() {
    return H5T_NATIVE_INT32;
}
template <>
int64_t memory_type_of<int16_t>() {
    return H5T_NATIVE_INT16;
}
template <>
int64_t memory_type_of<uint16_t>() {
    return H5T_NATIVE_UINT16;
}
template <>
int64_t memory_type_of<uint8_t>() {
    return H5T_NATIVE_UINT8;
}
template <>
int64_t memory_type_of<F16>() {
    return -1;  // as stored
}

herr_t append_name(hid_t, const char* name, const H5L_info_t*, void* names) {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
}

// Strings of a dataset or attribute, of either string kind; `read` fills memory of the given type.
template <class Read>
std::vector<std::string> strings(hid_t type, hid_t space, const Read& read) {
    const auto count = static_cast<size_t>(H5Sget_simple_extent_npoints(space));
    std::vector<std::string> out(count);
    if (H5Tis_variable_str(type) > 0) {
        std::vector<char*> pointers(count, nullptr);
        read(static_cast<void*>(pointers.data()));
        for (size_t i = 0; i < count; ++i) out[i] = pointers[i] == nullptr ? "" : pointers[i];
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, pointers.data());
        return out;
    }
    const size_t width = H5Tget_size(type);
    std::vector<char> bytes(count * width + 1, '\0');
    read(static_cast<void*>(bytes.data()));
    for (size_t i = 0; i < count; ++i) {
        const char* first = bytes.data() + i * width;
        out[i].assign(first, strnlen(first, width));
    }
    return out;
}

}  // namespace

std::filesystem::path data_path(const std::string& name) {
    return std::filesystem::path(QUADRILLE_TEST_DATA) / name;
}

Golden::Golden(const std::filesystem::path& path) : name_(path.string()) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    file_ = H5Fopen(name_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file_ < 0) throw std::runtime_error(fmt::format("golden: cannot open {}", name_));
}

Golden::~Golden() {
    H5Fclose(file_);
}

bool Golden::has(const std::string& path) const {
    // H5Lexists wants every group on the way to exist.
    for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
        if (H5Lexists(file_, path.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
    }
    return path == "/" || H5Lexists(file_, path.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> Golden::children(const std::string& group) const {
    const Handle id(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), H5Gclose, name_ + ":" + group);
    std::vector<std::string> names;
    check(H5Literate(id, H5_INDEX_NAME, H5_ITER_INC, nullptr, append_name, &names), group);
    return names;
}

void Golden::read_into(const std::string& path, int64_t memory_type, std::vector<int64_t>& shape,
                       std::vector<unsigned char>& bytes, int64_t element) const {
    const std::string what = name_ + ":" + path;
    const Handle data(H5Dopen2(file_, path.c_str(), H5P_DEFAULT), H5Dclose, what);
    const Handle type(H5Dget_type(data), H5Tclose, what);
    const Handle space(H5Dget_space(data), H5Sclose, what);
    if (memory_type < 0 &&
        (H5Tget_class(type) != H5T_FLOAT || static_cast<int64_t>(H5Tget_size(type)) != element)) {
        throw std::runtime_error(fmt::format("golden: {} is not float16", what));
    }
    std::vector<hsize_t> extents(static_cast<size_t>(H5Sget_simple_extent_ndims(space)));
    if (!extents.empty()) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
    shape.assign(extents.begin(), extents.end());
    bytes.resize(static_cast<size_t>(H5Sget_simple_extent_npoints(space) * element));
    const hid_t memory = memory_type < 0 ? static_cast<hid_t>(type) : memory_type;
    check(H5Dread(data, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), what);
}

template <class T>
GoldenArray<T> Golden::read(const std::string& path) const {
    GoldenArray<T> array;
    std::vector<unsigned char> bytes;
    read_into(path, memory_type_of<T>(), array.shape, bytes, static_cast<int64_t>(sizeof(T)));
    array.values.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(array.values.data(), bytes.data(), bytes.size());
    return array;
}
template GoldenArray<float> Golden::read(const std::string&) const;
template GoldenArray<double> Golden::read(const std::string&) const;
template GoldenArray<int64_t> Golden::read(const std::string&) const;
template GoldenArray<int32_t> Golden::read(const std::string&) const;
template GoldenArray<int16_t> Golden::read(const std::string&) const;
template GoldenArray<uint16_t> Golden::read(const std::string&) const;
template GoldenArray<uint8_t> Golden::read(const std::string&) const;
template GoldenArray<F16> Golden::read(const std::string&) const;

std::vector<std::string> Golden::read_strings(const std::string& path) const {
    const std::string what = name_ + ":" + path;
    const Handle data(H5Dopen2(file_, path.c_str(), H5P_DEFAULT), H5Dclose, what);
    const Handle type(H5Dget_type(data), H5Tclose, what);
    const Handle space(H5Dget_space(data), H5Sclose, what);
    return strings(type, space, [&](void* to) {
        check(H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to), what);
    });
}

bool Golden::has_attribute(const std::string& path, const std::string& name) const {
    return H5Aexists_by_name(file_, path.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

std::string Golden::text(const std::string& path, const std::string& attribute) const {
    const std::string what = name_ + ":" + path + "@" + attribute;
    const Handle id(
        H5Aopen_by_name(file_, path.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
        what);
    const Handle type(H5Aget_type(id), H5Tclose, what);
    const Handle space(H5Aget_space(id), H5Sclose, what);
    const auto all = strings(type, space, [&](void* to) { check(H5Aread(id, type, to), what); });
    if (all.size() != 1) throw std::runtime_error(fmt::format("golden: {} is not one text", what));
    return all[0];
}

double Golden::number(const std::string& path, const std::string& attribute) const {
    const std::string what = name_ + ":" + path + "@" + attribute;
    const Handle id(
        H5Aopen_by_name(file_, path.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
        what);
    double value = 0;
    check(H5Aread(id, H5T_NATIVE_DOUBLE, &value), what);
    return value;
}

}  // namespace quadrille::test
