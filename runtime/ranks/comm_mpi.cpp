// SPDX-License-Identifier: Apache-2.0
// MpiComm's ranks as a Communicator over host memory. Nothing is reduced by MPI except integer
// maxima, so that no result depends on an order of summation that MPI chooses.
#include "kernels/error.h"
#include "runtime/ranks/mpi.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quadrille {
namespace {

class MpiHostComm final : public Communicator {
  public:
    MpiHostComm(MpiComm comm, int64_t longest_message)
        : comm_(std::move(comm)),
          rank_(comm_.rank()),
          size_(comm_.size()),
          longest_message_(longest_message) {
        require(longest_message > 0 && longest_message < int64_t{1} << 31,
                "the longest message fits MPI's int counts");
    }

    std::string name() const override { return "mpi"; }
    int rank() const override { return rank_; }
    int size() const override { return size_; }

    void all_gather(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "gather a non-negative number of bytes");
        if (bytes == 0) return;
        char* const parts = static_cast<char*>(out);
        char* const own = parts + rank_ * bytes;
        if (bytes <= longest_message_) {
            MPI_CHECK(MPI_Allgather(in == own ? MPI_IN_PLACE : in, static_cast<int>(bytes),
                                    MPI_BYTE, out, static_cast<int>(bytes), MPI_BYTE, comm_.get()));
            return;
        }
        if (in != own) std::memcpy(own, in, static_cast<size_t>(bytes));
        for (int shift = 1; shift < size_; ++shift) {
            const int to = (rank_ + shift) % size_;
            const int from = (rank_ - shift + size_) % size_;
            exchange(own, to, parts + from * bytes, from, bytes);
        }
    }

    void all_to_all(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "exchange a non-negative number of bytes");
        require(bytes == 0 || out != in, "all_to_all has two buffers");
        if (bytes == 0) return;
        if (bytes <= longest_message_) {
            MPI_CHECK(MPI_Alltoall(in, static_cast<int>(bytes), MPI_BYTE, out,
                                   static_cast<int>(bytes), MPI_BYTE, comm_.get()));
            return;
        }
        char* const received = static_cast<char*>(out);
        const char* const sent = static_cast<const char*>(in);
        std::memcpy(received + rank_ * bytes, sent + rank_ * bytes, static_cast<size_t>(bytes));
        for (int shift = 1; shift < size_; ++shift) {
            const int to = (rank_ + shift) % size_;
            const int from = (rank_ - shift + size_) % size_;
            exchange(sent + to * bytes, to, received + from * bytes, from, bytes);
        }
    }

    void broadcast_host(void* data, int64_t bytes, int root) override {
        require(bytes >= 0, "broadcast a non-negative number of bytes");
        require(root >= 0 && root < size_, "the root of a broadcast is a rank");
        char* const from = static_cast<char*>(data);
        for (int64_t done = 0; done < bytes; done += longest_message_) {
            const auto count = static_cast<int>(std::min(longest_message_, bytes - done));
            MPI_CHECK(MPI_Bcast(from + done, count, MPI_BYTE, root, comm_.get()));
        }
    }

    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        all_gather(out, in, bytes);
    }

    int64_t max_host(int64_t value) override {
        int64_t result = 0;
        MPI_CHECK(MPI_Allreduce(&value, &result, 1, MPI_INT64_T, MPI_MAX, comm_.get()));
        return result;
    }

    void barrier() override { MPI_CHECK(MPI_Barrier(comm_.get())); }

  private:
    void exchange(const char* sent, int to, char* received, int from, int64_t bytes) {
        for (int64_t done = 0; done < bytes; done += longest_message_) {
            const auto count = static_cast<int>(std::min(longest_message_, bytes - done));
            MPI_CHECK(MPI_Sendrecv(sent + done, count, MPI_BYTE, to, 0, received + done, count,
                                   MPI_BYTE, from, 0, comm_.get(), MPI_STATUS_IGNORE));
        }
    }

    MpiComm comm_;
    int rank_;
    int size_;
    int64_t longest_message_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_comm(MpiComm comm, int64_t longest_message) {
    return std::make_unique<MpiHostComm>(std::move(comm), longest_message);
}

}  // namespace quadrille
