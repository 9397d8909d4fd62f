// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/help_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace quadrille {
namespace {

// A heading and the lines below it; the first has what stands before any heading.
struct Section {
    std::string title;
    std::string lines;

    bool is_basic() const { return title.empty() || title == "Positionals" || title == "Options"; }
};

std::vector<Section> sections_of(const std::string& whole) {
    std::vector<Section> sections(1);
    std::istringstream lines(whole);
    for (std::string line; std::getline(lines, line);) {
        const bool heading = !line.empty() && line.front() != ' ' && line.ends_with(':');
        if (heading) {
            sections.push_back({.title = line.substr(0, line.size() - 1), .lines = {}});
        } else if (!line.empty()) {
            sections.back().lines += line + '\n';
        }
    }
    return sections;
}

std::string topic_of(const std::string& title) {
    std::string topic = title;
    std::ranges::transform(topic, topic.begin(), [](unsigned char letter) {
        return letter == ' ' ? '-' : static_cast<char>(std::tolower(letter));
    });
    return topic;
}

std::string text_of(const Section& section) {
    return '\n' + section.title + ":\n" + section.lines;
}

std::string usage(const HelpParts& parts) {
    return fmt::format("Usage: quadrille {}{}{} [OPTIONS]\n", parts.job,
                       parts.required.empty() ? "" : " ", parts.required);
}

}  // namespace

std::vector<std::string> help_topics(const std::string& whole) {
    std::vector<std::string> topics;
    for (const Section& section : sections_of(whole)) {
        if (!section.is_basic()) topics.push_back(topic_of(section.title));
    }
    return topics;
}

std::string help_text(const HelpParts& parts, const std::string& topic) {
    const std::vector<Section> sections = sections_of(parts.whole);
    const std::vector<std::string> topics = help_topics(parts.whole);
    std::string text = sections.front().lines.substr(0, sections.front().lines.find('\n') + 1);
    text += usage(parts);
    for (size_t i = 1; i < sections.size(); ++i) {
        const Section& section = sections[i];
        const bool wanted = topic.empty() ? section.is_basic() : topic_of(section.title) == topic;
        if (wanted || topic == "all") text += text_of(section);
    }
    if (!topic.empty() && topic != "all") return text;
    text += '\n';
    if (!parts.example.empty()) text += fmt::format("Example: {}\n", parts.example);
    text +=
        "Exit codes: 0 done, 1 records failed, 2 usage, 3 input, 4 files,\n"
        "  5 device, 6 ranks, 7 a defect of ours, 75 asked to end, can go on\n";
    if (!topics.empty() && topic.empty()) {
        text += fmt::format("More: --help {}\n", fmt::join(topics, "|"));
    }
    return text;
}

}  // namespace quadrille
