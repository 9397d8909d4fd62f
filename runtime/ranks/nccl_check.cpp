// SPDX-License-Identifier: Apache-2.0
// What can be said about ranks and NCCL without calling it.
#include "runtime/ranks/comm_nccl.h"

#include <fmt/format.h>

#include <string_view>

namespace quadrille {

std::string nccl_version_text(int64_t version) {
    // ncclGetVersion: 2.28.3 is 22803; before 2.9 2.8.4 was 2804.
    const int64_t major = version >= 10000 ? version / 10000 : version / 1000;
    const int64_t minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
    return fmt::format("NCCL {}.{}.{}", major, minor, version % 100);
}

std::optional<Error> nccl_obstacle(std::span<const NcclRank> seats) {
    const auto text = [](const auto& letters) { return std::string_view(letters.data()); };
    for (size_t rank = 0; rank < seats.size(); ++rank) {
        if (seats[rank].version != 0) continue;
        return Error(ErrorKind::comm, fmt::format("{} (rank {})", text(seats[rank].missing), rank));
    }
    for (size_t rank = 1; rank < seats.size(); ++rank) {
        if (seats[rank].version == seats[0].version) continue;
        return Error(
            ErrorKind::comm,
            fmt::format("NCCL: expected the same version on all ranks, found {} on rank 0 "
                        "({}) and {} on rank {} ({})",
                        nccl_version_text(seats[0].version), text(seats[0].host),
                        nccl_version_text(seats[rank].version), rank, text(seats[rank].host)));
    }
    for (size_t rank = 0; rank < seats.size(); ++rank) {
        if (text(seats[rank].gpu).empty()) {
            return Error(
                ErrorKind::device,
                fmt::format("NCCL: expected a GPU for each rank, found none on rank {} ({})", rank,
                            text(seats[rank].host)));
        }
        for (size_t other = 0; other < rank; ++other) {
            if (text(seats[other].host) != text(seats[rank].host) ||
                text(seats[other].gpu) != text(seats[rank].gpu)) {
                continue;
            }
            return Error(
                ErrorKind::device,
                fmt::format(
                    "NCCL: expected a GPU for each rank, found ranks {} and {} on GPU {} of "
                    "{}: make more of them visible, start fewer ranks, or use --comm mpi",
                    other, rank, text(seats[rank].gpu), text(seats[rank].host)));
        }
    }
    return std::nullopt;
}

}  // namespace quadrille
