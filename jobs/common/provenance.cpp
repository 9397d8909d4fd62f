// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/provenance.h"

#include "jobs/common/version.h"
#include "kernels/exl3.h"
#include "runtime/ranks/mpi.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace quadrille {

namespace {

// Options that decide what a record computes.
h5::Attributes sampling(const GenerateOptions& options) {
    const RecordOptions& record = options.record;
    const bool coupled = options.accept == AcceptRule::coupled;
    return {{"max_new_tokens", record.max_new_tokens},
            {"temperature", record.temperature},
            {"top_p", record.top_p},
            {"top_k", record.top_k},
            {"min_p", record.min_p},
            {"repetition_penalty", record.repetition_penalty},
            {"logprobs", record.logprobs},
            {"ignore_eos", int64_t{record.ignore_eos ? 1 : 0}},
            {"seed", static_cast<int64_t>(options.seed)},
            {"samples", options.record.samples},
            {"shard", fmt::format("{}/{}", options.shard.index, options.shard.count)},
            {"accept", std::string(coupled ? "coupled" : "rejection")}};
}

void add_figures(std::string_view prefix, const StartFigures& figures, h5::Attributes& fields) {
    const EngineStats& stats = figures.stats;
    const auto add = [&](std::string_view name, h5::Value value) {
        fields[fmt::format("{}{}", prefix, name)] = std::move(value);
    };
    add("seconds", figures.seconds);
    add("prefill_seconds", stats.prefill_seconds);
    add("decode_seconds", stats.decode_seconds);
    add("draft_seconds", stats.draft_seconds);
    add("verify_seconds", stats.verify_seconds);
    add("accept_seconds", stats.accept_seconds);
    add("context_seconds", stats.context_seconds);
    add("collective_seconds", figures.collectives);
    add("reading_seconds", figures.loop.reading);
    add("writing_seconds", figures.loop.writing);
    add("idle_seconds", figures.loop.idle);
    add("tokens_read", stats.prefill_tokens);
    add("tokens_written", stats.emitted);
    add("passes", stats.steps);
    add("decode_passes", stats.decode_steps);
}

}  // namespace

std::string utc_now() {
    return fmt::format(
        "{:%Y-%m-%dT%H:%M:%SZ}",
        fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

h5::Attributes fingerprint(const GenerateOptions& options, const h5::Attributes& models,
                           const Tokenizer* tokenizer, const std::string& prompts_digest, int64_t k,
                           int64_t context, const Backend& backend) {
    h5::Attributes fields = sampling(options);
    fields.insert(models.begin(), models.end());
    fields["tokenizer_digest"] = tokenizer == nullptr ? std::string() : tokenizer->digest();
    fields["prompts_digest"] = prompts_digest;
    fields["k"] = k;
    fields["context"] = context;
    fields["limit"] = options.limit;
    fields["backend"] = backend.name();
    fields["decoded_form"] = std::string(exl3::kDecodedForm);
    fields["text"] = int64_t{tokenizer != nullptr && !options.no_text ? 1 : 0};
    if (options.scores) fields["job"] = std::string("score");
    return fields;
}

h5::Attributes provenance(const GenerateOptions& options, h5::Attributes fingerprint,
                          const RunFacts& facts) {
    h5::Attributes fields = std::move(fingerprint);
    fields["version"] = version();
    fields["commit"] = commit();
    fields["command_line"] = options.command_line;
    std::vector<std::string> libraries = {mpi::library_version(), h5::library_version(),
                                          "compiler " __VERSION__};
    libraries.insert(libraries.end(), facts.libraries.begin(), facts.libraries.end());
    fields["libraries"] = std::move(libraries);
    fields["hosts"] = facts.hosts;
    fields["devices"] = facts.devices;
    fields["ranks"] = std::ssize(facts.hosts);
    fields["groups"] = facts.groups;
    fields["comm"] = facts.comm;
    fields["target"] = options.target;
    fields["draft"] = options.draft;
    fields["max_seqs"] = facts.max_seqs;
    fields["max_batched_tokens"] = options.max_batched_tokens;
    fields["graphs"] = int64_t{facts.last.stats.recorded_steps > 0 ? 1 : 0};
    fields["start"] = facts.start;
    fields["end"] = utc_now();
    const double decoding = facts.last.stats.decode_seconds;
    fields["decode_rate"] =
        decoding > 0 ? static_cast<double>(facts.last.stats.decoded()) / decoding : 0.0;
    add_figures(kLastStart, facts.last, fields);
    add_figures(kAllStarts, facts.all, fields);
    fields["slurm_job"] = options.slurm_job;
    fields["restarts"] = facts.restarts;
    fields["records_computed"] = facts.records_computed;
    return fields;
}

}  // namespace quadrille
