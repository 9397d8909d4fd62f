// SPDX-License-Identifier: Apache-2.0
// Communicator: the ranks that hold one copy of the model. Collectives move bytes, in rank order;
// none computes with them, so none rounds. Backend memory is host memory for SelfComm (one rank)
// and MpiComm, a GPU's for NcclComm; a staged communicator brings one of host memory to any
// backend. The calls on host memory serve every communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace quadrille {

class Backend;

class Communicator {
  public:
    virtual ~Communicator() = default;

    virtual std::string name() const = 0;  // "self", "mpi", "nccl"
    virtual int rank() const = 0;
    virtual int size() const = 0;

    // ---- backend memory, in stream order --------------------------------------------------------
    // out (size, bytes): part r is rank r's `in`. `in` may be its own part of `out`.
    virtual void all_gather(void* out, const void* in, int64_t bytes) = 0;
    // out (size, bytes): part r is the part rank r holds for us; in (size, bytes).
    virtual void all_to_all(void* out, const void* in, int64_t bytes) = 0;

    // ---- host memory, blocking ------------------------------------------------------------------
    virtual void broadcast_host(void* data, int64_t bytes, int root) = 0;
    virtual void all_gather_host(void* out, const void* in, int64_t bytes) = 0;
    virtual int64_t max_host(int64_t value) = 0;
    virtual void barrier() = 0;

    // True: collectives on backend memory only enqueue work, so that a graph can hold them.
    virtual bool recordable() const { return false; }
    // Breaks off collectives that wait for other ranks; nothing works afterwards. From any thread.
    virtual void abort() noexcept {}
};

std::unique_ptr<Communicator> make_self_comm();
// Rank `rank` of `ranks` of which there is only this one, for plans (PaperBackend): on host memory
// all ranks have its values, an exchange of backend memory is an Error{internal}.
std::unique_ptr<Communicator> make_paper_comm(int ranks, int rank, bool recordable);

// The ranks of `host`, whose collectives work on host memory, over the memory of `backend`. Both
// outlive it.
std::unique_ptr<Communicator> make_staged_comm(Communicator& host, Backend& backend);

}  // namespace quadrille
