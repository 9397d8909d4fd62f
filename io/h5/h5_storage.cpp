// SPDX-License-Identifier: Apache-2.0
// What a dataset declares and its file does not hold. The library puts fill values in place of
// chunks that were never written and of external or virtual sources that are missing; here they
// are errors that name what is missing.
#include "io/h5/h5_library.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <system_error>

namespace quadrille::h5 {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void lacks(const std::string& where, const std::string& what) {
    throw Error(ErrorKind::input, fmt::format("{}: {}", where, what));
}

// The file `name` that a dataset of `file` keeps its data in, looked for where the library does:
// the folder that `variable` names, the file's own folder where `beside` says so, the working
// folder.
fs::path source_path(const std::string& name, const fs::path& file, const char* variable,
                     bool beside) {
    if (fs::path(name).is_absolute()) return name;
    std::vector<fs::path> folders;
    if (const char* set = std::getenv(variable); set != nullptr && *set != '\0') {
        std::string folder = set;
        if (folder.starts_with("${ORIGIN}"))
            folder = (file.parent_path() / "").string() + folder.substr(9);
        folders.emplace_back(folder);
    }
    if (beside) folders.push_back(file.parent_path());
    std::error_code ignored;
    for (const fs::path& folder : folders)
        if (fs::exists(folder / name, ignored)) return folder / name;
    return name;
}

fs::path file_of(int64_t dataset, const std::string& where) {
    const int64_t size =
        check(H5Fget_name(dataset, nullptr, 0), ErrorKind::input, where, "no file");
    std::string name(static_cast<size_t>(size), '\0');
    H5Fget_name(dataset, name.data(), name.size() + 1);
    return name;
}

void check_filters(int64_t properties, const std::string& where) {
    const int64_t count =
        check(H5Pget_nfilters(properties), ErrorKind::input, where, "cannot list its filters");
    for (int64_t i = 0; i < count; ++i) {
        unsigned flags = 0;
        unsigned config = 0;
        size_t values = 0;
        std::array<char, 256> name{};
        const int64_t filter =
            check(H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &values, nullptr,
                                 name.size() - 1, name.data(), &config),
                  ErrorKind::input, where, "cannot read its filters");
        if (H5Zfilter_avail(static_cast<H5Z_filter_t>(filter)) > 0) continue;
        lacks(where, fmt::format("stored through the filter {} ({}), which this HDF5 library does "
                                 "not have: set HDF5_PLUGIN_PATH, or store it with gzip or without "
                                 "a filter",
                                 name.data(), filter));
    }
}

void check_chunks(int64_t dataset, int64_t properties, const std::vector<int64_t>& shape,
                  const std::string& where) {
    std::vector<hsize_t> chunk(shape.size());
    check(H5Pget_chunk(properties, static_cast<int>(chunk.size()), chunk.data()), ErrorKind::input,
          where, "no chunk size");
    int64_t expected = 1;
    for (size_t axis = 0; axis < chunk.size(); ++axis) {
        if (chunk[axis] == 0) lacks(where, "a chunk of 0 rows");
        const auto size = static_cast<hsize_t>(shape[axis]);
        const hsize_t chunks = size / chunk[axis] + (size % chunk[axis] != 0 ? 1 : 0);
        if (__builtin_mul_overflow(expected, static_cast<int64_t>(chunks), &expected))
            lacks(where, "more chunks than can be counted");
    }
    const Id space = own(H5Dget_space(dataset), ErrorKind::input, where, "no extent");
    hsize_t written = 0;
    check(H5Dget_num_chunks(dataset, space.get(), &written), ErrorKind::input, where,
          "cannot count its chunks");
    if (static_cast<int64_t>(written) < expected)
        lacks(where, fmt::format("{} of its {} chunks were never written",
                                 expected - static_cast<int64_t>(written), expected));
}

void check_external(int64_t dataset, int64_t properties, const std::string& where) {
    const int64_t count =
        check(H5Pget_external_count(properties), ErrorKind::input, where, "no storage");
    for (int64_t i = 0; i < count; ++i) {
        std::array<char, 4096> name{};
        off_t offset = 0;
        hsize_t size = 0;
        check(H5Pget_external(properties, static_cast<unsigned>(i), name.size() - 1, name.data(),
                              &offset, &size),
              ErrorKind::input, where, "no external file");
        const fs::path source =
            source_path(name.data(), file_of(dataset, where), "HDF5_EXTFILE_PREFIX", false);
        std::error_code error;
        const auto found = fs::file_size(source, error);
        if (error)
            lacks(where,
                  fmt::format("its data lie in the file {}: {}", source.string(), error.message()));
        const bool unlimited = size == H5F_UNLIMITED;
        if (!unlimited && found < static_cast<uintmax_t>(offset) + size)
            lacks(where,
                  fmt::format("its data lie in the file {}: expected {} bytes, found {}",
                              source.string(), static_cast<uintmax_t>(offset) + size, found));
    }
}

std::string mapping_name(int64_t properties, size_t mapping, const std::string& where,
                         ssize_t (*get)(hid_t, size_t, char*, size_t)) {
    const int64_t size =
        check(get(properties, mapping, nullptr, 0), ErrorKind::input, where, "no source");
    std::string name(static_cast<size_t>(size), '\0');
    get(properties, mapping, name.data(), name.size() + 1);
    return name;
}

// Each source is opened as any dataset is, so what it lacks itself is named too.
void check_virtual(int64_t dataset, int64_t properties, const std::vector<int64_t>& shape,
                   const std::string& where) {
    size_t mappings = 0;
    check(H5Pget_virtual_count(properties, &mappings), ErrorKind::input, where, "no sources");
    const fs::path file = file_of(dataset, where);
    hssize_t covered = 0;
    for (size_t i = 0; i < mappings; ++i) {
        const std::string name = mapping_name(properties, i, where, H5Pget_virtual_filename);
        const std::string path = mapping_name(properties, i, where, H5Pget_virtual_dsetname);
        const Id space = own(H5Pget_virtual_vspace(properties, i), ErrorKind::input, where,
                             "no selection of a source");
        const hssize_t points = H5Sget_select_npoints(space.get());
        if (points < 0 || name.find('%') != std::string::npos ||
            path.find('%') != std::string::npos)
            lacks(where, "a virtual dataset whose sources are not listed: store it as a plain one");
        covered += points;
        if (name == "." || fs::path(name) == file) continue;
        const fs::path source = source_path(name, file, "HDF5_VDS_PREFIX", true);
        try {
            File::open(source).dataset(path).require_data();
        } catch (const Error& error) {
            lacks(where, fmt::format("a virtual dataset with a source that cannot be read: {}",
                                     error.what()));
        }
    }
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>{});
    if (covered < elements)
        lacks(where, fmt::format("a virtual dataset whose sources cover {} of its {} elements",
                                 covered, elements));
}

}  // namespace

void Dataset::require_data() const {
    if (row_elements_ == 0 || rows() == 0) return;
    const Id properties =
        own(H5Dget_create_plist(id_.get()), ErrorKind::input, where_, "no storage");
    switch (H5Pget_layout(properties.get())) {
        case H5D_CHUNKED:
            return check_chunks(id_.get(), properties.get(), shape_, where_);
        case H5D_VIRTUAL:
            return check_virtual(id_.get(), properties.get(), shape_, where_);
        case H5D_CONTIGUOUS: {
            if (H5Pget_external_count(properties.get()) > 0)
                return check_external(id_.get(), properties.get(), where_);
            H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
            check(H5Dget_space_status(id_.get(), &status), ErrorKind::input, where_, "no storage");
            if (status != H5D_SPACE_STATUS_ALLOCATED) lacks(where_, "its data were never written");
            return;
        }
        default:
            return;
    }
}

void Dataset::fail_to_read() const {
    const std::string reason = library_reason();  // of the call that failed
    const Id properties =
        own(H5Dget_create_plist(id_.get()), ErrorKind::input, where_, "no storage");
    if (H5Pget_layout(properties.get()) == H5D_CHUNKED) check_filters(properties.get(), where_);
    lacks(where_, "cannot read: " + reason);
}

}  // namespace quadrille::h5
