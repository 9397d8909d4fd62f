// SPDX-License-Identifier: Apache-2.0
// What keeps ranks from meeting in NCCL, and what is said about it: from made-up seats.
#include "runtime/ranks/comm_nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {
namespace {

NcclRank seat(std::string_view host, std::string_view gpu, int64_t version = 22803) {
    NcclRank made;
    made.version = version;
    std::copy(host.begin(), host.end(), made.host.data());
    std::copy(gpu.begin(), gpu.end(), made.gpu.data());
    return made;
}

std::string obstacle(const std::vector<NcclRank>& seats, ErrorKind kind) {
    const std::optional<Error> found = nccl_obstacle(seats);
    if (!found) return "none";
    EXPECT_EQ(found->kind(), kind);
    return found->what();
}

TEST(NcclCheck, RanksWithAGpuEachMeet) {
    EXPECT_FALSE(nccl_obstacle(std::vector{seat("a", "0000:01:00.0")}));
    EXPECT_FALSE(nccl_obstacle(std::vector{seat("a", "0000:01:00.0"), seat("a", "0000:02:00.0")}));
    // The same PCI id on two hosts, or on what declares itself one.
    EXPECT_FALSE(nccl_obstacle(std::vector{seat("a", "0000:01:00.0"), seat("b", "0000:01:00.0")}));
}

TEST(NcclCheck, TwoRanksOnAGpuAreNamed) {
    EXPECT_EQ(
        obstacle({seat("a", "0000:01:00.0"), seat("a", "0000:02:00.0"), seat("b", "0000:01:00.0"),
                  seat("a", "0000:02:00.0")},
                 ErrorKind::device),
        "NCCL: expected a GPU for each rank, found ranks 1 and 3 on GPU 0000:02:00.0 of a: make "
        "more of them visible, start fewer ranks, or use --comm mpi");
}

TEST(NcclCheck, UnequalVersionsAreNamed) {
    EXPECT_EQ(
        obstacle({seat("a", "1"), seat("a", "2"), seat("b", "1", 22703)}, ErrorKind::comm),
        "NCCL: expected the same version on all ranks, found NCCL 2.28.3 on rank 0 (a) and NCCL "
        "2.27.3 on rank 2 (b)");
}

TEST(NcclCheck, ARankWithoutTheLibraryOrAGpuIsNamed) {
    NcclRank without = seat("b", "1", 0);
    constexpr std::string_view kWhy = "NCCL: libnccl.so.2: cannot open shared object file";
    std::copy(kWhy.begin(), kWhy.end(), without.missing.data());
    EXPECT_EQ(obstacle({seat("a", "1"), without}, ErrorKind::comm),
              std::string(kWhy) + " (rank 1)");
    EXPECT_EQ(obstacle({seat("a", "1"), seat("b", "")}, ErrorKind::device),
              "NCCL: expected a GPU for each rank, found none on rank 1 (b)");
}

TEST(NcclCheck, VersionsReadAsTheirReleasesDo) {
    EXPECT_EQ(nccl_version_text(22803), "NCCL 2.28.3");
    EXPECT_EQ(nccl_version_text(20902), "NCCL 2.9.2");
    EXPECT_EQ(nccl_version_text(2804), "NCCL 2.8.4");
}

TEST(NcclCheck, OwnSeatIsOnTheDeclaredHostAndSaysWhatIsMissing) {
    const auto backend = make_backend("cpu");
    NcclRank own = nccl_rank(*backend, std::string(1000, 'h'));
    EXPECT_LT(std::string_view(own.host.data()).size(), own.host.size());
    EXPECT_STREQ(own.gpu.data(), "");
    EXPECT_EQ(own.version == 0, *own.missing.data() != '\0');
    if (own.version == 0) GTEST_SKIP() << own.missing.data();
    EXPECT_EQ(setenv("NCCL_HOSTID", "node7", 1), 0);
    own = nccl_rank(*backend, "host");
    EXPECT_STREQ(own.host.data(), "node7");
}

}  // namespace
}  // namespace quadrille
