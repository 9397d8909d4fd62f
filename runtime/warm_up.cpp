// SPDX-License-Identifier: Apache-2.0
#include "runtime/warm_up.h"

#include "runtime/device_step.h"

#include <algorithm>
#include <utility>

namespace quadrille {

namespace {

constexpr int32_t kSteps = 2;  // of a size: one that runs, one that is recorded

void run_records(Engine& engine, const WarmUp& run, int64_t count, int64_t prompt,
                 int64_t new_tokens) {
    for (int64_t i = 0; i < count; ++i) {
        Prompt record;
        record.index = i;
        record.tokens.assign(static_cast<size_t>(prompt), 0);
        record.options = run.record;
        record.options.max_new_tokens = new_tokens;
        record.options.ignore_eos = true;
        record.options.stop_text.clear();
        engine.submit(std::move(record));
    }
    while (!engine.idle()) engine.step();
    engine.take_finished();
}

}  // namespace

void warm_up(Engine& engine, const WarmUp& run) {
    const ModelLimits& limits = run.limits;
    const int64_t longest = std::max<int64_t>(limits.capacity - 1, 1);
    const int64_t prompt = std::min<int64_t>(longest, run.prefill_rows);
    const int64_t records = std::min<int64_t>(limits.slots, run.prefill_rows / prompt);
    run_records(engine, run, records, prompt, 1);
    // A record has up to K + 1 tokens of a step, so that all are there for kSteps of them.
    const int64_t tokens =
        std::min<int64_t>(1 + int64_t{kSteps} * (run.k + 1), limits.capacity - 1);
    for (int32_t count = limits.slots; count > 0; --count) {
        if (step_bucket(count, limits.slots) != count) continue;
        run_records(engine, run, count, 1, tokens);
    }
    engine.clear_stats();
}

}  // namespace quadrille
