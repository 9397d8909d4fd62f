// SPDX-License-Identifier: Apache-2.0
#include "runtime/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sys/ioctl.h>
#include <system_error>
#include <unistd.h>

namespace quadrille {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{10};
constexpr int64_t kWidestBar = 30;

int64_t columns_of(std::FILE* file) {
    winsize size{};
    if (ioctl(fileno(file), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

// mpirun hands on what its ranks say through pipes; what it says itself may go to a terminal.
bool launcher_on_terminal() {
    const std::filesystem::path parent = fmt::format("/proc/{}", getppid());
    std::string name;
    std::getline(std::ifstream(parent / "comm"), name);
    constexpr std::array kLaunchers = {"mpirun", "mpiexec", "orterun", "prterun"};
    if (std::ranges::find(kLaunchers, name) == kLaunchers.end()) return false;
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(parent / "fd" / "2", error).string();
    return !error && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

// "12/100 records, 345 tokens/s, accept length 1.92, 1 min 05 s left"
std::string describe(const Progress& now, const Progress& first, double seconds) {
    std::string text = fmt::format("{}/{} records", now.done, now.total);
    if (seconds > 0.0 && now.tokens > first.tokens) {
        text += fmt::format(", {}",
                            format_rate(static_cast<double>(now.tokens - first.tokens) / seconds));
    }
    if (now.accept_length > 0.0) text += fmt::format(", accept length {:.2f}", now.accept_length);
    if (seconds > 0.0 && now.done > first.done && now.done < now.total) {
        const double left = seconds * static_cast<double>(now.total - now.done) /
                            static_cast<double>(now.done - first.done);
        if (left < 1e8) {
            text += fmt::format(", {} left",
                                format_duration(std::chrono::seconds(static_cast<int64_t>(left))));
        }
    }
    return text;
}

std::string bar_of(int64_t done, int64_t total, int64_t width) {
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    const auto filled =
        std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(width) * part), 0, width);
    std::string bar = "[";
    bar.append(static_cast<size_t>(filled), '=');
    bar.append(static_cast<size_t>(width - filled), ' ');
    return bar + "] ";
}

}  // namespace

std::string format_duration(std::chrono::seconds time) {
    const int64_t seconds = std::max<int64_t>(time.count(), 0);
    if (seconds < 60) return fmt::format("{} s", seconds);
    if (seconds < 3600) return fmt::format("{} min {:02} s", seconds / 60, seconds % 60);
    return fmt::format("{} h {:02} min", seconds / 3600, seconds / 60 % 60);
}

std::string format_rate(double per_second) {
    return per_second < 10.0 ? fmt::format("{:.1f} tokens/s", per_second)
                             : fmt::format("{:.0f} tokens/s", per_second);
}

// A failure has no place to be told: the next write may succeed.
void show(std::FILE* to, std::string_view text) noexcept {
    std::fwrite(text.data(), 1, text.size(), to);
    std::fflush(to);
    std::clearerr(to);
}

Log::Log(bool shown, std::FILE* to)
    : shown_(shown),
      to_(to),
      terminal_(isatty(fileno(to)) == 1 || (to == stderr && launcher_on_terminal())) {}

Log::~Log() {
    if (bar_on_line_) std::fputc('\n', to_);
}

void Log::clear_bar() {
    if (bar_on_line_) std::fputs("\r\x1b[K", to_);
    bar_on_line_ = false;
}

void Log::notice(std::string_view text) {
    if (!shown_) return;
    const bool redraw = bar_on_line_;
    clear_bar();
    show(to_, fmt::format("quadrille: {}\n", text));
    if (redraw) {
        std::fputs(bar_.c_str(), to_);
        bar_on_line_ = true;
    }
    std::fflush(to_);
}

void Log::progress(const Progress& progress, Clock::time_point now) {
    if (!shown_) return;
    if (!started_) {
        started_ = true;
        first_ = progress;
        start_ = last_ = now;
        if (!terminal_) return;  // nothing to tell yet
    } else if (now - last_ < (terminal_ ? Clock::duration(kBarInterval) : kLineInterval)) {
        return;
    }
    print(progress, now);
}

void Log::finish(const Progress& progress, Clock::time_point now) {
    if (!shown_) return;
    print(progress, now);
    if (bar_on_line_) std::fputc('\n', to_);
    bar_on_line_ = false;
    std::fflush(to_);
}

void Log::print(const Progress& progress, Clock::time_point now) {
    last_ = now;
    const double seconds = started_ ? std::chrono::duration<double>(now - start_).count() : 0.0;
    const std::string text = describe(progress, first_, seconds);
    if (!terminal_) {
        show(to_, fmt::format("quadrille: {}\n", text));
        std::fflush(to_);
        return;
    }
    draw(text, progress.done, progress.total);
}

void Log::loading(int64_t done, int64_t total, Clock::time_point now) {
    constexpr int64_t kWorthANotice = 1'000'000'000;
    if (!shown_) return;
    if (done == 0) loading_start_ = loading_last_ = now;
    const double seconds = std::chrono::duration<double>(now - loading_start_).count();
    const double rate = seconds > 0 ? 1e-9 * static_cast<double>(done) / seconds : 0.0;
    if (done == total) {
        clear_bar();
        if (total < kWorthANotice) return;
        return notice(fmt::format("weights: {:.1f} GB read in {:.1f} s, {:.2f} GB/s",
                                  1e-9 * static_cast<double>(total), seconds, rate));
    }
    if (now - loading_last_ < (terminal_ ? Clock::duration(kBarInterval) : kLineInterval)) return;
    loading_last_ = now;
    const std::string text =
        fmt::format("weights: {:.1f} of {:.1f} GB, {:.2f} GB/s", 1e-9 * static_cast<double>(done),
                    1e-9 * static_cast<double>(total), rate);
    terminal_ ? draw(text, done, total) : notice(text);
}

void Log::draw(const std::string& text, int64_t done, int64_t total) {
    // The line must not wrap, or "\r" no longer returns to its start.
    const int64_t room = columns_of(to_) - 1;
    const int64_t width = std::min(room - std::ssize(text) - 3, kWidestBar);
    bar_ = width >= 5 ? bar_of(done, total, width) + text
                      : text.substr(0, static_cast<size_t>(std::max<int64_t>(room, 0)));
    clear_bar();
    std::fputs(bar_.c_str(), to_);
    bar_on_line_ = true;
    std::fflush(to_);
}

}  // namespace quadrille
