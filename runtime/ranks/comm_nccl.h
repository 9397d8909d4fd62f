// SPDX-License-Identifier: Apache-2.0
// NcclComm: the ranks of a group on NCCL, each on a GPU of its own. The library is loaded when it
// is asked for, so that one program runs with and without it; a build without nccl.h has a stub.
// What NCCL needs of the ranks is found out first, so that all of them can say the same about it.
#pragma once

#include "kernels/backend.h"
#include "kernels/error.h"
#include "runtime/ranks/comm.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace quadrille {

// What one rank brings to NCCL. Plain bytes, so that ranks can exchange it.
struct NcclRank {
    int64_t version = 0;              // of the library, as ncclGetVersion tells; 0: there is none
    std::array<char, 256> host{};     // NCCL_HOSTID where it is set, else the host's name
    std::array<char, 64> gpu{};       // PCI id
    std::array<char, 256> missing{};  // version 0: why
};

// This rank's; never throws for a library that is not there. `backend` may be any: without a GPU
// the PCI id is empty.
NcclRank nccl_rank(const Backend& backend, const std::string& host);

// The first thing that keeps these ranks (in rank order) from meeting in NCCL: Error{comm} without
// a library or with unequal versions, Error{device} where two ranks of a host share a GPU.
std::optional<Error> nccl_obstacle(std::span<const NcclRank> seats);

// "NCCL 2.28.3"
std::string nccl_version_text(int64_t version);

// The ranks of `host`, whose collectives on backend memory run on the stream of `backend`, a
// "cuda" one; those on host memory are those of `host`. Both outlive it. Collective; the ranks must
// have no nccl_obstacle(). AgreedError where they have not met within `patience`. An error that
// NCCL reports later, on its own, ends the process from a thread that watches for it.
std::unique_ptr<Communicator> make_nccl_comm(Communicator& host, Backend& backend,
                                             std::chrono::seconds patience);

// NCCL's own sum over the ranks of a communicator that make_nccl_comm made, in place, in an order
// that is NCCL's: what the sums of the model are measured against, never used for them.
void nccl_all_reduce(Communicator& comm, float* data, int64_t count);

}  // namespace quadrille
