// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_engine.h"

#include "io/results/crash_log.h"
#include "runtime/engine.h"
#include "runtime/scorer.h"
#include "runtime/warm_up.h"

#include <span>
#include <vector>

namespace quadrille {

std::unique_ptr<RecordRunner> make_runner(ModelSession& session, Communicator& comm,
                                          const GenerateOptions& options,
                                          const RunnerChoice& choice) {
    Backend& backend = session.backend();
    TargetModel& target = session.models().target();
    LastWords& words = choice.last_words;
    const auto note = [&words](auto running) { words.set(crash_text(running)); };
    if (options.scores) {
        return std::make_unique<Scorer>(backend, comm, session.position(), target, note);
    }
    const auto warm = std::make_shared<bool>(false);  // what runs are records of the run
    const EngineOptions engine_options = {
        .max_batched_tokens = prefill_rows(target.limits()),
        .k = choice.k,
        .known_tokens = choice.known_tokens,
        .eos = session.models().config().eos_token_ids,
        .seed = options.seed,
        .accept = options.accept,
        .tokenizer = choice.tokenizer,
        .steps = options.eager ? StepWay::in_parts : StepWay::recorded,
        .on_running = [warm, note](std::span<const Sequence> running) {
            std::vector<RecordKey> keys;
            for (const Sequence& sequence : running) keys.push_back(key_of(sequence.prompt));
            if (*warm) note(std::span<const RecordKey>(keys));
        }};
    auto engine = std::make_unique<Engine>(backend, comm, session.position(), target,
                                           session.models().drafter(), engine_options);
    if (backend.records()) {
        warm_up(*engine,
                {choice.limits, engine_options.max_batched_tokens, choice.k, options.record});
    }
    *warm = true;
    return engine;
}

}  // namespace quadrille
