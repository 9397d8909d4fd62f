// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_summary.h"

#include <fmt/format.h>

namespace quadrille {

std::string summary_table(const ResultSummary& totals, const ResultSummary& earlier,
                          const StartSummary& start, const std::string& out) {
    const EngineStats& stats = start.stats;
    const int32_t k = start.k;
    const bool several = start.groups > 1;
    // Groups run side by side.
    const double prefill_seconds = stats.prefill_seconds / start.groups;
    const double decode_seconds = stats.decode_seconds / start.groups;
    const auto ratio = [](auto a, auto b) {
        return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
    };
    std::string text;
    const auto line = [&](const char* title, const std::string& value) {
        text += fmt::format("{:<15}{}\n", title, value);
    };
    const std::string before =
        earlier.records > 0 ? fmt::format(" ({} by earlier starts)", earlier.records) : "";
    line("records", fmt::format("{} ok, {} with an error{}", totals.records - totals.errors,
                                totals.errors, before));
    line("tokens", fmt::format("{} read, {} written", stats.prefill_tokens, totals.tokens));
    if (start.restarts > 0) {
        line("figures", fmt::format("of the file: records, tokens written{}; of this start, which "
                                    "wrote {} tokens: the others",
                                    k > 0 ? ", accept length" : "", stats.emitted));
    }
    line("time", fmt::format("{:.2f} s: prefill {:.2f} s, decode {:.2f} s{}", start.seconds,
                             prefill_seconds, decode_seconds,
                             several ? fmt::format(", means of {} groups", start.groups) : ""));
    line("prefill", fmt::format("{:.1f} tokens/s", ratio(stats.prefill_tokens, prefill_seconds)));
    line("decode", fmt::format("{:.1f} tokens/s; {} passes of {:.2f} ms, {:.1f} records each",
                               ratio(stats.decoded(), decode_seconds), stats.decode_steps,
                               1e3 * ratio(stats.decode_seconds, stats.decode_steps),
                               ratio(stats.decode_records, stats.decode_steps)));
    if (k > 0 && totals.steps > 0) {
        std::string positions;
        for (const int64_t count : totals.by_position) {
            positions += fmt::format(" {:.3f}", ratio(count, totals.steps));
        }
        line("accept length", fmt::format("{:.3f} at K = {}; drafts accepted by position:{}",
                                          totals.accept_length(), k, positions));
    }
    line("output", out);
    return text;
}

}  // namespace quadrille
