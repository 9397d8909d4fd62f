// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/fatal.h"

#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <string_view>
#include <unistd.h>

namespace quadrille {
namespace {

constexpr std::chrono::seconds kHookTime{10};
constexpr std::chrono::seconds kAbortTime{5};
constexpr std::chrono::milliseconds kLastHookTime{500};

// std::terminate has no argument: the one pointer that must be reachable without an object.
std::atomic<Fatal*> active{nullptr};

[[noreturn]] void wait_for_the_end() {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void terminate_handler() {
    Fatal* const fatal = active.load();
    if (fatal == nullptr) std::abort();
    std::exception_ptr exception = std::current_exception();
    if (!exception) {
        exception = std::make_exception_ptr(
            Error(ErrorKind::internal, "std::terminate without an exception"));
    }
    fatal->end(exception);
}

// One write, so that lines of several ranks do not mix.
void print_line(const std::string& line) noexcept {
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t count = write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (count <= 0) return;
        done += static_cast<size_t>(count);
    }
}

std::string_view file_name(const char* path) {
    const std::string_view whole = path;
    const size_t slash = whole.rfind('/');
    return slash == std::string_view::npos ? whole : whole.substr(slash + 1);
}

}  // namespace

Fatal::Fatal(Rank rank, const Position& position, void (*abort)(int) noexcept)
    : rank_(std::move(rank)), position_(position), abort_(abort) {
    require(active.exchange(this) == nullptr, "one Fatal at a time");
    previous_ = std::set_terminate(terminate_handler);
}

Fatal::~Fatal() {
    std::set_terminate(previous_);
    active.store(nullptr);
}

void Fatal::end(std::exception_ptr exception) noexcept {
    end(as_error(std::move(exception)));
}

void Fatal::end(const Error& error) noexcept {
    std::string what;
    try {
        if (tell_ && !ending_.test()) tell_(error);
        what = fmt::format("{} error: {} ({}:{})", name(error.kind()), error.what(),
                           file_name(error.where().file_name()), error.where().line());
    } catch (...) {
        print_line("fatal error, and no memory left to name it\n");
    }
    stop(error.exit_code(), what);
}

void Fatal::stop(int code, const std::string& what) noexcept {
    thread_local bool ending_here = false;
    if (ending_here) {  // an exception on the way out
        abort_(code);
        std::_Exit(code);
    }
    if (ending_.test_and_set()) wait_for_the_end();
    ending_here = true;
    try {
        print_line(fmt::format("[rank {}/{} {}] {} at {}\n", rank_.rank, rank_.size, rank_.host,
                               what, position_.text()));
    } catch (...) {
        print_line("the end of this rank, and no memory left to name it\n");
    }
    guard_the_end(code);
    if (std::this_thread::get_id() == main_thread_) run_hooks();
    run_last_hook();
    hooks_done_.store(true);
    abort_(code);
    std::_Exit(code);
}

// Hooks may hang (a file system that is gone) and so may MPI_Abort (its daemon is gone): the end
// waits for neither for ever. The threads are never joined, this process ends with them.
void Fatal::guard_the_end(int code) noexcept {
    try {
        std::thread([this, code] {
            std::this_thread::sleep_for(kHookTime);
            if (!hooks_done_.load()) {
                std::thread([this, code] { abort_(code); }).detach();
                std::this_thread::sleep_for(kAbortTime);
            }
            std::_Exit(code);
        }).detach();
    } catch (...) {
        hooks_.clear();  // unguarded, only MPI_Abort is tried
    }
}

// What it frees may itself wait for a rank that is gone.
void Fatal::run_last_hook() noexcept {
    if (!last_hook_) return;
    try {
        const auto done = std::make_shared<std::promise<void>>();
        std::future<void> waited = done->get_future();
        std::thread([this, done] {
            last_hook_();
            done->set_value();
        }).detach();
        waited.wait_for(kLastHookTime);
    } catch (...) {  // no thread: the process ends without it
    }
}

void Fatal::run_hooks() noexcept {
    for (auto hook = hooks_.rbegin(); hook != hooks_.rend(); ++hook) {
        try {
            (*hook)();
        } catch (const std::exception& error) {
            print_line(fmt::format("[rank {}/{} {}] while ending: {}\n", rank_.rank, rank_.size,
                                   rank_.host, error.what()));
        } catch (...) {
            print_line("while ending: an unknown exception\n");
        }
    }
}

}  // namespace quadrille
