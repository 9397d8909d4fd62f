// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_summary.h"

#include "io/output.h"
#include "jobs/common/results_tsv.h"
#include "jobs/common/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

template <class A, class B>
double ratio(A a, B b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
}

std::string line(const char* title, const std::string& value) {
    return fmt::format("{:<15}{}\n", title, value);
}

std::string with_error(double value, double error) {
    return std::isnan(error) ? fmt::format("{:.3f}", value)
                             : fmt::format("{:.3f} ± {:.3f}", value, error);
}

// Shows where the seconds of a start went; with earlier starts, those of all of them too.
std::string time_table(const StartSummary& start) {
    const bool several = start.restarts > 0;
    Table table(several ? "lrrrr" : "lrr");
    std::vector<std::string> head = {"time went to", "s", "part"};
    if (several) head = {"time went to", "s", "part", "all starts", "part"};
    table.row(head);
    const auto row = [&](const char* title, auto seconds) {
        std::vector<std::string> cells = {title};
        for (const StartFigures* figures : {&start.now, &start.all}) {
            const double value = seconds(*figures);
            cells.push_back(fmt::format("{:.2f}", value));
            cells.push_back(fmt::format("{:.0f} %", 100 * ratio(value, figures->seconds)));
            if (!several) break;
        }
        table.row(cells);
    };
    using F = StartFigures;
    const bool graphs = start.now.stats.recorded_steps > 0;
    row("start-up", [](const F& f) { return f.start_up; });
    row("prefill", [](const F& f) { return f.stats.prefill_seconds; });
    if (start.k > 0) row("draft", [](const F& f) { return f.stats.draft_seconds; });
    row(graphs ? "steps as graphs" : "verify", [](const F& f) { return f.stats.verify_seconds; });
    row("accept", [](const F& f) { return f.stats.accept_seconds; });
    if (start.k > 0) row("drafter's context", [](const F& f) { return f.stats.context_seconds; });
    row("between", [](const F& f) {
        const EngineStats& s = f.stats;
        return std::max(0.0, s.decode_seconds - s.draft_seconds - s.verify_seconds -
                                 s.accept_seconds - s.context_seconds);
    });
    row("reading", [](const F& f) { return f.loop.reading; });
    row("writing", [](const F& f) { return f.loop.writing; });
    if (start.groups > 1) row("idle", [](const F& f) { return f.loop.idle; });
    row("the rest", [](const F& f) { return f.rest(); });
    row("(collectives)", [](const F& f) { return f.collectives; });
    return table.text();
}

std::string latency_lines(const std::vector<Latency>& latencies) {
    const auto shares = [&](float Latency::*member) {
        std::vector<float> values;
        for (const Latency& latency : latencies) values.push_back(latency.*member);
        std::string text;
        for (const double share : {0.5, 0.9, 0.99, 1.0}) {
            text += fmt::format("{}{:.2f}", text.empty() ? "" : " / ", percentile(values, share));
        }
        return text;
    };
    return line("latency",
                fmt::format("{} s a record (50, 90, 99, 100 % of them)", shares(&Latency::whole))) +
           line("first token", fmt::format("{} s", shares(&Latency::first)));
}

// "5.20 ms; at best 2.10 ms (40 %): experts 1.10, head 0.40, collectives 0.20".
std::string roofline_text(const Roofline& roofline, double step) {
    std::vector<std::pair<double, std::string>> parts;
    for (const auto& [kind, seconds] : roofline.ops) parts.emplace_back(seconds, name(kind));
    if (roofline.collectives > 0) parts.emplace_back(roofline.collectives, "collectives");
    std::ranges::sort(parts, std::greater<>());
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(parts.size(), 3); ++i) {
        text +=
            fmt::format("{}{} {:.2f}", i == 0 ? "" : ", ", parts[i].second, 1e3 * parts[i].first);
    }
    return fmt::format("{:.2f} ms; at best {:.2f} ms ({:.0f} %): {}", 1e3 * step,
                       1e3 * roofline.seconds(), 100 * ratio(roofline.seconds(), step), text);
}

// "0.622 0.321 (± 0.031 0.027)".
std::string positions_text(const ResultSums& sums) {
    std::string text;
    std::string errors;
    for (size_t i = 0; i < sums.by_position.size(); ++i) {
        text += fmt::format("{}{:.3f}", i == 0 ? "" : " ", sums.position_rate(i));
        errors += fmt::format(" {:.3f}", sums.position_error(i));
    }
    return std::isnan(sums.accept_length_error()) ? text : fmt::format("{} (±{})", text, errors);
}

std::string kinds_table(const ResultSummary& totals) {
    if (totals.kinds.empty()) return "";
    Table table("lrrl");
    table.row({"kind", "records", "accept length", "drafts accepted by position"});
    for (const auto& [kind, sums] : totals.kinds) {
        table.row({excerpt(kind, 24), fmt::format("{}", sums.records),
                   with_error(sums.accept_length(), sums.accept_length_error()),
                   positions_text(sums)});
    }
    return table.text();
}

}  // namespace

void check_results_tsv(const GenerateOptions& options) {
    if (options.tsv.empty()) return;
    std::vector<std::filesystem::path> taken = other_files(options, options.heartbeat);
    taken.emplace_back(options.out);
    output_path(options.tsv, {.option = "--append-tsv",
                              .overwrite = true,
                              .taken = taken,
                              .objection = [](const auto&) { return ""; }});
    append_results(options.tsv, "");
}

std::string run_shape(const GenerateOptions& options, const std::string& backend,
                      const RunFacts& facts, int32_t k) {
    const auto ranks = std::ssize(facts.hosts);
    std::string prompts = options.prompts.empty() ? "prompts of the command line"
                                                  : last_name(options.prompts.front());
    if (options.prompts.size() > 1)
        prompts += fmt::format(" and {} more", options.prompts.size() - 1);
    std::string shape = fmt::format(
        "{}, {}, {}, {} rank{}, {}, {} new, batch {}, K {}", last_name(options.target),
        k > 0 ? last_name(options.draft) : "no drafter", backend, ranks, ranks == 1 ? "" : "s",
        prompts, options.record.max_new_tokens, facts.max_seqs, k);
    if (facts.last.stats.recorded_steps > 0) shape += ", graphs";
    if (options.eager) shape += ", eager";
    if (facts.groups > 1) shape += fmt::format(", {} groups", facts.groups);
    return shape;
}

double percentile(std::vector<float> values, double share) {
    if (values.empty()) return kUnknown;
    const auto count = static_cast<double>(values.size());
    const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(share * count))) - 1;
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(values.begin(), at, values.end());
    return static_cast<double>(*at);
}

std::string summary_table(const ResultSummary& totals, const ResultSummary& earlier,
                          const StartSummary& start, const std::string& out) {
    const EngineStats& stats = start.now.stats;
    const std::string before =
        earlier.records > 0 ? fmt::format(" ({} by earlier starts)", earlier.records) : "";
    std::string text =
        line("records", fmt::format("{} ok, {} with an error{}", totals.records - totals.errors,
                                    totals.errors, before));
    text += line("tokens", fmt::format("{} read, {} written", stats.prefill_tokens, totals.tokens));
    if (start.restarts > 0) {
        text +=
            line("figures", fmt::format("of the file: records, tokens written{}; of this start, "
                                        "which wrote {} tokens: the others",
                                        start.k > 0 ? ", accept length" : "", stats.emitted));
        text +=
            line("all starts",
                 fmt::format("{} in {:.2f} s: {} tokens read, {} written, {} passes",
                             start.restarts + 1, start.all.seconds, start.all.stats.prefill_tokens,
                             start.all.stats.emitted, start.all.stats.steps));
    }
    text += line(
        "time",
        fmt::format("{:.2f} s: prefill {:.2f} s, decode {:.2f} s{}", start.now.seconds,
                    stats.prefill_seconds, stats.decode_seconds,
                    start.groups > 1 ? fmt::format(", means of {} groups", start.groups) : ""));
    text += time_table(start);
    text += line("prefill", fmt::format("{:.1f} tokens/s",
                                        ratio(stats.prefill_tokens, stats.prefill_seconds)));
    const double step =
        ratio(stats.decode_seconds * static_cast<double>(start.groups), stats.decode_steps);
    text +=
        line("decode", fmt::format("{:.1f} tokens/s; {} passes of {:.2f} ms, {:.1f} records each",
                                   ratio(stats.decoded(), stats.decode_seconds), stats.decode_steps,
                                   1e3 * step, ratio(stats.decode_records, stats.decode_steps)));
    if (start.roofline) text += line("step", roofline_text(*start.roofline, step));
    if (!start.latencies.empty()) text += latency_lines(start.latencies);
    if (start.k > 0 && totals.steps > 0) {
        text += line("accept length",
                     fmt::format("{} at K = {}; drafts accepted by position: {}",
                                 with_error(totals.accept_length(), totals.accept_length_error()),
                                 start.k, positions_text(totals)));
        text += kinds_table(totals);
    }
    return text + line("output", out);
}

std::string summary_rows(const ResultSummary& totals, const StartSummary& start,
                         const SummaryPlace& place) {
    const EngineStats& stats = start.now.stats;
    const ResultPlace where{place.date, version_and_commit(), place.hardware};
    const double step =
        ratio(stats.decode_seconds * static_cast<double>(start.groups), stats.decode_steps);
    const double floor = start.roofline ? start.roofline->seconds() : kUnknown;
    std::string rows;
    const auto row = [&](const char* bench, double value, const char* unit,
                         double fraction = kUnknown) {
        rows +=
            result_row(where, std::string("generate ") + bench, place.shape, value, unit, fraction);
    };
    const auto of_floor = step > 0 ? floor / step : kUnknown;
    row("time", start.now.seconds, "s");
    if (stats.prefill_seconds > 0) {
        row("prefill", ratio(stats.prefill_tokens, stats.prefill_seconds), "tokens/s");
    }
    if (step > 0) {
        row("decode", ratio(stats.decoded(), stats.decode_seconds), "tokens/s", of_floor);
        row("step", 1e3 * step, "ms", of_floor);
    }
    row("step floor", 1e3 * floor, "ms");
    std::vector<float> whole;
    for (const Latency& latency : start.latencies) whole.push_back(latency.whole);
    row("latency p50", percentile(whole, 0.5), "s");
    row("latency p99", percentile(whole, 0.99), "s");
    if (start.k > 0) row("accept length", totals.accept_length(), "tokens");
    row("records with an error", static_cast<double>(totals.errors), "");
    return rows;
}

}  // namespace quadrille
