// SPDX-License-Identifier: Apache-2.0
#include "jobs/provenance.h"

#include "io/digest.h"
#include "kernels/check.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <fstream>

namespace quadrille {

namespace {

std::string file_digest(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(ErrorKind::io, fmt::format("{}: cannot be read", path));
    Digest digest;
    std::vector<char> block(size_t{1} << 20);
    while (file) {
        file.read(block.data(), std::ssize(block));
        digest.add(std::string_view(block.data(), static_cast<size_t>(file.gcount())));
    }
    return digest.hex();
}

// Options that decide what a record computes.
h5::Attributes sampling(const RecordOptions& record, uint64_t seed) {
    return {{"max_new_tokens", record.max_new_tokens},
            {"temperature", record.temperature},
            {"top_p", record.top_p},
            {"top_k", record.top_k},
            {"min_p", record.min_p},
            {"repetition_penalty", record.repetition_penalty},
            {"logprobs", record.logprobs},
            {"ignore_eos", int64_t{record.ignore_eos ? 1 : 0}},
            {"seed", static_cast<int64_t>(seed)}};
}

}  // namespace

std::string utc_now() {
    return fmt::format(
        "{:%Y-%m-%dT%H:%M:%SZ}",
        fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

h5::Attributes fingerprint(const GenerateOptions& options, const std::vector<std::string>& prompts,
                           const Checkpoint& checkpoint, const Checkpoint* drafter,
                           const Tokenizer* tokenizer, int64_t k, int64_t context,
                           const Backend& backend) {
    h5::Attributes fields = sampling(options.record, options.seed);
    fields["checkpoint_digest"] = checkpoint.digest();
    fields["drafter_digest"] = drafter == nullptr ? std::string() : drafter->digest();
    fields["tokenizer_digest"] = tokenizer == nullptr ? std::string() : tokenizer->digest();
    fields["prompts_digest"] = file_digest(prompts.front());
    fields["k"] = k;
    fields["context"] = context;
    fields["limit"] = options.limit;
    fields["backend"] = backend.name();
    fields["text"] = int64_t{tokenizer != nullptr && !options.no_text ? 1 : 0};
    return fields;
}

h5::Attributes provenance(const GenerateOptions& options, const std::string& start,
                          const MpiSession& session, const Backend& backend,
                          const Communicator& comm, const Checkpoint& checkpoint,
                          const Checkpoint* drafter, int64_t k, int64_t records_computed) {
    h5::Attributes fields = sampling(options.record, options.seed);
    fields["version"] = version();
    fields["commit"] = commit();
    fields["command_line"] = options.command_line;
    fields["hosts"] = session.hosts();
    fields["ranks"] = int64_t{session.size()};
    fields["backend"] = backend.name();
    fields["device"] = backend.device();
    fields["comm"] = comm.name();
    fields["target"] = options.target;
    fields["checkpoint_digest"] = checkpoint.digest();
    fields["drafter_digest"] = drafter == nullptr ? std::string() : drafter->digest();
    fields["draft"] = options.draft;
    fields["k"] = k;
    fields["max_seqs"] = options.max_seqs;
    fields["max_batched_tokens"] = options.max_batched_tokens;
    fields["start"] = start;
    fields["end"] = utc_now();
    fields["slurm_job"] = options.slurm_job;
    fields["restarts"] = int64_t{0};
    fields["records_computed"] = records_computed;
    return fields;
}

}  // namespace quadrille
