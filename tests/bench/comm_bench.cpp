// SPDX-License-Identifier: Apache-2.0
// What the sum over ranks costs, by rows of 4096: ours (runtime/ranks/tree_reduce.h, the same bits
// for any number of ranks), each of its two ways, and NCCL's own all-reduce; all recorded, so that
// the host counts for nothing. Lines as cuda_bench prints them; the last column is NCCL's time over
// ours.
//   mpirun -n 2 comm_bench        77: no GPU for each rank, or no NCCL
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/comm_nccl.h"
#include "runtime/ranks/mpi.h"
#include "runtime/ranks/tree_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kWidth = 4096;
constexpr int kCalls = 20;    // of a recording
constexpr int kReplays = 10;  // of which the fastest counts

class CommBench {
  public:
    CommBench(Backend& backend, Communicator& comm) : backend_(backend), comm_(comm) {}

    void run() {
        for (const int64_t rows : {1, 3, 8, 24, 64, 192, 1024, 4096}) {
            const Array<float> data(backend_, rows, kWidth);
            const double theirs =
                seconds([&] { nccl_all_reduce(comm_, data.data(), rows * kWidth); });
            print("all-reduce of NCCL", rows, theirs, 1.0);
            const std::pair<const char*, TreeReduce::Way> ways[] = {
                {"sum over ranks", TreeReduce::Way::by_size},
                {"sum over ranks, gathered", TreeReduce::Way::gather},
                {"sum over ranks, scattered", TreeReduce::Way::scatter}};
            for (const auto& [name, way] : ways) {
                TreeReduce reduce(backend_, comm_, rows, kWidth, way);
                const double ours = seconds([&] { reduce.sum(data.view(), data.view()); });
                print(name, rows, ours, theirs / ours);
            }
        }
    }

  private:
    // The time of one call; the slowest rank's.
    double seconds(const std::function<void()>& call) {
        call();
        const auto recording = backend_.record([&] {
            for (int i = 0; i < kCalls; ++i) call();
        });
        double best = std::numeric_limits<double>::infinity();
        for (int i = 0; i < kReplays; ++i) {
            backend_.synchronize();
            comm_.barrier();
            const auto start = std::chrono::steady_clock::now();
            recording->replay();
            backend_.synchronize();
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
            best = std::min(best, passed.count());
        }
        return 1e-9 * static_cast<double>(comm_.max_host(static_cast<int64_t>(1e9 * best))) /
               kCalls;
    }

    void print(const char* name, int64_t rows, double time, double fraction) {
        if (comm_.rank() != 0) return;
        fmt::print("comm\t{}, {} ranks, {} x {}\t{:.4g}\tus\t{:.3f}\n", name, comm_.size(), rows,
                   kWidth, 1e6 * time, fraction);
    }

    Backend& backend_;
    Communicator& comm_;
};

int bench() {
    MpiSession session;
    Communicator& world = session.world();
    if (world.max_host(gpu_count() == 0 ? 1 : 0) != 0) return 77;
    const auto backend = make_backend("cuda", session.local_rank() % gpu_count());
    const NcclRank own = nccl_rank(*backend, session.host());
    std::vector<NcclRank> seats(static_cast<size_t>(world.size()));
    world.all_gather_host(seats.data(), &own, sizeof own);
    if (const auto obstacle = nccl_obstacle(seats)) {
        if (world.rank() == 0) fmt::print(stderr, "comm_bench: {}\n", obstacle->what());
        return 77;
    }
    const auto comm = make_nccl_comm(world, *backend, std::chrono::seconds(60));
    CommBench(*backend, *comm).run();
    return 0;
}

}  // namespace
}  // namespace quadrille

int main() {
    return quadrille::bench();
}
