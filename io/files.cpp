// SPDX-License-Identifier: Apache-2.0
#include "io/files.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace quadrille {
namespace {

void sync_path(const std::filesystem::path& path, int flags) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC);
    if (file < 0)
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot open: {}", path.string(), system_reason(errno)));
    const int result = ::fsync(file);
    const int reason = errno;
    ::close(file);
    // Some network file systems cannot sync a folder; the rename itself is then all there is.
    const bool unsupported = (flags & O_DIRECTORY) != 0 && (reason == EINVAL || reason == ENOTSUP);
    if (result != 0 && !unsupported)
        throw Error(ErrorKind::io,
                    fmt::format("{}: fsync failed: {}", path.string(), system_reason(reason)));
}

}  // namespace

FileHandle::FileHandle(std::filesystem::path path, int flags)
    : path_(std::move(path)), file_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
    if (file_ < 0) fail("cannot open");
}

FileHandle::~FileHandle() {
    if (file_ >= 0) ::close(file_);
}

void FileHandle::fail(const char* what) const {
    throw Error(ErrorKind::io,
                fmt::format("{}: {}: {}", path_.string(), what, system_reason(errno)));
}

int64_t FileHandle::size() const {
    struct stat info {};
    if (::fstat(file_, &info) != 0) fail("cannot tell the size");
    return info.st_size;
}

size_t FileHandle::read(int64_t at, std::span<char> out) const {
    size_t done = 0;
    while (done < out.size()) {
        const ssize_t count =
            ::pread(file_, out.data() + done, out.size() - done, at + static_cast<int64_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            fail(fmt::format("cannot read at byte {}", at + static_cast<int64_t>(done)).c_str());
        }
        if (count == 0) break;
        done += static_cast<size_t>(count);
    }
    return done;
}

void FileHandle::write(int64_t at, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), at);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail("cannot write");
        bytes.remove_prefix(static_cast<size_t>(count));
        at += count;
    }
}

void FileHandle::resize(int64_t size) {
    if (::ftruncate(file_, size) != 0) fail("cannot change the size");
}

void FileHandle::close() {
    if (::close(std::exchange(file_, -1)) != 0) fail("cannot close");
}

std::string system_reason(int error_number) {
    return std::generic_category().message(error_number);
}

void sync_file(const std::filesystem::path& path) {
    sync_path(path, O_RDONLY);
}

void sync_folder(const std::filesystem::path& path) {
    sync_path(path, O_RDONLY | O_DIRECTORY);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::error_code error;
    std::filesystem::rename(from, to, error);
    if (error)
        throw Error(ErrorKind::io, fmt::format("cannot rename {} to {}: {}", from.string(),
                                               to.string(), error.message()));
    sync_folder(folder_of(to));
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
    const std::filesystem::path unfinished = path.string() + ".tmp";
    FileHandle file(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(0, text);
    file.close();
    sync_file(unfinished);
    rename_durably(unfinished, path);
}

bool create_folder(const std::filesystem::path& path) {
    if (::mkdir(path.c_str(), 0777) == 0) return true;
    if (errno == EEXIST) return false;
    throw Error(ErrorKind::io,
                fmt::format("cannot make the folder {}: {}", path.string(), system_reason(errno)));
}

}  // namespace quadrille
