// SPDX-License-Identifier: Apache-2.0
#include "jobs/bench/bench_report.h"

#include "io/digest.h"
#include "jobs/common/results_tsv.h"
#include "jobs/common/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace quadrille {

namespace {

using nlohmann::ordered_json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double ratio(double a, double b) {
    return b > 0 ? a / b : kUnknown;
}
double as_double(int64_t value) {
    return static_cast<double>(value);
}

// A number, or nothing where it is not known.
std::string number(double value, const char* form = "{:.3f}") {
    return std::isnan(value) ? "" : fmt::format(fmt::runtime(form), value);
}
std::string percent(double fraction) {
    return std::isnan(fraction) ? "-" : fmt::format("{:.0f} %", 100 * fraction);
}
ordered_json number_json(double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

std::string form_name(const Storage& form) {
    return fmt::format("{} bits {}", form.bits, name(form.codebook));
}

// Milliseconds a decode pass spends in a part.
double part_ms(const BenchRun& run, double seconds) {
    return 1e3 * ratio(seconds, as_double(run.stats.decode_steps));
}

WorkSum total_work(const BenchRun& run) {
    WorkSum total;
    for (const auto& [kind, sum] : run.work) {
        total.weights += sum.weights;
        total.state += sum.state;
        total.activations += sum.activations;
        total.decoded += sum.decoded;
    }
    return total;
}

std::string speed_table(const BenchReport& report) {
    Table table("rrrrrrrrrl");
    table.row({"batch", "K", "prefill", "of floor", "decode", "step", "floor", "of floor", "accept",
               "tokens"});
    table.row({"", "", "tokens/s", "", "tokens/s", "ms", "ms", "", "length", ""});
    for (const BenchRun& run : report.runs) {
        const bool known = run.decode_floor > 0;
        const double floor = 1e3 * (run.decode_floor + run.collective_floor);
        table.row({fmt::format("{}", run.concurrency), fmt::format("{}", run.k),
                   number(run.prefill_rate(), "{:.1f}"), percent(run.prefill_fraction()),
                   number(run.decode_rate(), "{:.1f}"), number(1e3 * run.step_seconds()),
                   known ? number(floor) : "-", percent(run.decode_fraction()),
                   run.k > 0 ? number(run.accept_length()) : "-", run.digest()});
    }
    return table.text();
}

// Seconds between recorded steps that follow each other; NaN: there are none.
double host_gap(const EngineStats& s) {
    return ratio(s.gap_seconds, as_double(s.gaps));
}

std::string split_table(const BenchReport& report) {
    Table table("rrrrrrrrrrrr");
    table.row({"batch", "K", "records", "draft", "verify", "accept", "context", "other",
               "collectives", "graphs", "host gap", "spread"});
    table.row({"", "", "a step", "ms", "ms", "ms", "ms", "ms", "ms of these", "", "us", ""});
    for (const BenchRun& run : report.runs) {
        const EngineStats& s = run.stats;
        const double parts =
            s.draft_seconds + s.verify_seconds + s.accept_seconds + s.context_seconds;
        table.row({fmt::format("{}", run.concurrency), fmt::format("{}", run.k),
                   number(ratio(as_double(s.decode_records), as_double(s.decode_steps)), "{:.2f}"),
                   number(part_ms(run, s.draft_seconds)), number(part_ms(run, s.verify_seconds)),
                   number(part_ms(run, s.accept_seconds)), number(part_ms(run, s.context_seconds)),
                   number(part_ms(run, s.decode_seconds - parts)),
                   number(part_ms(run, run.decode_collectives)),
                   percent(ratio(as_double(s.recorded_steps), as_double(s.decode_steps))),
                   s.gaps > 0 ? number(1e6 * host_gap(s), "{:.1f}") : "-",
                   report.repeat > 1 ? percent(run.spread) : "-"});
    }
    return table.text();
}

// What one decode pass of a rank reads and decodes, by kind.
std::string work_table(const BenchRun& run) {
    Table table("lrrrrrr");
    table.row({"a decode pass reads", "weights", "state", "activations", "EXL3 weights", "floor ms",
               "prefill's"});
    const auto line = [&](const char* title, const WorkSum& sum, double floor, double prefill) {
        const auto bytes = [](double value) { return format_bytes(std::llround(value)); };
        table.row({title, bytes(sum.weights), bytes(sum.state), bytes(sum.activations),
                   fmt::format("{:.2f} M", 1e-6 * sum.decoded),
                   floor > 0 ? number(1e3 * floor) : "-",
                   prefill > 0 ? number(1e3 * prefill, "{:.1f}") : "-"});
    };
    const auto floor_of = [](const std::map<WorkKind, double>& floors, WorkKind kind) {
        const auto found = floors.find(kind);
        return found == floors.end() ? 0.0 : found->second;
    };
    for (const auto& [kind, sum] : run.work) {
        line(name(kind), sum, floor_of(run.floors, kind), floor_of(run.prefill_floors, kind));
    }
    line("all", total_work(run), run.decode_floor, run.prefill_floor);
    return table.text();
}

ordered_json work_json(const WorkSum& sum) {
    return {{"weight_bytes", sum.weights},
            {"state_bytes", sum.state},
            {"activation_bytes", sum.activations},
            {"exl3_weights", sum.decoded}};
}

ordered_json run_json(const BenchRun& run) {
    const EngineStats& s = run.stats;
    const double seconds = s.prefill_seconds + s.decode_seconds;
    ordered_json out = {{"k", run.k},
                        {"concurrency", run.concurrency},
                        {"request_count", std::ssize(run.tokens)},
                        {"measurement_seconds", seconds},
                        {"aggregate_tps", number_json(ratio(as_double(s.emitted), seconds))},
                        {"prefill_tokens", s.prefill_tokens},
                        {"prefill_passes", run.prefill_passes},
                        {"prefill_seconds", s.prefill_seconds},
                        {"prefill_tokens_per_second", number_json(run.prefill_rate())},
                        {"prefill_floor_seconds", run.prefill_floor},
                        {"prefill_collective_seconds", run.prefill_collectives},
                        {"prefill_collective_floor_seconds", run.prefill_collective_floor},
                        {"prefill_fraction", number_json(run.prefill_fraction())},
                        {"decode_tokens", run.decode_emitted},
                        {"decode_passes", s.decode_steps},
                        {"decode_records", s.decode_records},
                        {"recorded_passes", s.recorded_steps},
                        {"host_gap_seconds", number_json(host_gap(s))},
                        {"decode_seconds", s.decode_seconds},
                        {"decode_spread", run.spread},
                        {"decode_tokens_per_second", number_json(run.decode_rate())},
                        {"step_seconds", number_json(run.step_seconds())},
                        {"draft_seconds", s.draft_seconds},
                        {"verify_seconds", s.verify_seconds},
                        {"accept_seconds", s.accept_seconds},
                        {"context_seconds", s.context_seconds},
                        {"collective_seconds", run.decode_collectives},
                        {"accept_length", number_json(run.accept_length())},
                        {"step_floor_seconds", run.decode_floor},
                        {"step_collective_floor_seconds", run.collective_floor},
                        {"decode_fraction", number_json(run.decode_fraction())},
                        {"tokens_digest", run.digest()}};
    ordered_json work;
    for (const auto& [kind, sum] : run.work) {
        work[name(kind)] = work_json(sum);
        if (run.floors.contains(kind)) work[name(kind)]["floor_seconds"] = run.floors.at(kind);
        if (!run.prefill_floors.contains(kind)) continue;
        work[name(kind)]["prefill_floor_seconds"] = run.prefill_floors.at(kind);
    }
    work["all"] = work_json(total_work(run));
    out["step_work"] = std::move(work);
    return out;
}

}  // namespace

double BenchRun::prefill_rate() const {
    return ratio(as_double(stats.prefill_tokens), stats.prefill_seconds);
}
double BenchRun::decode_rate() const {
    return ratio(as_double(decode_emitted), stats.decode_seconds);
}
double BenchRun::step_seconds() const {
    return ratio(stats.decode_seconds, as_double(stats.decode_steps));
}
double BenchRun::accept_length() const {
    return 1.0 + ratio(as_double(accepted), as_double(draft_steps));
}
double BenchRun::decode_fraction() const {
    if (decode_floor <= 0) return kUnknown;
    return ratio(decode_floor + collective_floor, step_seconds());
}
double BenchRun::prefill_fraction() const {
    if (prefill_floor <= 0) return kUnknown;
    return ratio(prefill_floor + prefill_collective_floor, stats.prefill_seconds);
}
std::string BenchRun::digest() const {
    Digest digest;
    for (const std::vector<int32_t>& record : tokens) digest.add(std::as_bytes(std::span(record)));
    return digest.hex();
}

std::string first_difference(std::span<const BenchRun> runs) {
    for (size_t at = 1; at < runs.size(); ++at) {
        const auto& expected = runs.front().tokens;
        const auto& found = runs[at].tokens;
        if (found == expected) continue;
        const std::string title =
            fmt::format("K = {}, concurrency {} against K = {}, concurrency {}", runs[at].k,
                        runs[at].concurrency, runs.front().k, runs.front().concurrency);
        if (found.size() != expected.size()) {
            return fmt::format("{}: {} records, not {}", title, found.size(), expected.size());
        }
        for (size_t record = 0; record < found.size(); ++record) {
            const auto& a = expected[record];
            const auto& b = found[record];
            const auto [left, right] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
            if (left == a.end() && right == b.end()) continue;
            return fmt::format("{}: record {} differs from token {} on", title, record,
                               left - a.begin());
        }
    }
    return "";
}

std::string draws_text(const RecordOptions& options) {
    std::string text =
        options.temperature == 0.0 ? "greedy" : fmt::format("temperature {}", options.temperature);
    const auto add = [&text](const char* name, auto value, auto off) {
        if (value != off) text += fmt::format(", {} {}", name, value);
    };
    add("top_p", options.top_p, 1.0);
    add("top_k", options.top_k, int64_t{0});
    add("min_p", options.min_p, 0.0);
    add("repetition_penalty", options.repetition_penalty, 1.0);
    add("logprobs", options.logprobs, int64_t{-1});
    return text;
}

std::string bench_table(const BenchReport& r) {
    Table head("ll");
    head.row({"target", r.target})
        .row({"drafter", r.draft})
        .row({"machine", fmt::format("{}; {} rank{}, {}, {}", r.hardware, r.ranks,
                                     r.ranks == 1 ? "" : "s", r.backend, r.comm)})
        .row({"records",
              fmt::format("{}, {}, {} new tokens each", r.records, r.prompts, r.new_tokens)})
        .row({"draws", r.draws})
        .row({"reads", r.rates.read > 0 ? fmt::format("{:.1f} GB/s a rank", 1e-9 * r.rates.read)
                                        : "not known"});
    for (const auto& [form, rate] : r.rates.decode) {
        head.row({"decodes",
                  fmt::format("{:.3f} G weights/s a rank, {}", 1e-9 * rate, form_name(form))});
    }
    if (r.rates.multiply > 0) {
        head.row({"multiplies",
                  fmt::format("{:.1f} T multiply-adds/s a rank", 1e-12 * r.rates.multiply)});
    }
    std::string text = head.text() + '\n' + speed_table(r) + '\n' + split_table(r);
    for (const BenchRun& run : r.runs) {
        text += fmt::format("\nbatch {}, K = {}\n{}", run.concurrency, run.k, work_table(run));
    }
    return text;
}

std::string bench_json(const BenchReport& r) {
    ordered_json out = {{"date", r.date},
                        {"version", r.version},
                        {"hardware", r.hardware},
                        {"backend", r.backend},
                        {"comm", r.comm},
                        {"eager", r.eager},
                        {"ranks", r.ranks},
                        {"target", r.target},
                        {"draft", r.draft},
                        {"prompts", r.prompts},
                        {"draws", r.draws},
                        {"records", r.records},
                        {"prompt_tokens", r.prompt_tokens},
                        {"new_tokens", r.new_tokens},
                        {"repeat", r.repeat},
                        {"read_bytes_per_second", r.rates.read},
                        {"multiply_adds_per_second", r.rates.multiply}};
    ordered_json decode;
    for (const auto& [form, rate] : r.rates.decode) decode[form_name(form)] = rate;
    out["exl3_weights_per_second"] = decode.is_null() ? ordered_json::object() : decode;
    out["tokens_equal"] = first_difference(r.runs).empty();
    ordered_json runs = ordered_json::array();
    for (const BenchRun& run : r.runs) runs.push_back(run_json(run));
    out["runs"] = std::move(runs);
    return out.dump(1) + '\n';
}

std::string bench_rows(const BenchReport& r) {
    std::string text;
    std::string shape;
    const auto row = [&](const std::string& bench, double value, const char* unit,
                         double fraction = kUnknown) {
        text += result_row({r.date, r.version, r.hardware}, "bench " + bench, shape, value, unit,
                           fraction);
    };
    const std::string ranks =
        fmt::format("{}, {} rank{}", r.backend, r.ranks, r.ranks == 1 ? "" : "s");
    shape = ranks;
    if (r.rates.read > 0) row("read", 1e-9 * r.rates.read, "GB/s");
    for (const auto& [form, rate] : r.rates.decode) {
        row("decode " + form_name(form), 1e-9 * rate, "G weights/s");
    }
    if (r.rates.multiply > 0) row("multiply", 1e-12 * r.rates.multiply, "T multiply-adds/s");
    for (const BenchRun& run : r.runs) {
        shape = fmt::format("{}, {}, {}, {}, {} new, batch {}, K {}", r.target, r.draft, ranks,
                            r.prompts, r.new_tokens, run.concurrency, run.k);
        const EngineStats& s = run.stats;
        if (r.draws != "greedy") shape += ", " + r.draws;
        if (s.recorded_steps > 0) shape += ", graphs";
        if (r.eager) shape += ", eager";
        if (r.ranks > 1 && r.backend != "cpu") shape += ", " + r.comm;
        const WorkSum work = total_work(run);
        row("prefill", run.prefill_rate(), "tokens/s", run.prefill_fraction());
        row("decode", run.decode_rate(), "tokens/s", run.decode_fraction());
        row("step", 1e3 * run.step_seconds(), "ms", run.decode_fraction());
        if (run.decode_floor > 0) {
            row("step floor", 1e3 * (run.decode_floor + run.collective_floor), "ms");
        }
        // A recorded step has no parts that the host could tell apart.
        if (s.recorded_steps > 0) {
            row("step host gap", 1e6 * host_gap(s), "us");
        } else {
            if (run.k > 0) row("step draft", part_ms(run, s.draft_seconds), "ms");
            row("step verify", part_ms(run, s.verify_seconds), "ms");
            row("step accept", part_ms(run, s.accept_seconds), "ms");
            if (run.k > 0) row("step context", part_ms(run, s.context_seconds), "ms");
            row("step collectives", part_ms(run, run.decode_collectives), "ms",
                ratio(1e3 * run.collective_floor, part_ms(run, run.decode_collectives)));
        }
        row("step bytes", 1e-6 * work.bytes(), "MB");
        row("step EXL3 weights", 1e-6 * work.decoded, "M");
        if (run.k > 0) row("accept length", run.accept_length(), "tokens");
    }
    return text;
}

}  // namespace quadrille
