// SPDX-License-Identifier: Apache-2.0
#include "jobs/verify/verify.h"

#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "io/results/assembly.h"
#include "io/results/generation_reader.h"
#include "jobs/common/table.h"
#include "jobs/generate/generate.h"
#include "runtime/log.h"
#include "runtime/ranks/agree.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kSlice = 256;
constexpr int64_t kBest = 20;  // alternatives that tell how far a token was from the choice
constexpr size_t kShown = 10;  // records that differ, in the table

// Fields of /provenance that the replay must share, and those that say what it is to do.
constexpr const char* kShared[] = {"checkpoint_digest", "config_digest", "tokenizer_digest",
                                   "generation_config_digest", "prompts_digest"};

struct Difference {
    RecordKey key;
    size_t token = 0;     // the first that differs
    int32_t found = -1;   // in the file; -1: it ends before
    int32_t replay = -1;  // without drafts
    double gap = NAN;     // of their log-probabilities; NaN: not among the best
};

struct Outcome {
    int64_t records = 0;
    int64_t tokens = 0;
    std::vector<Difference> differences;
};

h5::Attributes provenance_of(const GenerationReader& reader) {
    if (!reader.file().has_group("provenance")) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected /provenance with the settings of its run, found none",
                                reader.path().string()));
    }
    return reader.file().group("provenance").attributes();
}

// The settings of the run in `file`, as text that goes to all ranks.
std::string settings_of(const fs::path& file) {
    try_files({file});
    const GenerationReader reader(file, schema::kGenerations);
    if (!reader.is_complete()) {
        throw Error(ErrorKind::input, fmt::format("{}: is not complete", file.string()));
    }
    json settings = {{"records", reader.record_count()}, {"k", 0}};
    for (const auto& [name, value] : provenance_of(reader)) {
        if (const auto* number = std::get_if<int64_t>(&value)) settings[name] = *number;
        if (const auto* real = std::get_if<double>(&value)) settings[name] = *real;
        if (const auto* text = std::get_if<std::string>(&value)) settings[name] = *text;
    }
    for (const char* name : {"max_new_tokens", "temperature", "seed", "context", "shard"}) {
        if (settings.contains(name)) continue;
        throw Error(ErrorKind::input,
                    fmt::format("{}: /provenance: expected {}, found none", file.string(), name));
    }
    if (settings.value("accept", "coupled") == "rejection" && settings["k"] > 0) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: was made with --accept rejection, whose tokens depend on the "
                                "drafts: expected a run with coupled acceptance",
                                file.string()));
    }
    return settings.dump();
}

GenerateOptions replay_of(const VerifyOptions& options, const json& settings) {
    GenerateOptions replay = options.generate;
    RecordOptions& record = replay.record;
    record.max_new_tokens = settings["max_new_tokens"];
    record.temperature = settings["temperature"];
    record.top_p = settings.value("top_p", record.top_p);
    record.top_k = settings.value("top_k", record.top_k);
    record.min_p = settings.value("min_p", record.min_p);
    record.repetition_penalty = settings.value("repetition_penalty", record.repetition_penalty);
    record.ignore_eos = settings.value("ignore_eos", int64_t{0}) != 0;
    record.samples = settings.value("samples", int64_t{1});
    record.logprobs = std::max(settings.value("logprobs", int64_t{-1}), kBest);
    replay.seed = static_cast<uint64_t>(settings["seed"].get<int64_t>());
    replay.max_context = settings["context"];
    replay.limit = settings.value("limit", int64_t{0});
    const std::string shard = settings["shard"];
    const size_t slash = shard.find('/');
    replay.shard.index = std::stoll(shard.substr(0, slash));
    replay.shard.count = std::stoll(shard.substr(slash + 1));
    const int64_t records = settings["records"];
    if (options.sample > 0 && records > options.sample) {  // every so many
        replay.shard.count *= (records + options.sample - 1) / options.sample;
    }
    return replay;
}

void compare(const Generation& found, const Generation& replay, Outcome& outcome) {
    ++outcome.records;
    outcome.tokens += std::ssize(replay.tokens);
    const auto [a, b] = std::ranges::mismatch(found.tokens, replay.tokens);
    if (a == found.tokens.end() && b == replay.tokens.end()) {
        if (found.status == replay.status && found.finish_reason == replay.finish_reason) return;
    }
    Difference difference{.key = key_of(replay),
                          .token = static_cast<size_t>(b - replay.tokens.begin())};
    if (a != found.tokens.end()) difference.found = *a;
    if (b != replay.tokens.end()) difference.replay = *b;
    const size_t width = replay.tokens.empty() ? 0 : replay.top_ids.size() / replay.tokens.size();
    for (size_t i = 0; i < width && b != replay.tokens.end(); ++i) {
        const size_t at = difference.token * width + i;
        if (replay.top_ids[at] != difference.found) continue;
        difference.gap =
            double{replay.chosen_logprobs[difference.token]} - double{replay.top_logprobs[at]};
    }
    outcome.differences.push_back(difference);
}

Outcome compare_files(const fs::path& results, const fs::path& replayed) {
    const GenerationReader found(results, schema::kGenerations);
    const GenerationReader replay(replayed, schema::kGenerations);
    const h5::Attributes then = provenance_of(found);
    const h5::Attributes now = provenance_of(replay);
    for (const char* name : kShared) {
        const auto a = then.find(name);
        const auto b = now.find(name);
        if (a == then.end() || b == now.end() || a->second == b->second) continue;
        throw Error(
            ErrorKind::input,
            fmt::format("{}: {} was {}, is {}: expected the models and prompts of its run",
                        results.string(), name, h5::describe(a->second), h5::describe(b->second)));
    }
    const std::vector<RecordKey> keys = found.keys(0, found.record_count());
    Outcome outcome;
    for (int64_t first = 0; first < replay.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, replay.record_count() - first);
        for (const Generation& record : replay.read(first, count)) {
            const int64_t row = find_row(keys, key_of(record));
            if (row < 0) {
                throw Error(ErrorKind::input, fmt::format("{}: expected record {}, found none",
                                                          results.string(), record.prompt_index));
            }
            compare(found.read(row, 1).front(), record, outcome);
        }
    }
    return outcome;
}

std::string token_text(int32_t token) {
    return token < 0 ? "end" : fmt::to_string(token);
}

void report(const VerifyOptions& options, const Outcome& outcome) {
    show(stdout,
         fmt::format("{}: {} records replayed without drafts, {} tokens; {} differ\n",
                     options.results, outcome.records, outcome.tokens, outcome.differences.size()));
    Table table("rrrrrr");
    table.row({"record", "sample", "token", "found", "replayed", "gap"});
    json list = json::array();
    for (size_t i = 0; i < outcome.differences.size(); ++i) {
        const Difference& d = outcome.differences[i];
        const std::string gap =
            std::isnan(d.gap) ? fmt::format("not among {}", kBest) : fmt::format("{:.6f}", d.gap);
        if (i < kShown) {
            table.row({fmt::to_string(d.key.prompt_index), fmt::to_string(d.key.sample),
                       fmt::to_string(d.token), token_text(d.found), token_text(d.replay), gap});
        }
        list.push_back({{"source", d.key.source},
                        {"record", d.key.prompt_index},
                        {"sample", d.key.sample},
                        {"token", d.token},
                        {"found", d.found},
                        {"replayed", d.replay},
                        {"gap", std::isnan(d.gap) ? json() : json(d.gap)}});
    }
    if (!outcome.differences.empty()) show(stdout, table.text(0));
    if (options.json.empty()) return;
    const json document = {{"results", options.results},
                           {"records", outcome.records},
                           {"tokens", outcome.tokens},
                           {"differences", list}};
    replace_file(options.json, document.dump(2) + "\n");
}

}  // namespace

int run_verify(const VerifyOptions& options, const RankStart& start) {
    MpiSession& mpi = start.session;
    const bool leads = mpi.rank() == 0;
    std::string settings;
    agree(
        mpi.world(), "results",
        [&] {
            if (!leads) return;
            settings = settings_of(options.results);
            if (options.json.empty()) return;
            const auto objection = [](const fs::path& path) {
                return not_json(path, "a report of verify, which is replaced", {"differences"});
            };
            output_path(options.json, {.option = "--json",
                                       .overwrite = true,
                                       .taken = {options.results},
                                       .objection = objection});
        },
        mpi.hosts());
    settings = gather_texts(mpi.world(), settings).front();
    const GenerateOptions replay = replay_of(options, json::parse(settings));
    const int code = run_generate(replay, start);
    if (code != kSuccess) return code;
    int64_t differ = 0;
    agree(
        mpi.world(), "comparison",
        [&] {
            if (!leads) return;
            const Outcome outcome = compare_files(options.results, replay.out);
            std::error_code ignored;
            fs::remove(replay.out, ignored);
            report(options, outcome);
            differ = std::ssize(outcome.differences);
        },
        mpi.hosts());
    return mpi.world().max_host(differ) > 0 ? kRecordErrors : kSuccess;
}

}  // namespace quadrille
