// SPDX-License-Identifier: Apache-2.0
// The lock of OUT.parts: one run at a time, and none holds what another removed.
#include "io/results/run_lock.h"

#include "tests/support/expect_error.h"
#include "tests/support/interrupted_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fcntl.h>
#include <optional>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

namespace quadrille {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using RunLockTest = test::InterruptedRunTest;

namespace fs = std::filesystem;

TEST_F(RunLockTest, ASecondRunIsTurnedAwayWithHostAndProcess) {
    ResultWriter writer(options());
    const auto before = std::chrono::steady_clock::now();
    expect_error(
        ErrorKind::usage,
        {"generations.h5.parts is in use by process " + std::to_string(::getpid()) + " on"}, [&] {
            RunLock{parts(), Locking::required, 300ms};
        });
    EXPECT_GE(std::chrono::steady_clock::now() - before, 300ms);
    { const RunLock unlocked(parts(), Locking::off, 0ms); }
    complete(writer);
    expect_whole();
}

// The first run ends while the second waits for its lock: the second sees the result.
TEST_F(RunLockTest, ARunThatWaitedSeesTheResultOfTheOther) {
    std::optional<ResultWriter> first(std::in_place, options());
    std::thread ends([&] {
        std::this_thread::sleep_for(400ms);
        complete(*first);
        first.reset();
    });
    const int lock = ::open((parts() / "lock").c_str(), O_RDWR);
    ASSERT_GE(lock, 0);
    ASSERT_EQ(::flock(lock, LOCK_EX), 0);  // waits for the end: HDF5 is for one thread at a time
    ends.join();
    ::close(lock);
    expect_error(ErrorKind::usage, {"generations.h5 exists"}, [&] { start({}); });
    EXPECT_FALSE(fs::exists(parts()));
}

// The lock of a folder that a finished run removed is worth nothing: a new folder is made.
TEST_F(RunLockTest, ALockWithoutItsNameIsNotHeld) {
    fs::create_directory(parts());
    folder_.write("generations.h5.parts/lock", "");
    const int held = ::open((parts() / "lock").c_str(), O_RDWR);
    ASSERT_EQ(::flock(held, LOCK_EX), 0);
    std::thread ends([&] {
        std::this_thread::sleep_for(300ms);
        fs::remove_all(parts());
        ::close(held);
    });
    const RunLock lock(parts(), Locking::required, 5s);
    ends.join();
    EXPECT_TRUE(fs::exists(parts() / "lock"));
    const int other = ::open((parts() / "lock").c_str(), O_RDWR);
    EXPECT_NE(::flock(other, LOCK_EX | LOCK_NB), 0);
    ::close(other);
}

}  // namespace
}  // namespace quadrille
