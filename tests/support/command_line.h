// SPDX-License-Identifier: Apache-2.0
// Command lines in tests: parsed with all subcommands, or refused.
#pragma once

#include "jobs/options/options.h"
#include "kernels/error.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::test {

using Words = std::vector<std::string>;
inline constexpr std::array<std::string_view, 5> kAll = {"generate", "bench", "inspect", "pack",
                                                         "unpack"};

inline Command parse(const Words& arguments, const Words& environment = {}) {
    return parse_command({arguments, environment}, kAll);
}

// The message of the usage error that these arguments must end in.
inline std::string usage_error(const Words& arguments, const Words& environment = {}) {
    try {
        parse(arguments, environment);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    ADD_FAILURE() << "accepted";
    return {};
}

}  // namespace quadrille::test
