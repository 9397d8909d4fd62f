// SPDX-License-Identifier: Apache-2.0
// Command lines in tests: parsed with all jobs, or refused.
#pragma once

#include "jobs/job_table.h"
#include "jobs/options/parser.h"
#include "kernels/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quadrille::test {

using Words = std::vector<std::string>;

inline Command parse(const Words& arguments, const Words& environment = {}) {
    return parse_command({arguments, environment}, job_table());
}

// The options of the job that these arguments choose.
template <class Options>
Options parse_as(const Words& arguments, const Words& environment = {}) {
    const Command command = parse(arguments, environment);
    return dynamic_cast<const JobOf<Options>&>(*std::get<ChosenJob>(command).job).options();
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
