// SPDX-License-Identifier: Apache-2.0
// Agreed start-up errors: a phase runs on every rank for itself, then the ranks compare notes.
// Either all go on or all throw the same AgreedError, which main prints once.
#pragma once

#include "kernels/error.h"
#include "runtime/ranks/comm.h"

#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace quadrille {

// Thrown on all ranks alike: the one kind of error that may unwind past objects of MPI.
class AgreedError : public Error {
  public:
    using Error::Error;
};

// Collective: `error` is this rank's, null if it has none. Returns if no rank has one. The error
// of the lowest rank that has one is thrown on all, "(rank r)" added unless all say the same.
// `hosts` of all ranks, where there are several: "(rank r on HOST)".
void agree_on(Communicator& comm, std::string_view phase, std::exception_ptr error,
              std::span<const std::string> hosts = {});

// Runs `work`, which must not talk to other ranks, and agrees on its outcome. Returns its result.
template <class Work>
auto agree(Communicator& comm, std::string_view phase, Work&& work,
           std::span<const std::string> hosts = {}) {
    using Result = std::invoke_result_t<Work>;
    std::exception_ptr error;
    if constexpr (std::is_void_v<Result>) {
        try {
            std::forward<Work>(work)();
        } catch (...) {
            error = std::current_exception();
        }
        agree_on(comm, phase, error, hosts);
    } else {
        std::optional<Result> result;
        try {
            result.emplace(std::forward<Work>(work)());
        } catch (...) {
            error = std::current_exception();
        }
        agree_on(comm, phase, error, hosts);
        return std::move(*result);
    }
}

// Collective: every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& own);

// Kind and message of any exception; those that are not ours count as internal, bad_alloc as
// device.
Error as_error(std::exception_ptr exception);

}  // namespace quadrille
