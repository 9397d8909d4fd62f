// SPDX-License-Identifier: Apache-2.0
// The command line as a whole: which jobs there are, help, version.
#include "jobs/options/parser.h"

#include "tests/support/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quadrille {
namespace {

using test::parse;
using test::usage_error;

TEST(Parser, UnknownSubcommandsAreNamed) {
    EXPECT_EQ(usage_error({"generat"}), "unknown subcommand 'generat' (see quadrille --help)");
    EXPECT_EQ(usage_error({"--frob"}), "unknown subcommand '--frob' (see quadrille --help)");
}

TEST(Parser, OnlyJobsOfTheTableExist) {
    std::vector<JobRow> only = job_table();
    std::erase_if(only, [](const JobRow& row) { return row.name != "inspect"; });
    EXPECT_THROW(parse_command({{"pack", "x", "--out", "y"}, {}}, only), Error);
    EXPECT_NO_THROW(parse_command({{"inspect", "x"}, {}}, only));
}

TEST(Parser, NoArgumentsShowHelpAsAnError) {
    const auto text = std::get<ShowText>(parse({}));
    EXPECT_EQ(text.code, 2);
    EXPECT_NE(text.text.find("generate"), std::string::npos);
}

TEST(Parser, VersionNamesTheProgram) {
    const auto text = std::get<ShowText>(parse({"--version"}));
    EXPECT_EQ(text.code, 0);
    EXPECT_EQ(text.text.find("quadrille 0."), 0u);
}

TEST(Parser, HelpFitsAScreen) {
    for (const JobRow& row : job_table()) {
        const auto text = std::get<ShowText>(parse({row.name, "--help"}));
        EXPECT_EQ(text.code, 0);
        EXPECT_LE(std::ranges::count(text.text, '\n'), 52) << text.text;
        size_t column = 0;
        for (const char letter : text.text) {
            column = letter == '\n' ? 0 : column + 1;
            ASSERT_LE(column, 79u) << text.text;
        }
    }
}

}  // namespace
}  // namespace quadrille
