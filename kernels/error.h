// SPDX-License-Identifier: Apache-2.0
// The one error type of the program, and every exit code. A message names the thing, what was
// expected and what was found; the kind is the process's exit code (docs/design.md §8).
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace quadrille {

enum class ErrorKind : int { usage = 2, input = 3, io = 4, device = 5, comm = 6, internal = 7 };

// Exit codes of jobs that ended as they should.
inline constexpr int kSuccess = 0;
inline constexpr int kRecordErrors = 1;  // generate --fail-on-error, and a record had an error
inline constexpr int kResumable = 75;    // generate ended on request before its records did

const char* name(ErrorKind kind);

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& what,
          std::source_location where = std::source_location::current())
        : std::runtime_error(what), kind_(kind), where_(where) {}

    ErrorKind kind() const { return kind_; }
    int exit_code() const { return static_cast<int>(kind_); }
    const std::source_location& where() const { return where_; }

  private:
    ErrorKind kind_;
    std::source_location where_;
};

// A precondition of our own code. Input from outside gets an Error with a message of its own.
inline void require(bool holds, const char* claim,
                    std::source_location where = std::source_location::current()) {
    if (!holds) throw Error(ErrorKind::internal, claim, where);
}

}  // namespace quadrille
