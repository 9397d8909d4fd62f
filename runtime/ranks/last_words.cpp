// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/last_words.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <cstring>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace quadrille {
namespace {

constexpr size_t kStack = size_t{64} << 10;

// A signal handler has no argument of ours.
std::atomic<LastWords*> active{nullptr};

}  // namespace

LastWords::LastWords(const std::filesystem::path& file, const std::string& prefix)
    : file_(file.string()), prefix_(prefix + "\t"), stack_(kStack) {
    require(active.exchange(this) == nullptr, "one LastWords at a time");
    stack_t stack{};
    stack.ss_sp = stack_.data();
    stack.ss_size = stack_.size();
    ::sigaltstack(&stack, &previous_stack_);
    struct sigaction action {};
    action.sa_sigaction = &LastWords::on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) {
        causes_[i] = fmt::format("signal {} ({})", kSignals[i], ::strsignal(kSignals[i]));
        ::sigaction(kSignals[i], &action, &previous_[i]);
    }
}

LastWords::~LastWords() {
    give_back();
    ::sigaltstack(&previous_stack_, nullptr);
    active.store(nullptr);
}

void LastWords::set(std::string_view text) {
    std::string& next = texts_[text_.load() == texts_.data() ? 1 : 0];
    next = text;
    text_.store(&next);
}

// Runs in a signal handler too: nothing but system calls.
void LastWords::write(const char* cause) noexcept {
    if (written_.test_and_set()) return;
    const std::string* text = text_.load();
    if (text == nullptr || text->empty()) return;
    const int file = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    const auto piece = [](const char* begin, size_t size) {
        return iovec{.iov_base = const_cast<char*>(begin), .iov_len = size};
    };
    const std::array pieces{piece(prefix_.data(), prefix_.size()), piece(cause, std::strlen(cause)),
                            piece("\t", 1), piece(text->data(), text->size()), piece("\n", 1)};
    if (::writev(file, pieces.data(), static_cast<int>(pieces.size())) > 0) ::fsync(file);
    ::close(file);
}

void LastWords::give_back() noexcept {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous_[i], nullptr);
}

void LastWords::on_fault(int signal, siginfo_t* info, void* /*context*/) {
    LastWords* const words = active.load();
    if (words == nullptr) {
        ::signal(signal, SIG_DFL);
    } else {
        const bool sent_to_us = info->si_code <= 0 && info->si_pid != ::getpid();
        for (size_t i = 0; i < kSignals.size() && !sent_to_us; ++i) {
            if (kSignals[i] == signal) words->write(words->causes_[i].c_str());
        }
        words->give_back();
    }
    ::raise(signal);  // once this handler returns
}

}  // namespace quadrille
