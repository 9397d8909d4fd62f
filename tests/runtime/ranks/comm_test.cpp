// SPDX-License-Identifier: Apache-2.0
// Collectives on exactly predictable data: every byte received tells who sent it and for whom.
#include "runtime/ranks/comm.h"

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/error.h"
#include "runtime/ranks/comm_nccl.h"
#include "tests/support/expect_error.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <sched.h>
#include <set>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using Bytes = std::vector<uint8_t>;

uint8_t expected_byte(int from, int to, int64_t index) {
    return static_cast<uint8_t>(from * 31 + to * 7 + index * 13 + 1);
}

// Part sizes around the pieces of `kPiece` bytes that long messages are sent in.
constexpr int64_t kPiece = 64;
constexpr int64_t kSizes[] = {0, 1, 3, 63, 64, 65, 128, 1000};
constexpr uint8_t kSentinel = 0xa5;

class Collectives : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (GetParam() == "self") {
            comm_ = make_self_comm();
        } else if (GetParam() == "staged") {  // messages in pieces, memory behind a backend
            host_comm_ = make_mpi_comm(test::session().duplicate(), kPiece);
            comm_ = make_staged_comm(*host_comm_, *backend_);
        } else if (GetParam() == "nccl") {
            meet_in_nccl();
        } else {
            comm_ = make_mpi_comm(test::session().duplicate(),
                                  GetParam() == "mpi" ? int64_t{1} << 30 : kPiece);
        }
    }
    void meet_in_nccl() {
        MpiSession& session = test::session();
        Communicator& world = session.world();
        if (world.max_host(gpu_count() == 0 ? 1 : 0) != 0) GTEST_SKIP() << "no GPU";
        backend_ = make_backend("cuda", session.local_rank() % gpu_count());
        const NcclRank own = nccl_rank(*backend_, session.host());
        std::vector<NcclRank> seats(static_cast<size_t>(world.size()));
        world.all_gather_host(seats.data(), &own, sizeof own);
        const std::optional<Error> obstacle = nccl_obstacle(seats);
        if (obstacle) GTEST_SKIP() << obstacle->what();
        comm_ = make_nccl_comm(world, *backend_, std::chrono::seconds(60));
    }

    // The collectives on backend memory, between these bytes on the host.
    Buffer on_backend(const Bytes& host) const {
        Buffer buffer(*backend_, std::ssize(host));
        backend_->upload(buffer.data(), host.data(), std::ssize(host));
        return buffer;
    }
    void all_gather(Bytes& out, const Bytes& in, int64_t bytes) const {
        const Buffer to = on_backend(out);
        const Buffer from = on_backend(in);
        comm_->all_gather(to.data(), from.data(), bytes);
        backend_->download(out.data(), to.data(), std::ssize(out));
    }
    void all_gather_in_place(Bytes& out, int64_t bytes) const {
        const Buffer to = on_backend(out);
        comm_->all_gather(to.data(), static_cast<uint8_t*>(to.data()) + comm_->rank() * bytes,
                          bytes);
        backend_->download(out.data(), to.data(), std::ssize(out));
    }
    void all_to_all(Bytes& out, const Bytes& in, int64_t bytes) const {
        const Buffer to = on_backend(out);
        const Buffer from = on_backend(in);
        comm_->all_to_all(to.data(), from.data(), bytes);
        backend_->download(out.data(), to.data(), std::ssize(out));
    }
    // A buffer of all parts with a sentinel behind it.
    Bytes parts(int64_t bytes) const {
        return Bytes(static_cast<size_t>(bytes * comm_->size() + 1), kSentinel);
    }
    void expect_parts(const Bytes& out, int64_t bytes, bool addressed) const {
        for (int from = 0; from < comm_->size(); ++from) {
            for (int64_t i = 0; i < bytes; ++i) {
                ASSERT_EQ(out[static_cast<size_t>(from * bytes + i)],
                          expected_byte(from, addressed ? comm_->rank() : 0, i))
                    << "part " << from << " of " << bytes << " bytes, byte " << i;
            }
        }
        ASSERT_EQ(out.back(), kSentinel);
    }

    std::unique_ptr<Backend> backend_ = make_backend("cpu");
    std::unique_ptr<Communicator> host_comm_;
    std::unique_ptr<Communicator> comm_;
};

TEST_P(Collectives, AllGatherBringsEveryPartToEveryRank) {
    for (const int64_t bytes : kSizes) {
        Bytes own(static_cast<size_t>(bytes));
        for (int64_t i = 0; i < bytes; ++i) {
            own[static_cast<size_t>(i)] = expected_byte(comm_->rank(), 0, i);
        }
        Bytes out = parts(bytes);
        all_gather(out, own, bytes);
        expect_parts(out, bytes, false);
        out = parts(bytes);
        comm_->all_gather_host(out.data(), own.data(), bytes);
        expect_parts(out, bytes, false);
        out = parts(bytes);  // in place
        std::ranges::copy(own, out.begin() + comm_->rank() * bytes);
        all_gather_in_place(out, bytes);
        expect_parts(out, bytes, false);
    }
}

TEST_P(Collectives, AllToAllBringsEachPartToItsRank) {
    for (const int64_t bytes : kSizes) {
        Bytes in = parts(bytes);
        for (int to = 0; to < comm_->size(); ++to) {
            for (int64_t i = 0; i < bytes; ++i) {
                in[static_cast<size_t>(to * bytes + i)] = expected_byte(comm_->rank(), to, i);
            }
        }
        Bytes out = parts(bytes);
        all_to_all(out, in, bytes);
        expect_parts(out, bytes, true);
    }
}

// A graph sends what its memory holds when it is replayed.
TEST_P(Collectives, RecordedOnesBringWhatIsThereThen) {
    if (!comm_->recordable() || !backend_->records()) GTEST_SKIP() << "nothing is recorded";
    constexpr int64_t kBytes = 1000;
    Bytes own(kBytes);
    Bytes out = parts(kBytes);
    all_gather(out, own, kBytes);
    const Buffer from = on_backend(own);
    const Buffer to = on_backend(parts(kBytes));
    const auto recording =
        backend_->record([&] { comm_->all_gather(to.data(), from.data(), kBytes); });
    for (int turn = 0; turn < 3; ++turn) {
        for (int64_t i = 0; i < kBytes; ++i) {
            own[static_cast<size_t>(i)] = expected_byte(comm_->rank(), turn, i);
        }
        backend_->upload(from.data(), own.data(), kBytes);
        recording->replay();
        backend_->download(out.data(), to.data(), std::ssize(out));
        for (int rank = 0; rank < comm_->size(); ++rank) {
            for (int64_t i = 0; i < kBytes; ++i) {
                ASSERT_EQ(out[static_cast<size_t>(rank * kBytes + i)],
                          expected_byte(rank, turn, i));
            }
        }
    }
}

TEST_P(Collectives, BroadcastComesFromItsRoot) {
    for (int root = 0; root < comm_->size(); ++root) {
        for (const int64_t bytes : kSizes) {
            Bytes data(static_cast<size_t>(bytes) + 1, kSentinel);
            for (int64_t i = 0; i < bytes && comm_->rank() == root; ++i) {
                data[static_cast<size_t>(i)] = expected_byte(root, 0, i);
            }
            comm_->broadcast_host(data.data(), bytes, root);
            for (int64_t i = 0; i < bytes; ++i) {
                ASSERT_EQ(data[static_cast<size_t>(i)], expected_byte(root, 0, i));
            }
            ASSERT_EQ(data.back(), kSentinel);
        }
    }
}

TEST_P(Collectives, MaximumIsTheLargestOfAllRanks) {
    const int64_t rank = comm_->rank();
    EXPECT_EQ(comm_->max_host(rank), comm_->size() - 1);
    EXPECT_EQ(comm_->max_host(-rank), 0);
    constexpr int64_t large = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(comm_->max_host(large - rank), large);
    comm_->barrier();
}

TEST_P(Collectives, MisuseIsAnErrorBeforeAnythingIsSent) {
    Bytes data(8);
    EXPECT_THROW(comm_->all_gather(data.data(), data.data(), -1), Error);
    EXPECT_THROW(comm_->all_to_all(data.data(), data.data(), -1), Error);
    EXPECT_THROW(comm_->broadcast_host(data.data(), -1, 0), Error);
    EXPECT_THROW(comm_->broadcast_host(data.data(), 1, comm_->size()), Error);
    EXPECT_THROW(comm_->broadcast_host(data.data(), 1, -1), Error);
}

INSTANTIATE_TEST_SUITE_P(Comm, Collectives,
                         testing::Values("self", "mpi", "mpi_in_pieces", "staged", "nccl"),
                         [](const auto& instance) { return instance.param; });

TEST(MpiSession, KnowsItsPlace) {
    MpiSession& session = test::session();
    EXPECT_EQ(std::ssize(session.hosts()), session.size());
    EXPECT_FALSE(session.host().empty());
    EXPECT_EQ(session.local_size(), session.size());  // tests run on one host
    EXPECT_EQ(session.local_rank(), session.rank());
    EXPECT_EQ(session.world().rank(), session.rank());
    EXPECT_EQ(session.world().name(), "mpi");
}

TEST(MpiSession, WaitingRanksYieldWhereTheyShareCores) {
    cpu_set_t cores;
    ASSERT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    if (test::session().local_size() <= CPU_COUNT(&cores)) GTEST_SKIP() << "a core for each";
    const char* const yield = std::getenv("OMPI_MCA_mpi_yield_when_idle");
    ASSERT_NE(yield, nullptr);
    EXPECT_STREQ(yield, "1");
}

TEST(MpiSession, SplitsIntoGroupsOrderedByKey) {
    MpiSession& session = test::session();
    const auto group = session.split(session.rank() % 2, -session.rank());
    const int members = (session.size() + 1 - session.rank() % 2) / 2;
    ASSERT_EQ(group->size(), members);
    EXPECT_EQ(group->rank(), members - 1 - session.rank() / 2);
    std::vector<int32_t> ranks(static_cast<size_t>(members));
    const int32_t own = session.rank();
    group->all_gather_host(ranks.data(), &own, sizeof(own));
    for (int place = 0; place < members; ++place) {
        EXPECT_EQ(ranks[static_cast<size_t>(place)],
                  (members - 1 - place) * 2 + session.rank() % 2);
    }
}

TEST(MpiSession, ErrorsOfMpiAreOurErrors) {
    try {
        MPI_CHECK(MPI_Bcast(nullptr, -1, MPI_BYTE, 0, MPI_COMM_WORLD));
        ADD_FAILURE() << "a negative count was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::comm);
        EXPECT_EQ(std::string(error.what()).find("MPI_Bcast: MPI_ERR_COUNT"), 0u) << error.what();
    }
}

TEST(SharedCounters, GivesEachNumberOnce) {
    const MpiComm comm = test::session().duplicate();
    constexpr int64_t kTurns = 200;
    SharedCounters counter(comm);
    std::vector<int64_t> mine;
    for (int64_t turn = 0; turn < kTurns; ++turn) mine.push_back(counter.fetch_add(1));
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    std::vector<int64_t> all(static_cast<size_t>(kTurns * comm.size()));
    test::session().world().all_gather_host(all.data(), mine.data(),
                                            kTurns * static_cast<int64_t>(sizeof(int64_t)));
    std::ranges::sort(all);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i));
}

TEST(SharedCounters, AdvancesByAnyAmount) {
    const MpiComm comm = test::session().duplicate();
    SharedCounters counter(comm);
    if (comm.rank() == comm.size() - 1) {
        EXPECT_EQ(counter.fetch_add(1000), 0);
        EXPECT_EQ(counter.fetch_add(int64_t{1} << 40), 1000);
        EXPECT_EQ(counter.fetch_add(0), (int64_t{1} << 40) + 1000);
    }
}

TEST(SharedCounters, AreApartAndKnowTheLargest) {
    const MpiComm comm = test::session().duplicate();
    SharedCounters counters(comm, 3);
    counters.fetch_max(10 * comm.rank(), 1);
    counters.fetch_add(2, 2);
    test::session().world().barrier();
    EXPECT_EQ(counters.fetch_add(0, 0), 0);
    EXPECT_EQ(counters.fetch_max(0, 1), 10 * (comm.size() - 1));
    EXPECT_EQ(counters.fetch_add(0, 2), 2 * comm.size());
    test::expect_error(ErrorKind::internal, {"a counter that there is"},
                       [&] { counters.fetch_add(1, 3); });
}

}  // namespace
}  // namespace quadrille
