// SPDX-License-Identifier: Apache-2.0
// What a job tells the user while it runs, on standard error and from rank 0 only: notices, and
// progress as a bar on a terminal or as a line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace quadrille {

struct Progress {
    int64_t done = 0;   // records
    int64_t total = 0;  // records
    int64_t tokens = 0;
    double accept_length = 0.0;  // 0: no drafter, not shown
};

class Log {
  public:
    using Clock = std::chrono::steady_clock;

    // `shown`: this rank prints (rank 0). `to` stays open as long as the log.
    explicit Log(bool shown, std::FILE* to = stderr);
    ~Log();
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    // One line, "quadrille: ..."; a bar is drawn anew below it.
    void notice(std::string_view text);
    // Call as often as convenient: printed at most 10 times a second on a terminal, else every
    // 10 s. Rates and the remaining time count from the first call.
    void progress(const Progress& progress, Clock::time_point now = Clock::now());
    // Weights on their way to the backend: `done` of `total` bytes, first with 0, last with all.
    // Printed as often as the progress; the end is a notice of its own for 1 GB or more.
    void loading(int64_t done, int64_t total, Clock::time_point now = Clock::now());
    // The last state of the progress, printed whatever the time; ends a bar's line.
    void finish(const Progress& progress, Clock::time_point now = Clock::now());

  private:
    void print(const Progress& progress, Clock::time_point now);
    void draw(const std::string& text, int64_t done, int64_t total);
    void clear_bar();

    bool shown_;
    std::FILE* to_;
    bool terminal_;
    bool bar_on_line_ = false;
    std::string bar_;
    bool started_ = false;
    Progress first_;
    Clock::time_point start_;
    Clock::time_point last_;
    Clock::time_point loading_start_;
    Clock::time_point loading_last_;
};

// Writes text for people to read. A stream that takes nothing (a full disk, a closed pipe or
// terminal) is passed over: no job ends of it.
void show(std::FILE* to, std::string_view text) noexcept;

// "345 tokens/s", "1 h 02 min" and the like, as the progress and the summaries print them.
std::string format_duration(std::chrono::seconds time);
std::string format_rate(double per_second);

}  // namespace quadrille
