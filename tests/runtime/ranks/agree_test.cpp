// SPDX-License-Identifier: Apache-2.0
// Start-up phases that fail on some ranks: all end alike, none waits.
#include "runtime/ranks/agree.h"

#include "tests/support/mpi_main.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace quadrille {
namespace {

struct Outcome {
    ErrorKind kind = ErrorKind::internal;
    std::string what;
};

template <class Work>
Outcome outcome_of(Work work) {
    try {
        agree(test::session().world(), "phase", work);
    } catch (const AgreedError& error) {
        return {error.kind(), error.what()};
    }
    ADD_FAILURE() << "no error was agreed on";
    return {};
}

int rank() {
    return test::session().rank();
}
int last() {
    return test::session().size() - 1;
}

TEST(Agree, ResultsPassThrough) {
    Communicator& world = test::session().world();
    EXPECT_EQ(agree(world, "number", [] { return rank() * 2; }), rank() * 2);
    const auto pointer = agree(world, "move-only", [] { return std::make_unique<int>(7); });
    EXPECT_EQ(*pointer, 7);
    EXPECT_NO_THROW(agree(world, "nothing", [] {}));
}

TEST(Agree, TheSameErrorOnAllRanksIsThatError) {
    const Outcome outcome =
        outcome_of([] { throw Error(ErrorKind::input, "config.json: expected x, found y"); });
    EXPECT_EQ(outcome.kind, ErrorKind::input);
    EXPECT_EQ(outcome.what, "config.json: expected x, found y");
}

TEST(Agree, AnErrorOfOneRankNamesItsHostWhereThereAreSeveral) {
    std::vector<std::string> hosts(static_cast<size_t>(last()) + 1, "spark-1");
    hosts.back() = "spark-2";
    try {
        agree(
            test::session().world(), "checkpoint",
            [] {
                if (rank() == last()) throw Error(ErrorKind::input, "/models/glm: found nothing");
            },
            hosts);
        FAIL() << "no error was agreed on";
    } catch (const AgreedError& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_EQ(std::string(error.what()),
                  last() == 0
                      ? "/models/glm: found nothing"
                      : fmt::format("/models/glm: found nothing (rank {} on spark-2)", last()));
    }
}

TEST(Agree, AnErrorOfOneRankIsThrownOnAll) {
    const Outcome outcome = outcome_of([]() -> int {
        if (rank() == last()) throw Error(ErrorKind::io, "weights: cannot read");
        return 1;
    });
    EXPECT_EQ(outcome.kind, ErrorKind::io);
    EXPECT_EQ(outcome.what, last() == 0 ? "weights: cannot read"
                                        : fmt::format("weights: cannot read (rank {})", last()));
}

TEST(Agree, TheLowestRankThatFailedSpeaks) {
    const Outcome outcome = outcome_of([] {
        throw Error(rank() == 0 ? ErrorKind::usage : ErrorKind::device,
                    fmt::format("message of different length {}",
                                std::string(static_cast<size_t>(rank()) * 100, 'x')));
    });
    EXPECT_EQ(outcome.kind, ErrorKind::usage);
    EXPECT_EQ(outcome.what, last() == 0 ? "message of different length "
                                        : "message of different length  (rank 0)");
}

TEST(Agree, OtherExceptionsHaveKindsToo) {
    EXPECT_EQ(outcome_of([] { throw std::bad_alloc(); }).kind, ErrorKind::device);
    const Outcome outcome = outcome_of([] { throw std::out_of_range("index 3"); });
    EXPECT_EQ(outcome.kind, ErrorKind::internal);
    EXPECT_EQ(outcome.what, "index 3");
    EXPECT_EQ(outcome_of([] { throw 3; }).kind, ErrorKind::internal);
}

TEST(Agree, EmptyMessagesDoNotLoseTheError) {
    EXPECT_EQ(outcome_of([] { throw Error(ErrorKind::comm, ""); }).kind, ErrorKind::comm);
}

TEST(Agree, RanksInDifferentPhasesAreNoticed) {
    if (last() == 0) GTEST_SKIP() << "needs two ranks";
    try {
        agree(test::session().world(), rank() == last() ? "config" : "weights", [] {});
        ADD_FAILURE() << "different phases passed";
    } catch (const AgreedError& error) {
        EXPECT_EQ(error.kind(), ErrorKind::internal);
        EXPECT_EQ(std::string(error.what()),
                  fmt::format("start-up: ranks 0 and {} are in different phases", last()));
    }
}

}  // namespace
}  // namespace quadrille
