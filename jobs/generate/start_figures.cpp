// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/start_figures.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "figures-";

// Every figure by name: `visit` gets each double, then each count.
template <class Figures, class Time, class Count>
void each_figure(Figures& f, const Time& time, const Count& count) {
    time("seconds", f.seconds);
    time("start_up_seconds", f.start_up);
    time("prefill_seconds", f.stats.prefill_seconds);
    time("decode_seconds", f.stats.decode_seconds);
    time("draft_seconds", f.stats.draft_seconds);
    time("verify_seconds", f.stats.verify_seconds);
    time("accept_seconds", f.stats.accept_seconds);
    time("context_seconds", f.stats.context_seconds);
    time("collective_seconds", f.collectives);
    time("reading_seconds", f.loop.reading);
    time("writing_seconds", f.loop.writing);
    time("idle_seconds", f.loop.idle);
    count("passes", f.stats.steps);
    count("tokens_read", f.stats.prefill_tokens);
    count("decode_passes", f.stats.decode_steps);
    count("decode_records", f.stats.decode_records);
    count("tokens_written", f.stats.emitted);
    count("first_tokens", f.stats.first_tokens);
    count("recorded_passes", f.stats.recorded_steps);
}

// "figures-G-N.json": N, or -1 for another name.
int64_t start_of(const std::string& name) {
    if (!name.starts_with(kPrefix) || !name.ends_with(".json")) return -1;
    const size_t dash = name.find('-', kPrefix.size());
    if (dash == std::string::npos) return -1;
    int64_t start = -1;
    std::from_chars(name.data() + dash + 1, name.data() + name.size(), start);
    return start;
}

void add_file(const fs::path& path, StartFigures& sum) {
    std::ifstream file(path);
    const nlohmann::json found = nlohmann::json::parse(file, nullptr, false);
    if (!found.is_object()) return;
    StartFigures figures;
    const auto take = [&](const char* name, auto& value) {
        const auto entry = found.find(name);
        if (entry == found.end() || !entry->is_number()) return;
        value = entry->template get<std::remove_reference_t<decltype(value)>>();
    };
    each_figure(figures, take, take);
    sum += figures;
}

}  // namespace

StartFigures& StartFigures::operator+=(const StartFigures& other) {
    stats += other.stats;
    loop.reading += other.loop.reading;
    loop.writing += other.loop.writing;
    loop.idle += other.loop.idle;
    seconds += other.seconds;
    start_up += other.start_up;
    collectives += other.collectives;
    return *this;
}

void StartFigures::average(int64_t groups) {
    if (groups < 2) return;
    const auto divide = [&](const char*, double& time) { time /= static_cast<double>(groups); };
    each_figure(*this, divide, [](const char*, int64_t) {});
    stats.gap_seconds /= static_cast<double>(groups);
}

double StartFigures::rest() const {
    return std::max(0.0, seconds - start_up - stats.prefill_seconds - stats.decode_seconds -
                             loop.reading - loop.writing - loop.idle);
}

fs::path figures_path(const fs::path& folder, int group, int64_t start) {
    return folder / fmt::format("{}{}-{:06}.json", kPrefix, group, start);
}

std::string figures_json(const StartFigures& figures) {
    nlohmann::ordered_json out;
    const auto give = [&](const char* name, auto value) { out[name] = value; };
    each_figure(figures, give, give);
    return out.dump() + '\n';
}

StartFigures earlier_figures(const fs::path& folder, int64_t start) {
    std::map<int64_t, std::pair<StartFigures, int64_t>> starts;  // sums, groups
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const int64_t number = start_of(entry->path().filename().string());
        if (number < 0 || number >= start) continue;
        auto& [sum, groups] = starts[number];
        add_file(entry->path(), sum);
        ++groups;
    }
    StartFigures all;
    for (auto& [number, figures] : starts) {
        figures.first.average(figures.second);
        all += figures.first;
    }
    return all;
}

}  // namespace quadrille
