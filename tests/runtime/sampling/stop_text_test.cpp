// SPDX-License-Identifier: Apache-2.0
// Stop strings in every cut of a text into tokens.
#include "runtime/sampling/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

struct Found {
    int64_t begin = StopText::kNone;
    size_t bytes = 0;  // of the text when it was found

    friend bool operator==(const Found&, const Found&) = default;
};

Found feed(const std::vector<std::string>& tokens, const std::vector<std::string>& stops) {
    StopText text;
    size_t bytes = 0;
    for (const std::string& token : tokens) {
        bytes += token.size();
        const int64_t begin = text.add(token, stops);
        if (begin != StopText::kNone) return {begin, bytes};
    }
    return {};
}

// Every cut of `text` into tokens against std::string::find in the growing text.
void expect_every_cut(const std::string& text, const std::vector<std::string>& stops) {
    ASSERT_LE(text.size(), 14u);
    for (size_t cuts = 0; cuts < (size_t{1} << (text.size() - 1)); ++cuts) {
        std::vector<std::string> tokens(1);
        for (size_t i = 0; i < text.size(); ++i) {
            tokens.back() += text[i];
            if (i + 1 < text.size() && (cuts >> i & 1) != 0) tokens.emplace_back();
        }
        Found expected;
        std::string grown;
        for (const std::string& token : tokens) {
            grown += token;
            size_t first = std::string::npos;
            for (const std::string& stop : stops) first = std::min(first, grown.find(stop));
            if (first == std::string::npos) continue;
            expected = {static_cast<int64_t>(first), grown.size()};
            break;
        }
        ASSERT_EQ(feed(tokens, stops), expected) << text << " cuts " << cuts;
    }
}

TEST(StopText, FindsThemInEveryCut) {
    expect_every_cut("one two three", {"two"});
    expect_every_cut("aaaabaaab", {"aab"});
    expect_every_cut("abcabcabd", {"abcabd", "cabx"});
    expect_every_cut("xyz", {"nothing", "yz", "z"});
    expect_every_cut("caf\u00e9 \u4f60\u597d", {"\u4f60"});
    expect_every_cut("\U0001f600\U0001f601", {"\U0001f601"});
    expect_every_cut("abcdefgh", {"efghi", "x"});
}

TEST(StopText, BeginsInsideOneTokenAndEndsInsideAnother) {
    EXPECT_EQ(feed({"Hello wor", "ld and", " more"}, {"world a"}), (Found{6, 15}));
    // The first character's bytes are split over tokens.
    EXPECT_EQ(feed({"a\xe4", "\xbd", "\xa0 z"}, {"\u4f60"}), (Found{1, 6}));
}

TEST(StopText, OffsetsGoOnOverLongTexts) {
    std::vector<std::string> tokens(10000, "abcab");
    tokens.emplace_back("abd");
    EXPECT_EQ(feed(tokens, {"cababd"}), (Found{49997, 50003}));
    EXPECT_EQ(feed({"", "", "a"}, {"a"}), (Found{0, 1}));
}

}  // namespace
}  // namespace quadrille::test
