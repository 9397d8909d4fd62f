// SPDX-License-Identifier: Apache-2.0
#include "io/text/jsonl.h"

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace quadrille {
namespace {

using test::expect_error;
using test::TempFolder;
using Lines = std::vector<std::string>;

Lines read(const std::string& content, int64_t max_line = LineReader::kMaxLine) {
    TempFolder folder;
    LineReader reader(folder.write("f.txt", content), max_line);
    Lines lines;
    while (reader.next()) {
        lines.emplace_back(reader.line());
        EXPECT_EQ(reader.number(), std::ssize(lines));
    }
    EXPECT_FALSE(reader.next());
    return lines;
}

TEST(LineReader, SplitsLinesAsEveryPlatformEndsThem) {
    EXPECT_EQ(read(""), Lines{});
    EXPECT_EQ(read("\n"), Lines{""});
    EXPECT_EQ(read("a"), Lines{"a"});
    EXPECT_EQ(read("a\n"), Lines{"a"});
    EXPECT_EQ(read("a\n\nb"), (Lines{"a", "", "b"}));
    EXPECT_EQ(read("a\r\nb\rc\r\n\r\n"), (Lines{"a", "b\rc", ""}));
    EXPECT_EQ(read("\xef\xbb\xbf"
                   "a\n\xef\xbb\xbf"
                   "b"),
              (Lines{"a",
                     "\xef\xbb\xbf"
                     "b"}));
}

TEST(LineReader, ReadsLinesLongerThanItsBlocks) {
    const std::string big(1'000'000, 'x');
    const std::string other(300'000, 'y');
    EXPECT_EQ(read("a\n" + big + "\nb\n" + other + "\n" + big), (Lines{"a", big, "b", other, big}));
}

TEST(LineReader, BoundsALine) {
    EXPECT_EQ(read("12345\n1234", 5), (Lines{"12345", "1234"}));
    expect_error(ErrorKind::input, {"f.txt:2", "at most 5 bytes"}, [] { read("1\n123456\n", 5); });
    expect_error(ErrorKind::input, {"f.txt:1", "at most 5 bytes"}, [] { read("123456", 5); });
    expect_error(ErrorKind::input, {"f.txt:1", "at most 1000 bytes"},
                 [] { read(std::string(2'000'000, 'x'), 1000); });
}

TEST(LineReader, NamesTheLineThatIsNotUtf8) {
    expect_error(ErrorKind::input, {"f.txt:2", "UTF-8", "0xff", "offset 1"},
                 [] { read("good\nb\xff\n"); });
}

TEST(LineReader, NeedsAFile) {
    TempFolder folder;
    expect_error(ErrorKind::io, {"none", "no such file"},
                 [&] { LineReader reader(folder / "none"); });
    expect_error(ErrorKind::input, {"folder"}, [&] { LineReader reader(folder.path()); });
}

TEST(JsonLines, PassesOverBlankLinesAndNamesBrokenOnes) {
    TempFolder folder;
    LineReader lines(folder.write("f.jsonl", "\n{\"a\": 1}\n  \n[2]\n{\"a\": 1, \"a\": 2}\n"));
    nlohmann::json value;
    ASSERT_TRUE(next_json(lines, value));
    EXPECT_EQ(value["a"], 1);
    ASSERT_TRUE(next_json(lines, value));
    EXPECT_EQ(value[0], 2);
    EXPECT_EQ(lines.number(), 4);
    expect_error(ErrorKind::input, {"f.jsonl:5", "\"a\" appears twice"},
                 [&] { next_json(lines, value); });
    EXPECT_FALSE(next_json(lines, value));
}

}  // namespace
}  // namespace quadrille
