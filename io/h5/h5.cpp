// SPDX-License-Identifier: Apache-2.0
#include "io/h5/h5.h"

#include "io/files.h"
#include "io/h5/h5_library.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace quadrille::h5 {
namespace {

// Before the first file. The library's own clean-up at exit crashes (1.10) when a file could not be
// closed, say on a full disk; we close everything ourselves.
void prepare_library() {
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

constexpr size_t kChunkSlots = 521;  // the library's default

Id access_properties(bool writable) {
    Id access = own(H5Pcreate(H5P_FILE_ACCESS), ErrorKind::internal, "access", "H5Pcreate");
#if H5_VERSION_GE(1, 10, 7)
    // File systems without locks (some NFS, Lustre) are used as if locking were off.
    check(H5Pset_file_locking(access.get(), true, true), ErrorKind::internal, "access",
          "H5Pset_file_locking");
#endif
    if (!writable) return access;
    // Values are written when we say so: what the library holds back it writes when a dataset is
    // closed, where a failure would go unseen.
    check(H5Pset_sieve_buf_size(access.get(), 0), ErrorKind::internal, "access",
          "H5Pset_sieve_buf_size");
    check(H5Pset_cache(access.get(), 0, kChunkSlots, 0, 1.0), ErrorKind::internal, "access",
          "H5Pset_cache");
    return access;
}

void check_lock(const std::filesystem::path& path, const std::string& reason) {
    if (reason.find("unable to lock file") == std::string::npos) return;
    throw Error(ErrorKind::io,
                fmt::format("{}: another process has it open ({}); if none does, set "
                            "HDF5_USE_FILE_LOCKING=FALSE",
                            path.string(), reason));
}

// What the system says of the path, before HDF5 is asked: its messages name the reason better.
void check_openable(const std::filesystem::path& path, int flags, const char* verb) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    struct stat info {};
    if (file < 0 || ::fstat(file, &info) != 0) {
        const int reason = errno;
        if (file >= 0) ::close(file);
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot {}: {}", path.string(), verb, system_reason(reason)));
    }
    ::close(file);
    if (!S_ISREG(info.st_mode))
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot {}: not a regular file", path.string(), verb));
}

// A soft or external link must lead to something.
void check_link(int64_t group, const std::string& path, const std::string& where) {
    H5L_info_t info;
    check(H5Lget_info(group, path.c_str(), &info, H5P_DEFAULT), ErrorKind::input, where, "no link");
    if (info.type == H5L_TYPE_HARD) return;
    if (const Id object(H5Oopen(group, path.c_str(), H5P_DEFAULT), close_any); object.valid())
        return;
    const std::string reason = library_reason();
    std::string value(info.u.val_size, '\0');
    check(H5Lget_val(group, path.c_str(), value.data(), value.size(), H5P_DEFAULT),
          ErrorKind::input, where, "cannot read the link");
    const char* file = nullptr;
    const char* object = value.c_str();
    if (info.type == H5L_TYPE_EXTERNAL)
        check(H5Lunpack_elink_val(value.data(), value.size(), nullptr, &file, &object),
              ErrorKind::input, where, "cannot read the link");
    throw Error(ErrorKind::input, fmt::format("{}: a link to {}{}{}, which is not there: {}", where,
                                              file == nullptr ? "" : file,
                                              file == nullptr ? "" : ":", object, reason));
}

}  // namespace

Id& Id::operator=(Id&& other) noexcept {
    if (this != &other) {
        reset();
        id_ = std::exchange(other.id_, -1);
        closer_ = other.closer_;
    }
    return *this;
}

void Id::reset() {
    close();
}

bool Id::close() {
    if (id_ < 0) return true;
    return closer_(std::exchange(id_, -1)) >= 0;
}

std::vector<std::string> Group::names() const {
    H5G_info_t info;
    check(H5Gget_info(id_.get(), &info), ErrorKind::input, where_, "cannot list");
    std::vector<std::string> names;
    for (hsize_t i = 0; i < info.nlinks; ++i) {
        const int64_t size = check(H5Lget_name_by_idx(id_.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i,
                                                      nullptr, 0, H5P_DEFAULT),
                                   ErrorKind::input, where_, "cannot list");
        std::string name(static_cast<size_t>(size), '\0');
        H5Lget_name_by_idx(id_.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(),
                           name.size() + 1, H5P_DEFAULT);
        names.push_back(std::move(name));
    }
    return names;
}

int Group::kind_of(const std::string& path) const {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string start = path.substr(0, end);
        if (H5Lexists(id_.get(), start.c_str(), H5P_DEFAULT) <= 0) return -1;
        check_link(id_.get(), start, prefix_ + start);
        if (end == std::string::npos) break;
    }
    const Id object = own(H5Oopen(id_.get(), path.c_str(), H5P_DEFAULT), ErrorKind::input,
                          prefix_ + path, "cannot open");
    return static_cast<int>(H5Iget_type(object.get()));
}

bool Group::has(const std::string& path) const {
    return kind_of(path) >= 0;
}

bool Group::has_group(const std::string& path) const {
    return kind_of(path) == static_cast<int>(H5I_GROUP);
}

bool Group::has_dataset(const std::string& path) const {
    return kind_of(path) == static_cast<int>(H5I_DATASET);
}

Group Group::group(const std::string& path) const {
    const std::string where = prefix_ + path;
    if (!has(path)) throw Error(ErrorKind::input, where + ": no such group");
    if (!has_group(path)) throw Error(ErrorKind::input, where + ": expected a group");
    return Group(own(H5Gopen2(id_.get(), path.c_str(), H5P_DEFAULT), ErrorKind::input, where,
                     "cannot open the group"),
                 where, where + "/");
}

Dataset Group::dataset(const std::string& path) const {
    const std::string where = prefix_ + path;
    if (!has(path)) throw Error(ErrorKind::input, where + ": no such dataset");
    if (!has_dataset(path)) throw Error(ErrorKind::input, where + ": expected a dataset");
    return Dataset(own(H5Dopen2(id_.get(), path.c_str(), H5P_DEFAULT), ErrorKind::input, where,
                       "cannot open the dataset"),
                   where);
}

Group Group::create_group(const std::string& name) {
    const std::string where = prefix_ + name;
    return Group(own(H5Gcreate2(id_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                     ErrorKind::io, where, "cannot make the group"),
                 where, where + "/");
}

Dataset Group::create(const std::string& name, Element element, const std::vector<int64_t>& shape,
                      int64_t chunk_rows) {
    const std::string where = prefix_ + name;
    std::vector<hsize_t> extent(shape.begin(), shape.end());
    std::vector<hsize_t> limit = extent;
    // Times of creation would make equal results differ byte for byte.
    const Id properties =
        own(H5Pcreate(H5P_DATASET_CREATE), ErrorKind::internal, where, "H5Pcreate");
    check(H5Pset_obj_track_times(properties.get(), false), ErrorKind::internal, where, "times");
    if (chunk_rows > 0) {
        std::vector<hsize_t> chunk = extent;
        chunk[0] = static_cast<hsize_t>(chunk_rows);
        limit[0] = H5S_UNLIMITED;
        check(H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data()),
              ErrorKind::internal, where, "H5Pset_chunk");
    }
    const Id space =
        own(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), limit.data()),
            ErrorKind::internal, where, "H5Screate_simple");
    const Id type = file_type(element);
    return Dataset(own(H5Dcreate2(id_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                  properties.get(), H5P_DEFAULT),
                       ErrorKind::io, where, "cannot make the dataset"),
                   where);
}

Dataset Group::create_dataset(const std::string& name, Element element,
                              std::vector<int64_t> shape) {
    return create(name, element, shape, 0);
}

Dataset Group::create_extendable(const std::string& name, Element element,
                                 std::vector<int64_t> row_shape, int64_t chunk_rows) {
    require(chunk_rows > 0, "h5: an extendable dataset has chunks");
    row_shape.insert(row_shape.begin(), 0);
    return create(name, element, row_shape, chunk_rows);
}

// ---- files --------------------------------------------------------------------------------------

File::File(Id file, const std::filesystem::path& path)
    : Group(own(H5Gopen2(file.get(), "/", H5P_DEFAULT), ErrorKind::input, path.string(),
                "no root group"),
            path.string(), path.string() + ":/"),
      file_(std::move(file)),
      path_(path) {}

File File::open(const std::filesystem::path& path, bool writable) {
    prepare_library();
    check_openable(path, writable ? O_RDWR : O_RDONLY, "open");
    const Id access = access_properties(writable);
    Id file(H5Fopen(path.c_str(), writable ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access.get()),
            close_any);
    if (file.valid()) return File(std::move(file), path);
    const std::string reason = library_reason();
    check_lock(path, reason);
    if (H5Fis_hdf5(path.c_str()) <= 0)
        throw Error(ErrorKind::input, path.string() + ": not an HDF5 file");
    throw Error(ErrorKind::input,
                fmt::format("{}: truncated or damaged HDF5 file: {}", path.string(), reason));
}

File File::open(const std::filesystem::path& path) {
    return open(path, false);
}

File File::open_write(const std::filesystem::path& path) {
    return open(path, true);
}

File File::create(const std::filesystem::path& path) {
    prepare_library();
    check_openable(path, O_CREAT | O_WRONLY, "create");
    const Id access = access_properties(true);
    Id file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), close_any);
    if (!file.valid()) {
        const std::string reason = library_reason();
        check_lock(path, reason);
        throw Error(ErrorKind::io, fmt::format("{}: cannot create: {}", path.string(), reason));
    }
    return File(std::move(file), path);
}

void File::flush() {
    check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), ErrorKind::io, path_.string(), "cannot write");
}

void File::close() {
    flush();
    id_.reset();
    const int64_t open_objects = H5Fget_obj_count(file_.get(), H5F_OBJ_ALL);
    require(open_objects == 1, "h5: a file is closed after its objects");
    if (!file_.close()) fail(ErrorKind::io, path_.string(), "cannot close");
    sync_file(path_);
}

}  // namespace quadrille::h5
