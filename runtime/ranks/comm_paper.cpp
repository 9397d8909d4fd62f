// SPDX-License-Identifier: Apache-2.0
// The communicator of a rank that is only planned: it has a size and a place, and takes all ranks
// to be like itself.
#include "kernels/error.h"
#include "runtime/ranks/comm.h"

#include <cstddef>
#include <cstring>

namespace quadrille {
namespace {

class PaperComm final : public Communicator {
  public:
    PaperComm(int ranks, int rank, bool recordable)
        : ranks_(ranks), rank_(rank), recordable_(recordable) {}
    std::string name() const override { return "paper"; }
    int rank() const override { return rank_; }
    int size() const override { return ranks_; }
    bool recordable() const override { return recordable_; }

    void all_gather(void*, const void*, int64_t) override { refuse(); }
    void all_to_all(void*, const void*, int64_t) override { refuse(); }
    void broadcast_host(void*, int64_t, int) override { refuse(); }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        for (int64_t r = 0; r < ranks_; ++r) {
            std::memcpy(static_cast<std::byte*>(out) + r * bytes, in, static_cast<size_t>(bytes));
        }
    }
    int64_t max_host(int64_t value) override { return value; }
    void barrier() override { refuse(); }

  private:
    [[noreturn]] static void refuse() {
        throw Error(ErrorKind::internal, "a communicator on paper reaches nobody");
    }
    int ranks_;
    int rank_;
    bool recordable_;
};

}  // namespace

std::unique_ptr<Communicator> make_paper_comm(int ranks, int rank, bool recordable) {
    return std::make_unique<PaperComm>(ranks, rank, recordable);
}

}  // namespace quadrille
