// SPDX-License-Identifier: Apache-2.0
// MPI of one process: start and end, checked calls, owned handles. Nothing here knows models; what
// the layers above use is the Communicator that a session or a split hands out.
// Only this pair of files, runtime/ranks/comm_mpi.cpp and the tests' main may use mpi.h.
#pragma once

#include "runtime/ranks/comm.h"

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

// Evaluates an MPI call once; Error{comm} with the call's text and MPI's own words if it failed.
#define MPI_CHECK(call) ::quadrille::mpi::check((call), #call)

namespace quadrille {
namespace mpi {

void check(int code, const char* call,
           std::source_location where = std::source_location::current());

std::string library_version();  // "Open MPI v4.1.4"

}  // namespace mpi

// A communicator of our own: errors are returned, traffic never meets another communicator's.
// Making and freeing one is collective over its ranks.
class MpiComm {
  public:
    static MpiComm duplicate(MPI_Comm parent);
    // Ranks with the same `color` (>= 0) share the result, ordered by `key`, then by rank.
    static MpiComm split(MPI_Comm parent, int color, int key);
    // The ranks of `parent` on this host.
    static MpiComm split_by_host(MPI_Comm parent);

    MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
    MpiComm& operator=(MpiComm&& other) noexcept {
        std::swap(comm_, other.comm_);
        return *this;
    }
    ~MpiComm();

    MPI_Comm get() const { return comm_; }
    int rank() const;
    int size() const;

  private:
    explicit MpiComm(MPI_Comm comm);
    MPI_Comm comm_ = MPI_COMM_NULL;
};

// MPI from its start to its end; one object in the process. Throws Error{comm} when MPI has no
// full thread support. Must be destroyed on all ranks or on none: a rank whose peers may still
// wait for it ends through abort() instead.
class MpiSession {
  public:
    MpiSession();
    ~MpiSession();
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;

    int rank() const { return world_->rank(); }
    int size() const { return world_->size(); }
    int local_rank() const { return local_rank_; }  // among the ranks of this host
    int local_size() const { return local_size_; }
    const std::string& host() const { return hosts_[static_cast<size_t>(rank())]; }
    const std::vector<std::string>& hosts() const { return hosts_; }  // of every rank

    Communicator& world() { return *world_; }
    // Collective over all ranks; see MpiComm::split.
    std::unique_ptr<Communicator> split(int color, int key);
    // A second set of all ranks, for traffic of another thread.
    MpiComm duplicate() const;

    // Ends all ranks; mpirun's exit code is `code`.
    [[noreturn]] static void abort(int code) noexcept;

  private:
    std::unique_ptr<Communicator> world_;
    std::vector<std::string> hosts_;
    int local_rank_ = 0;
    int local_size_ = 1;
    int exceptions_at_start_ = 0;
};

// Numbers shared by the ranks of a communicator, 0 at first, for handing out records. Making and
// destroying them is collective; using them is not, and needs no help from the rank that holds
// them.
class SharedCounters {
  public:
    explicit SharedCounters(const MpiComm& comm, int count = 1);
    ~SharedCounters();
    SharedCounters(const SharedCounters&) = delete;
    SharedCounters& operator=(const SharedCounters&) = delete;

    // Adds and returns the number before.
    int64_t fetch_add(int64_t amount, int counter = 0);
    // Raises it to `value` where that is more, and returns the number before.
    int64_t fetch_max(int64_t value, int counter = 0);

  private:
    int64_t fetch(int64_t value, int counter, MPI_Op op);

    MPI_Win window_ = MPI_WIN_NULL;
    int count_;
};

// Small messages of one size between any two ranks, without waiting: for a thread that must never
// block. Making and destroying it is collective.
class Mailbox {
  public:
    Mailbox(MpiComm comm, size_t message_bytes);
    ~Mailbox();
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    // Sends a copy of the message, or returns false if the last one to that rank is still on its
    // way.
    bool post(int to, const void* message);
    // True when the last message to that rank has left its buffer.
    bool sent(int to);
    // Takes the next message from that rank, or returns false if none has come. A rank from which
    // nothing more will come must not be asked again: destroying the box would wait for it.
    bool take(int from, void* message);

  private:
    struct Peer {
        MPI_Request sending = MPI_REQUEST_NULL;
        MPI_Request receiving = MPI_REQUEST_NULL;
        std::vector<char> out;
        std::vector<char> in;
    };
    static bool done(MPI_Request& request);

    MpiComm comm_;
    int rank_;
    int size_;
    std::vector<Peer> peers_;
};

// Over host memory. Messages longer than `longest_message` bytes are sent in pieces (MPI counts
// are int); tests make it small.
std::unique_ptr<Communicator> make_mpi_comm(MpiComm comm,
                                            int64_t longest_message = int64_t{1} << 30);

// True: a launcher (mpirun, srun) started this process as one of several, by its environment;
// needs no MPI.
bool launched_with_others();
// True: srun started it as one of several, and no PMI tells it of the others, so that MPI cannot
// start or takes it for the only one.
bool launched_without_pmi();
// True: any launcher started it, be it as the only one.
bool launched();

}  // namespace quadrille
