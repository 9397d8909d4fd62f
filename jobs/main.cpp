// SPDX-License-Identifier: Apache-2.0
// The one program: reads the command line, chooses the job, turns an error into one printed line
// and its exit code. `generate` runs on MPI ranks; every other job is one process and never
// touches MPI. A job is offered once it is listed in kOffered and run_alone or run_on_ranks.
#include "jobs/options.h"
#include "kernels/check.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

namespace quadrille {
namespace {

constexpr std::array<std::string_view, 0> kOffered = {};

int show(const ShowText& text) {
    std::fputs(text.text.c_str(), stdout);
    return text.code;
}

// Jobs of one process: a line each.
int run_alone(const Command& command) {
    if (const auto* text = std::get_if<ShowText>(&command)) return show(*text);
    throw Error(ErrorKind::internal, "a job that is offered but not linked in");
}

int report(ErrorKind kind, const char* what) {
    fmt::print(stderr, "quadrille: {} error: {}\n", name(kind), what);
    return static_cast<int>(kind);
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    using namespace quadrille;
    try {
        return run_alone(parse_command(read_invocation(argc, argv), kOffered));
    } catch (const Error& error) {
        return report(error.kind(), error.what());
    } catch (const std::bad_alloc&) {
        return report(ErrorKind::device, "out of host memory");
    } catch (const std::exception& error) {
        return report(ErrorKind::internal, error.what());
    }
}
