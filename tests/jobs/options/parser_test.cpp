// SPDX-License-Identifier: Apache-2.0
// The command line as a whole: which jobs there are, help, version.
#include "jobs/options/parser.h"

#include "jobs/options/help_text.h"
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

void expect_screen(const std::string& text) {
    EXPECT_LE(std::ranges::count(text, '\n'), 24) << text;
    size_t column = 0;
    for (const char letter : text) {
        column = letter == '\n' ? 0 : column + 1;
        ASSERT_LE(column, 79u) << text;
    }
}

std::string help_of(const std::vector<std::string>& arguments) {
    const auto text = std::get<ShowText>(parse(arguments));
    EXPECT_EQ(text.code, 0);
    return text.text;
}

TEST(Parser, HelpFitsScreens) {
    for (const JobRow& row : job_table()) {
        const std::string first = help_of({row.name, "--help"});
        expect_screen(first);
        EXPECT_NE(first.find("Usage: quadrille " + row.name), std::string::npos) << first;
        EXPECT_NE(first.find("Exit codes: 0 done"), std::string::npos);
        const std::string all = help_of({row.name, "--help", "all"});
        for (const std::string& topic : help_topics(all)) {
            const std::string screen = help_of({row.name, "-h", topic});
            expect_screen(screen);
            EXPECT_NE(first.find(topic), std::string::npos) << "the first screen names " << topic;
        }
        EXPECT_GE(all.size(), first.size() - 80);
    }
}

TEST(Parser, HelpOfAnUnknownTopicNamesThoseThereAre) {
    EXPECT_EQ(usage_error({"quantize", "--help", "speed"}),
              "--help: expected one of bits, all, found 'speed'");
}

}  // namespace
}  // namespace quadrille
