// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/probe_report.h"

#include "jobs/common/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace quadrille {
namespace {

using nlohmann::ordered_json;

double share(int64_t part, int64_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
}

std::string percent(int64_t part, int64_t all) {
    return all == 0 ? "-" : fmt::format("{:.2f} %", 100 * share(part, all));
}

ordered_json json_share(int64_t part, int64_t all) {
    return all == 0 ? ordered_json(nullptr) : ordered_json(share(part, all));
}

std::string draft_table(const Served& served, double rate) {
    const LossReport& r = served.blocks;
    Table table(rate > 0 ? "rrrrrrrr" : "rrrrrr");
    std::vector<std::string> head = {"draft", "right",         "offered",
                                     "kept",  "accept length", "ceiling"};
    if (rate > 0) head.insert(head.end(), {"tok/s", "ceiling"});
    table.row(std::move(head));
    for (size_t i = 0; i < served.walk.size() && r.blocks > 0; ++i) {
        const double length = served.walk[i].accept_length();
        const double most = served.at_best[i].accept_length();
        std::vector<std::string> row = {fmt::format("{}", i + 1),
                                        percent(r.right[i], r.supervised[i]),
                                        percent(r.offered[i], r.supervised[i]),
                                        percent(served.kept[i], served.walk.back().steps),
                                        fmt::format("{:.3f}", length),
                                        fmt::format("{:.3f}", most)};
        if (rate > 0) {
            row.push_back(fmt::format("{:.1f}", rate * length));
            row.push_back(fmt::format("{:.1f}", rate * most));
        }
        table.row(std::move(row));
    }
    return table.text();
}

ordered_json draft_json(const Served& served, double rate) {
    const LossReport& r = served.blocks;
    ordered_json rows = ordered_json::array();
    for (size_t i = 0; i < served.walk.size() && r.blocks > 0; ++i) {
        const double length = served.walk[i].accept_length();
        const double most = served.at_best[i].accept_length();
        rows.push_back({{"draft", i + 1},
                        {"right", json_share(r.right[i], r.supervised[i])},
                        {"offered", json_share(r.offered[i], r.supervised[i])},
                        {"kept", json_share(served.kept[i], served.walk.back().steps)},
                        {"accept_length", length},
                        {"ceiling", most}});
        if (rate <= 0) continue;
        rows.back()["tokens_per_second"] = rate * length;
        rows.back()["ceiling_tokens_per_second"] = rate * most;
    }
    return {{"blocks", r.blocks}, {"drafts", rows}};
}

}  // namespace

std::string ProbeReport::text() const {
    std::string out = fmt::format("{}: {} generated tokens\n", capture, tokens);
    Table table("lrrr");
    table.row({"row before the token", "tokens", "top-1", "of them"});
    for (const Agreement& a : agreement) {
        table.row({a.rows, fmt::format("{}", a.tokens), fmt::format("{}", a.right),
                   percent(a.right, a.tokens)});
    }
    out += table.text();
    if (draft) {
        out += fmt::format("drafter {}: {} blocks of {} sequences held back\n", drafter,
                           draft->blocks.blocks, held_back.size());
        out += draft_table(*draft, steps_per_second);
    }
    if (refitted) {
        out +=
            fmt::format("the same with fc refitted: accept length {:.3f}, before {:.3f}\n",
                        refitted->walk.back().accept_length(), draft->walk.back().accept_length());
        out += draft_table(*refitted, steps_per_second);
    }
    return out;
}

std::string ProbeReport::json() const {
    ordered_json rows = ordered_json::array();
    for (const Agreement& a : agreement) {
        rows.push_back({{"rows", a.rows},
                        {"tokens", a.tokens},
                        {"top_1", a.right},
                        {"share", json_share(a.right, a.tokens)}});
    }
    ordered_json all = {{"capture", capture}, {"tokens", tokens}, {"agreement", rows}};
    if (steps_per_second > 0) all["steps_per_second"] = steps_per_second;
    if (draft) {
        all["drafter"] = drafter;
        all["held_back"] = held_back;
        all["draft"] = draft_json(*draft, steps_per_second);
    }
    if (refitted) all["refitted"] = draft_json(*refitted, steps_per_second);
    return all.dump(2) + "\n";
}

}  // namespace quadrille
