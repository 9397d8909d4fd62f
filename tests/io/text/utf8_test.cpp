// SPDX-License-Identifier: Apache-2.0
#include "io/text/utf8.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

// Expected values: Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, ReplacesMaximalSubpartsAsPythonDoes) {
    const std::string r = "\xef\xbf\xbd";
    const std::pair<std::string, std::string> cases[] = {
        {"", ""},
        {"plain \xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82",
         "plain \xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"},
        {"\x80", r},
        {"\xc3", r},
        {"\xc3(", r + "("},
        {"\xc0\xaf", r + r},          // overlong
        {"\xe0\x80\xaf", r + r + r},  // overlong
        {"\xed\xa0\x80", r + r + r},  // surrogate
        {"\xe2\x82", r},              // cut short: one subpart
        {"\xe2\x82X", r + "X"},
        {"\xf0\x9f\x99", r},
        {"\xf0\x9f\x99\xf0\x9f\x99\x82", r + "\xf0\x9f\x99\x82"},
        {"\xf0\x80\x80\x80", r + r + r + r},
        {"\xf4\x90\x80\x80", r + r + r + r},  // beyond U+10FFFF
        {"\xf5\x80\xff", r + r + r},
        {"a\xf1\x80\x80\xe1\x80\xc2"
         "b\x80"
         "c\x80\xbf"
         "d",
         "a" + r + r + r + "b" + r + "c" + r + r + "d"},
    };
    for (const auto& [bytes, expected] : cases) {
        EXPECT_EQ(replace_broken_utf8(bytes), expected);
        EXPECT_EQ(find_broken_utf8(bytes) != std::string::npos, bytes != expected);
    }
    EXPECT_EQ(find_broken_utf8("ab\xc3"), 2u);
    EXPECT_EQ(find_broken_utf8(std::string_view("a\0b", 3)), std::string::npos);
    EXPECT_EQ(storable_text(std::string_view("a\0b\xff", 4)), "a" + r + "b" + r);
}

TEST(Utf8, KeepsBackOnlyWhatMoreBytesCouldComplete) {
    EXPECT_EQ(complete_utf8(""), 0u);
    EXPECT_EQ(complete_utf8("ab"), 2u);
    EXPECT_EQ(complete_utf8("ab\xc3"), 2u);
    EXPECT_EQ(complete_utf8("ab\xe2\x82"), 2u);
    EXPECT_EQ(complete_utf8("ab\xf0\x9f\x99"), 2u);
    EXPECT_EQ(complete_utf8("ab\xf0\x9f\x99\x82"), 6u);
    EXPECT_EQ(complete_utf8("\xf0"), 0u);
    EXPECT_EQ(complete_utf8("ab\xff"), 3u);
    EXPECT_EQ(complete_utf8("ab\x80"), 3u);
    EXPECT_EQ(complete_utf8("ab\xc0"), 3u);
    EXPECT_EQ(complete_utf8("ab\xed\xa0"), 4u);
    EXPECT_EQ(complete_utf8("\xe2\xc3"), 1u);
}

TEST(Utf8, AppendsEveryLength) {
    std::string text;
    for (const char32_t c : {U'a', U'\u00e9', U'\u20ac', U'\U0001f642'}) append_utf8(text, c);
    EXPECT_EQ(text, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
}

}  // namespace
}  // namespace quadrille
