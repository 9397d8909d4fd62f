// SPDX-License-Identifier: Apache-2.0
// The one way a job dies after start-up. An error on one rank leaves the others waiting for it, so
// nothing may unwind (destructors could wait too): one line is printed, what can be saved is
// saved, and MPI_Abort ends all ranks with the error's code.
#pragma once

#include "kernels/error.h"
#include "runtime/ranks/position.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quadrille {

class Fatal {
  public:
    // The line that is printed names the rank so.
    struct Rank {
        int rank = 0;
        int size = 1;
        std::string host;
    };
    // `abort(code)` must not return; `position` outlives this. Also becomes the terminate handler:
    // one object in the process at a time, made on the main thread.
    Fatal(Rank rank, const Position& position, void (*abort)(int) noexcept);
    ~Fatal();
    Fatal(const Fatal&) = delete;
    Fatal& operator=(const Fatal&) = delete;

    // `hook` runs on the way out, the last added first, if the dying thread is the main thread (a
    // hook would race with it otherwise). It must not wait for other ranks. It gets 10 s.
    void at_end(std::function<void()> hook) { hooks_.push_back(std::move(hook)); }

    // `hook` runs last on the way out, whichever thread dies: it frees what would keep the process
    // from ending. It gets half a second. Set it before other threads can die.
    void at_abort(std::function<void()> hook) { last_hook_ = std::move(hook); }

    // `tell` hears of the error that ends the process, before anything else happens; on the thread
    // that dies. Set it before other threads can die.
    void on_error(std::function<void(const Error&)> tell) { tell_ = std::move(tell); }

    // Prints "[rank 2/4 host] io error: what (file:line) at step 118, layer 3, op moe", runs the
    // hooks, aborts. A second thread that dies meanwhile waits in silence.
    [[noreturn]] void end(const Error& error) noexcept;
    [[noreturn]] void end(std::exception_ptr exception) noexcept;
    // Ends likewise without an error: prints "[rank 2/4 host] what at step …", aborts with `code`.
    [[noreturn]] void stop(int code, const std::string& what) noexcept;

    // Runs `body` (the part of a job between start-up and its end) and returns its result; an
    // exception that leaves it ends the job here, while everything it could wait for still lives.
    template <class Body>
    auto guard(Body&& body) {
        try {
            return std::forward<Body>(body)();
        } catch (...) {
            end(std::current_exception());
        }
    }

  private:
    void guard_the_end(int code) noexcept;
    void run_hooks() noexcept;
    void run_last_hook() noexcept;

    Rank rank_;
    const Position& position_;
    void (*abort_)(int) noexcept;
    std::vector<std::function<void()>> hooks_;
    std::function<void()> last_hook_;
    std::function<void(const Error&)> tell_;
    std::thread::id main_thread_ = std::this_thread::get_id();
    std::atomic_flag ending_ = ATOMIC_FLAG_INIT;
    std::atomic<bool> hooks_done_{false};
    std::terminate_handler previous_ = nullptr;
};

}  // namespace quadrille
