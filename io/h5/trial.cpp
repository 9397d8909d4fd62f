// SPDX-License-Identifier: Apache-2.0
#include "io/h5/trial.h"

#include "io/files.h"
#include "io/h5/h5.h"
#include "io/h5/seal.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <spawn.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 8;                      // groups in groups; links may go in circles
constexpr int64_t kElements = int64_t{1} << 16;  // read at once
constexpr rlim_t kSeconds = 10;                  // of processor time, and one more for
constexpr rlim_t kBytesPerSecond = 4 << 20;      // so many bytes
constexpr rlim_t kMemory = rlim_t{8} << 30;      // and four times the file
constexpr std::string_view kEnd = "end";
constexpr std::string_view kMemoryLimit = "memory";

std::string read_all(int file) {
    std::string text;
    std::array<char, 65536> block{};
    while (true) {
        const ssize_t count = ::read(file, block.data(), block.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return text;
        text.append(block.data(), static_cast<size_t>(count));
    }
}

// ---- the process --------------------------------------------------------------------------------

void tell(std::string line) {
    std::ranges::replace(line, '\n', ' ');
    line += '\n';
    for (size_t at = 0; at < line.size();) {
        const ssize_t count = ::write(STDOUT_FILENO, line.data() + at, line.size() - at);
        if (count < 0 && errno != EINTR) ::_exit(1);
        at += count < 0 ? 0 : static_cast<size_t>(count);
    }
}

void limit(__rlimit_resource_t resource, rlim_t value) {
    rlimit limits{};
    ::getrlimit(resource, &limits);
    limits.rlim_max = std::min(limits.rlim_max, value);
    limits.rlim_cur = limits.rlim_max;
    ::setrlimit(resource, &limits);
}

void set_limits(rlim_t bytes) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, kSeconds + bytes / kBytesPerSecond);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    limit(RLIMIT_AS, kMemory + 4 * bytes);
#endif
}

void read_dataset(const h5::Dataset& dataset) {
    if (dataset.shape().empty()) return;
    const int64_t width = std::max<int64_t>(dataset.row_elements(), 1);
    const int64_t rows = std::max<int64_t>(kElements / width, 1);
    for (int64_t first = 0; first < dataset.rows(); first += rows) {
        const int64_t count = std::min(rows, dataset.rows() - first);
        switch (dataset.type().kind) {
            case h5::TypeClass::integer:
                dataset.read_clamped(first, count);
                break;
            case h5::TypeClass::floating:
                dataset.read<double>(first, count);
                break;
            case h5::TypeClass::string:
                dataset.read_strings(first, count);
                break;
            case h5::TypeClass::other:
                return;
        }
    }
}

// What is wrong with one object does not keep the others from being read.
template <class Read>
void attempt(const std::string& path, Read&& read) {
    tell(path);
    try {
        read();
    } catch (const Error&) {
        // The reader of the file finds it too, and says it better.
    }
}

void read_group(const h5::Group& group, const std::string& path, int depth) {
    attempt(path.empty() ? "/" : path, [&] {
        group.attributes();
        if (depth == kDeepest) return;
        for (const std::string& name : group.names()) {
            const std::string full = path + "/" + name;
            attempt(full, [&] {
                if (group.has_group(name)) read_group(group.group(name), full, depth + 1);
                if (!group.has_dataset(name)) return;
                const h5::Dataset dataset = group.dataset(name);
                dataset.attributes();
                read_dataset(dataset);
            });
        }
    });
}

// ---- who starts it ------------------------------------------------------------------------------

std::vector<fs::path> unsealed(const std::vector<fs::path>& files) {
    std::vector<fs::path> out;
    std::error_code error;
    for (const fs::path& file : files)
        if (fs::is_regular_file(file, error) && ::access(file.c_str(), R_OK) == 0 &&
            seal_of(file) == Seal::none)
            out.push_back(file);
    return out;
}

int64_t checked(int64_t result, const char* what) {
    if (result >= 0) return result;
    throw Error(ErrorKind::io,
                fmt::format("cannot start a process that reads files through: {}: {}", what,
                            system_reason(errno)));
}

struct Descriptor {
    int file = -1;
    ~Descriptor() { reset(); }
    void reset() {
        if (file >= 0) ::close(std::exchange(file, -1));
    }
};

// Signals as a fresh program expects them, whatever this process has made of them.
class SpawnSettings {
  public:
    SpawnSettings(int input, int output) {
        ::posix_spawn_file_actions_init(&actions_);
        ::posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO);
        ::posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
        ::posix_spawnattr_init(&attributes_);
        sigset_t signals;
        ::sigfillset(&signals);
        ::posix_spawnattr_setsigdefault(&attributes_, &signals);
        ::sigemptyset(&signals);
        ::posix_spawnattr_setsigmask(&attributes_, &signals);
        ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    }
    ~SpawnSettings() {
        ::posix_spawn_file_actions_destroy(&actions_);
        ::posix_spawnattr_destroy(&attributes_);
    }
    SpawnSettings(const SpawnSettings&) = delete;
    SpawnSettings& operator=(const SpawnSettings&) = delete;

    pid_t start(const fs::path& program) const {
        std::string name = "quadrille";
        std::string argument = kTrialArgument;
        std::array<char*, 3> arguments = {name.data(), argument.data(), nullptr};
        pid_t process = -1;
        errno = ::posix_spawn(&process, program.c_str(), &actions_, &attributes_, arguments.data(),
                              environ);
        checked(errno == 0 ? 0 : -1, program.c_str());
        return process;
    }

  private:
    posix_spawn_file_actions_t actions_{};
    posix_spawnattr_t attributes_{};
};

// Why the process ended before its last line. Its status is lost where somebody ignores SIGCHLD.
std::string cause(pid_t process, bool memory) {
    int status = 0;
    pid_t ended = -1;
    while ((ended = ::waitpid(process, &status, 0)) < 0 && errno == EINTR) {
    }
    if (memory) return "needs more memory than a file of its size can";
    if (ended < 0 || !WIFSIGNALED(status)) return "ends the HDF5 library";
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU || signal == SIGKILL) return "does not come to an end";
    return fmt::format("crashes the HDF5 library (signal {})", signal);
}

}  // namespace

int run_trial() {
    const std::string names = read_all(STDIN_FILENO);
    std::vector<fs::path> files;
    for (size_t at = 0; at < names.size(); at += files.back().string().size() + 1)
        files.emplace_back(names.c_str() + at);
    rlim_t bytes = 0;
    std::error_code error;
    for (const fs::path& file : files)
        if (const auto size = fs::file_size(file, error); !error) bytes += size;
    set_limits(bytes);
    try {
        for (size_t i = 0; i < files.size(); ++i) {
            tell(fmt::format("{}", i));
            attempt("its start", [&] { read_group(h5::File::open(files[i]), "", 0); });
        }
    } catch (const std::bad_alloc&) {
        tell(std::string(kMemoryLimit));
        return 1;
    }
    tell(std::string(kEnd));
    return 0;
}

void try_files(const std::vector<fs::path>& all, const fs::path& program) {
    const std::vector<fs::path> files = unsealed(all);
    if (files.empty()) return;
    const Descriptor input{
        static_cast<int>(checked(::memfd_create("files", MFD_CLOEXEC), "memfd_create"))};
    std::string names;
    for (const fs::path& file : files) names += fs::absolute(file).string() + '\0';
    for (size_t at = 0; at < names.size();)
        at += static_cast<size_t>(
            checked(::write(input.file, names.data() + at, names.size() - at), "write"));
    checked(::lseek(input.file, 0, SEEK_SET), "lseek");
    std::array<int, 2> ends{};
    checked(::pipe2(ends.data(), O_CLOEXEC), "pipe");
    const Descriptor output{ends[0]};
    Descriptor written{ends[1]};
    const pid_t process = SpawnSettings(input.file, written.file).start(program);
    written.reset();

    const std::string told = read_all(output.file);
    std::string_view lines(told);
    std::string_view last;
    size_t file = 0;
    bool memory = false;
    while (!lines.empty()) {
        const std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(lines.size(), line.size() + 1));
        memory = line == kMemoryLimit;
        const bool number = !line.empty() && line.front() >= '0' && line.front() <= '9';
        if (number) std::from_chars(line.data(), line.data() + line.size(), file);
        if (!number && !memory) last = line;
    }
    const std::string reason = cause(process, memory);
    if (last == kEnd) return;
    throw Error(ErrorKind::input,
                fmt::format("{}: damaged: reading {} {}; it bears no seal, so it was read in a "
                            "process of its own first",
                            files[std::min(file, files.size() - 1)].string(),
                            last.empty() ? "it" : last, reason));
}

}  // namespace quadrille
