// SPDX-License-Identifier: Apache-2.0
// Files of the system: what makes them durable (fsync of files and folders, renames), folders,
// plain reads and writes. Every failure is an Error{io} that names the path and the system's
// reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace quadrille {

// An open file, closed by the destructor.
class FileHandle {
  public:
    // `flags` as of open(2); a new file gets the mode 0666 less the umask.
    FileHandle(std::filesystem::path path, int flags);
    ~FileHandle();
    FileHandle(FileHandle&& other) noexcept
        : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
    FileHandle& operator=(FileHandle&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(file_, other.file_);
        return *this;
    }

    int get() const { return file_; }
    const std::filesystem::path& path() const { return path_; }
    int64_t size() const;
    // Bytes read: fewer than asked for only at the end of the file.
    size_t read(int64_t at, std::span<char> out) const;
    void write(int64_t at, std::string_view bytes);
    void resize(int64_t size);
    void close();  // sees what the destructor would not: a failure

  private:
    [[noreturn]] void fail(const char* what) const;

    std::filesystem::path path_;
    int file_ = -1;
};

void sync_file(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);
// Renames and fsyncs the folder of `to`: after it returns the new name survives a power cut.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// Writes `text` to PATH.tmp, syncs it and gives it the name.
void write_durably(const std::filesystem::path& path, std::string_view text);
// Makes one folder; its parent must be there. False: it was there already.
bool create_folder(const std::filesystem::path& path);
// The folder that holds `path` ("." for a bare name).
std::filesystem::path folder_of(const std::filesystem::path& path);
std::string system_reason(int error_number);

}  // namespace quadrille
