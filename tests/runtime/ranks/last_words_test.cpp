// SPDX-License-Identifier: Apache-2.0
// What a process leaves behind as it ends: each case ends a child of its own.
#include "runtime/ranks/last_words.h"

#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace quadrille {
namespace {

using test::TempFolder;

std::string text_of(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// The signal that ended a child that ran `body`, or minus its exit code.
int end_of_child(const std::function<void()>& body, int sent = 0) {
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit no_core{0, 0};
        ::setrlimit(RLIMIT_CORE, &no_core);
        body();
        ::_exit(3);
    }
    if (sent != 0) {
        int status = 0;
        ::waitpid(child, &status, WUNTRACED);  // it stops itself once it is ready
        ::kill(child, sent);
        ::kill(child, SIGCONT);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

int overflow(volatile char* above, int64_t depth) {
    volatile char here[4096];
    here[0] = above[0];
    return depth == 0 ? 0 : overflow(here, depth - 1) + here[0];
}

class LastWordsTest : public ::testing::Test {
  protected:
    std::filesystem::path file() const { return folder_.path() / "words"; }

    int ends(const std::function<void(LastWords&)>& body, int sent = 0) const {
        return end_of_child(
            [&] {
                LastWords words(file(), "7");
                words.set("0/1/0");
                words.set("0/1/0 0/2/0");
                body(words);
            },
            sent);
    }

    TempFolder folder_;
};

TEST_F(LastWordsTest, FaultsLeaveALineAndEndTheProcessAsEver) {
    EXPECT_EQ(ends([](LastWords&) { ::raise(SIGSEGV); }), SIGSEGV);
    EXPECT_EQ(ends([](LastWords&) { std::abort(); }), SIGABRT);
    EXPECT_EQ(text_of(file()),
              "7\tsignal 11 (Segmentation fault)\t0/1/0 0/2/0\n"
              "7\tsignal 6 (Aborted)\t0/1/0 0/2/0\n");
}

TEST_F(LastWordsTest, AFullStackLeavesALine) {
    EXPECT_EQ(ends([](LastWords&) {
                  volatile char first[1] = {1};
                  overflow(first, int64_t{1} << 40);
              }),
              SIGSEGV);
    EXPECT_EQ(text_of(file()), "7\tsignal 11 (Segmentation fault)\t0/1/0 0/2/0\n");
}

TEST_F(LastWordsTest, SignalsOfOthersLeaveNone) {
    for (const int signal : {SIGSEGV, SIGABRT, SIGKILL}) {
        EXPECT_EQ(ends([](LastWords&) { ::raise(SIGSTOP); }, signal), signal);
    }
    EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(LastWordsTest, OneLineAtMostAndNoneWhereNothingRuns) {
    EXPECT_EQ(ends([](LastWords& words) {
                  words.write("out of memory");
                  words.write("and again");
                  std::abort();
              }),
              SIGABRT);
    EXPECT_EQ(text_of(file()), "7\tout of memory\t0/1/0 0/2/0\n");
    std::filesystem::remove(file());
    EXPECT_EQ(ends([](LastWords& words) {
                  words.set("");
                  ::raise(SIGFPE);
              }),
              SIGFPE);
    EXPECT_EQ(ends([](LastWords&) {}), -3);
    EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(LastWordsTest, AFileThatCannotBeWrittenChangesNothing) {
    std::filesystem::create_directory(file());
    EXPECT_EQ(ends([](LastWords&) { ::raise(SIGBUS); }), SIGBUS);
}

}  // namespace
}  // namespace quadrille
