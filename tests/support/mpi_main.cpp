// SPDX-License-Identifier: Apache-2.0
// gtest's main for tests that run on several ranks. Rank 0 prints; after each test it gathers what
// failed on the others, in rank order, and fails with it, so that all ranks end with one code.
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

MpiSession* the_session = nullptr;

// Collects this rank's failures of the running test; at its end rank 0 takes over the others'.
class Gatherer : public testing::EmptyTestEventListener {
  public:
    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (result.passed() || result.skipped()) return;
        failures_ += std::string(result.file_name() != nullptr ? result.file_name() : "?") + ":" +
                     std::to_string(result.line_number()) + ": " + result.message() + "\n";
    }

    void OnTestEnd(const testing::TestInfo&) override {
        Communicator& world = session().world();
        const int64_t longest = world.max_host(std::ssize(failures_));
        std::string all(static_cast<size_t>(longest * world.size()), '\0');
        failures_.resize(static_cast<size_t>(longest), '\0');
        world.all_gather_host(all.data(), failures_.data(), longest);
        failures_.clear();
        for (int rank = 0; rank < world.size() && longest > 0; ++rank) {
            const char* const text = all.data() + rank * longest;
            if (*text == '\0' || rank == world.rank()) continue;
            ADD_FAILURE() << "on rank " << rank << ": "
                          << std::string(text, static_cast<size_t>(longest)).c_str();
        }
        failures_.clear();
    }

  private:
    std::string failures_;
};

}  // namespace

MpiSession& session() {
    return *the_session;
}

}  // namespace quadrille::test

int main(int argc, char** argv) {
    quadrille::MpiSession session;
    quadrille::test::the_session = &session;
    testing::InitGoogleTest(&argc, argv);
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    if (session.rank() != 0) {  // rank 0 prints and writes the report (--gtest_output) for all
        delete listeners.Release(listeners.default_result_printer());
        delete listeners.Release(listeners.default_xml_generator());
    }
    // Last in the list: at the end of a test the last listener is called first.
    listeners.Append(std::make_unique<quadrille::test::Gatherer>().release());
    const int result = RUN_ALL_TESTS();
    // Nothing that could run is a skip, not a success.
    const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
    const bool none_ran = tests.test_to_run_count() == tests.skipped_test_count();
    return result == 0 && none_ran && tests.test_to_run_count() > 0 ? 77 : result;
}
