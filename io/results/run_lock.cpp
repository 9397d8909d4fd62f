// SPDX-License-Identifier: Apache-2.0
#include "io/results/run_lock.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{50};
constexpr int64_t kLongest = int64_t{1} << 20;  // bytes of the file that are looked at

std::string host_name() {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
    return name.data();
}

std::string read_all(const FileHandle& file) {
    std::string text(static_cast<size_t>(std::min(file.size(), kLongest)), '\0');
    text.resize(file.read(0, text));
    return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    }
    return lines;
}

std::string holder(const FileHandle& file) {
    const std::string text = read_all(file);
    const std::vector<std::string_view> lines = lines_of(text);
    if (lines.empty()) return "another run";
    const std::string_view last = lines.back();
    const size_t host = last.find(' ');
    if (host == std::string_view::npos) return "another run";
    const size_t process = last.find(' ', host + 1);
    return fmt::format("process {} on {}", last.substr(host + 1, process - host - 1),
                       last.substr(0, host));
}

// A run that ends removes its folder: the file we hold may have lost its name.
bool still_named(const FileHandle& file) {
    struct stat held {};
    struct stat named {};
    return ::fstat(file.get(), &held) == 0 && ::stat(file.path().c_str(), &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

// True: held. False: another process holds it.
bool try_lock(const FileHandle& file, Locking locking) {
    if (locking == Locking::off) return true;
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno == EWOULDBLOCK) return false;
        if (locking == Locking::best_effort) return true;
        throw Error(ErrorKind::io,
                    fmt::format("{}: this file system gives no lock ({}); if no other run writes "
                                "here, set HDF5_USE_FILE_LOCKING=FALSE",
                                file.path().string(), system_reason(errno)));
    }
    return true;
}

int64_t records_of(std::string_view line) {
    line.remove_prefix(std::min(line.rfind(' ') + 1, line.size()));
    int64_t records = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), records);
    return error == std::errc{} ? records : 0;
}

constexpr const char* kName = "lock";

bool is_group_lock(const std::string& name) {
    const std::string prefix = fmt::format("{}-", kName);
    return name.size() > prefix.size() && name.starts_with(prefix) &&
           std::all_of(name.begin() + std::ssize(prefix), name.end(),
                       [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

RunLock::RunLock(const fs::path& folder, Locking locking, std::chrono::milliseconds patience,
                 int group) {
    acquire(folder, locking, patience, group == 0 ? kName : fmt::format("{}-{}", kName, group));
    read_starts();
    file_->resize(at_);
    file_->write(at_, line());
}

int64_t RunLock::settle_groups(const fs::path& folder, Locking locking,
                               std::chrono::milliseconds patience) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (is_group_lock(name)) names.push_back(name);
    }
    if (error)
        throw Error(ErrorKind::io,
                    fmt::format("cannot list the folder {}: {}", folder.string(), error.message()));
    int64_t records = 0;
    for (const std::string& name : names) {
        RunLock lock;
        lock.acquire(folder, locking, patience, name);
        lock.read_starts();
        records += lock.computed();
    }
    return records;
}

bool RunLock::is_lock(const std::string& name) {
    return name == kName || is_group_lock(name);
}

void RunLock::acquire(const fs::path& folder, Locking locking, std::chrono::milliseconds patience,
                      const std::string& name) {
    const Clock::time_point end = Clock::now() + patience;
    while (true) {
        const bool made = create_folder(folder);
        std::error_code error;
        if (!made && !fs::is_directory(folder, error))
            throw Error(ErrorKind::usage,
                        folder.string() + " is there and no folder, the parts of the run need it");
        try {
            file_.emplace(folder / name, O_RDWR | O_CREAT);
            const bool held = try_lock(*file_, locking);
            if (held && still_named(*file_)) return;
            if (!held && Clock::now() >= end)
                throw Error(ErrorKind::usage,
                            fmt::format("{} is in use by {}", folder.string(), holder(*file_)));
        } catch (const Error& reason) {
            if (made && reason.kind() == ErrorKind::io) {  // nobody else's yet
                fs::remove(folder / name, error);
                fs::remove(folder, error);
                throw;
            }
            if (fs::exists(folder, error)) throw;  // else a run that ended has removed it
        }
        file_.reset();
        std::this_thread::sleep_for(kRetry);
    }
}

// A line that a crash of the machine has cut counts as a start without records.
void RunLock::read_starts() {
    const std::string text = read_all(*file_);
    const std::vector<std::string_view> lines = lines_of(text);
    restarts_ = std::ssize(lines);
    for (const std::string_view start : lines) computed_before_ += records_of(start);
    at_ = static_cast<int64_t>(text.rfind('\n') + 1);
}

// The width is fixed: the line is written again and again.
std::string RunLock::line() const {
    return fmt::format("{} {} {:20}\n", host_name(), ::getpid(), computed_);
}

void RunLock::count(int64_t records) {
    computed_ += records;
    file_->write(at_, line());
}

void RunLock::withdraw() noexcept {
    [[maybe_unused]] const int ignored = ::ftruncate(file_->get(), at_);
}

}  // namespace quadrille
