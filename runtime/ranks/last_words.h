// SPDX-License-Identifier: Apache-2.0
// A line that a process adds to a file as it ends by itself: at a fault (SIGSEGV, SIGBUS, SIGFPE,
// SIGILL, SIGABRT of its own), or where it is told to (an error that ends it). A process that
// another one ends leaves no line, whatever the signal.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

class LastWords {
  public:
    // The line is "PREFIX<tab>CAUSE<tab>TEXT". One object in the process at a time, made on the
    // main thread once MPI has set its own handlers, which run after these.
    LastWords(const std::filesystem::path& file, const std::string& prefix);
    ~LastWords();
    LastWords(const LastWords&) = delete;
    LastWords& operator=(const LastWords&) = delete;

    // From here on TEXT is this; "": no line would be written. By one thread.
    void set(std::string_view text);
    // Adds the line, the first time. Where the file cannot be written nothing happens.
    void write(const char* cause) noexcept;

  private:
    static constexpr std::array<int, 5> kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

    static void on_fault(int signal, siginfo_t* info, void* context);
    void give_back() noexcept;  // the handlers that were there

    std::string file_;
    std::string prefix_;
    std::array<std::string, kSignals.size()> causes_;
    std::array<std::string, 2> texts_;  // the one that counts, and the next
    std::atomic<const std::string*> text_{nullptr};
    std::atomic_flag written_ = ATOMIC_FLAG_INIT;
    std::vector<char> stack_;  // of the handlers: a fault may be a full stack
    stack_t previous_stack_{};
    std::array<struct sigaction, kSignals.size()> previous_{};
};

}  // namespace quadrille
