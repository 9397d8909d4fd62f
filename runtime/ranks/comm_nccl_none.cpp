// SPDX-License-Identifier: Apache-2.0
// NcclComm in a build without CUDA or nccl.h.
#include "runtime/ranks/comm_nccl.h"

#include <algorithm>
#include <string_view>

namespace quadrille {

namespace {
constexpr std::string_view kMissing = "this build has no NCCL (meson options cuda and nccl)";
}

NcclRank nccl_rank(const Backend&, const std::string& host) {
    NcclRank seat;
    std::copy_n(host.data(), std::min(host.size(), seat.host.size() - 1), seat.host.data());
    std::copy(kMissing.begin(), kMissing.end(), seat.missing.data());
    return seat;
}

std::unique_ptr<Communicator> make_nccl_comm(Communicator&, Backend&, std::chrono::seconds) {
    throw Error(ErrorKind::comm, std::string(kMissing));
}

void nccl_all_reduce(Communicator&, float*, int64_t) {
    throw Error(ErrorKind::comm, std::string(kMissing));
}

}  // namespace quadrille
