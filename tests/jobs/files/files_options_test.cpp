// SPDX-License-Identifier: Apache-2.0
// The flags of inspect, pack and unpack.
#include "jobs/files/files_options.h"

#include "tests/support/command_line.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

using test::parse_as;
using test::usage_error;
using test::Words;

TEST(FilesFlags, SetWhatTheyName) {
    const auto inspect = parse_as<InspectOptions>({"inspect", "a", "b", "--limit", "0"});
    EXPECT_EQ(inspect.paths, (Words{"a", "b"}));
    EXPECT_EQ(inspect.limit, 0);
    const auto pack =
        parse_as<PackOptions>({"pack", "a", "--out", "o", "--format", "jsonl"}, {"EXL3_MODEL=M"});
    EXPECT_EQ(pack.inputs, Words{"a"});
    EXPECT_EQ(pack.out, "o");
    EXPECT_EQ(pack.target, "M");
    EXPECT_EQ(pack.format, "jsonl");
    const auto unpack = parse_as<UnpackOptions>({"unpack", "a", "--target", "T"});
    EXPECT_EQ(unpack.out, "-");
    EXPECT_EQ(unpack.target, "T");
}

TEST(FilesFlags, MissingOnesAreNamed) {
    EXPECT_EQ(usage_error({"pack", "a.txt"}), "--out: expected an output file, found nothing");
    EXPECT_EQ(usage_error({"pack"}),
              "pack: expected at least one file of text or JSON lines, found nothing");
    EXPECT_EQ(usage_error({"inspect"}),
              "inspect: expected at least one file or folder, found nothing");
    EXPECT_EQ(usage_error({"unpack"}),
              "unpack: expected at least one generations file, found nothing");
}

}  // namespace
}  // namespace quadrille
