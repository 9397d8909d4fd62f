// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/merge.h"

#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/results/generation_reader.h"
#include "io/results/result_files.h"
#include "jobs/common/provenance.h"
#include "jobs/options/option_checks.h"
#include "kernels/error.h"
#include "runtime/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

// What shards of one run have in common (io/FORMAT.md, fingerprint). The context is not among it:
// without a flag it follows a shard's longest prompt, and decides nothing.
constexpr std::array kCommon = {"checkpoint_digest",
                                "drafter_digest",
                                "config_digest",
                                "generation_config_digest",
                                "draft_config_digest",
                                "tokenizer_digest",
                                "template_digest",
                                "prompts_digest",
                                "max_new_tokens",
                                "temperature",
                                "top_p",
                                "top_k",
                                "min_p",
                                "repetition_penalty",
                                "logprobs",
                                "ignore_eos",
                                "seed",
                                "samples",
                                "accept",
                                "k",
                                "limit",
                                "decoded_form",
                                "text"};

struct ShardFile {
    fs::path path;
    GenerationLayout layout;
    h5::Attributes provenance;
    Shard shard;
    std::vector<RecordKey> keys;
};

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
    throw Error(ErrorKind::input, fmt::format("{}: {}", path.string(), what));
}

ShardFile read_shard(const fs::path& path) {
    const GenerationReader reader(path, schema::kGenerations);
    if (!reader.is_complete()) fail(path, "is not complete (no attribute complete = 1)");
    ShardFile file;
    file.path = path;
    file.layout = reader.layout();
    if (reader.file().has_group("provenance")) {
        file.provenance = reader.file().group("provenance").attributes();
    }
    const auto shard = file.provenance.find("shard");
    const auto* text =
        shard == file.provenance.end() ? nullptr : std::get_if<std::string>(&shard->second);
    const std::optional<Shard> parsed = text == nullptr ? std::nullopt : parse_shard(*text);
    if (!parsed) fail(path, "expected a shard I/N in its provenance, found none");
    file.shard = *parsed;
    file.keys = reader.keys(0, reader.record_count());
    return file;
}

std::string shown(const h5::Attributes& fields, const std::string& name) {
    const auto found = fields.find(name);
    if (found == fields.end()) return "none";
    const std::string text = h5::describe(found->second);
    return text.empty() ? "none" : text;
}

void check_alike(const ShardFile& first, const ShardFile& other) {
    for (const char* name : kCommon) {
        const std::string expected = shown(first.provenance, name);
        const std::string found = shown(other.provenance, name);
        if (expected == found) continue;
        fail(other.path, fmt::format("expected {} {} as in {}, found {}", name, expected,
                                     first.path.string(), found));
    }
    if (other.layout.k != first.layout.k || other.layout.text != first.layout.text ||
        other.layout.trace != first.layout.trace || other.layout.id != first.layout.id) {
        fail(other.path, "expected the datasets of " + first.path.string());
    }
}

// One file of each shard, in order.
void check_shards(std::vector<ShardFile>& files) {
    std::ranges::sort(files, {}, [](const ShardFile& file) { return file.shard.index; });
    const int64_t count = files.front().shard.count;
    for (size_t i = 0; i < files.size(); ++i) {
        const Shard& shard = files[i].shard;
        if (shard.count != count) {
            fail(files[i].path,
                 fmt::format("expected one of {} shards as in {}, found {}/{}", count,
                             files[0].path.string(), shard.index, shard.count));
        }
        if (i > 0 && shard.index == files[i - 1].shard.index) {
            fail(files[i].path, fmt::format("shard {}/{} is also in {}", shard.index, count,
                                            files[i - 1].path.string()));
        }
        if (shard.index != static_cast<int64_t>(i)) break;
    }
    std::string missing;
    std::set<int64_t> there;
    for (const ShardFile& file : files) there.insert(file.shard.index);
    for (int64_t i = 0, named = 0; i < count && named < 10; ++i) {
        if (there.contains(i)) continue;
        missing += fmt::format("{}{}/{}", missing.empty() ? "" : ", ", i, count);
        ++named;
    }
    if (missing.empty()) return;
    throw Error(ErrorKind::input, fmt::format("merge: expected {} shards, found {}: missing are {}",
                                              count, files.size(), missing));
}

// Records of all files, ascending; each is dealt to the shard that has it.
std::vector<RecordKey> all_records(const std::vector<ShardFile>& files) {
    std::vector<RecordKey> records;
    for (const ShardFile& file : files) {
        records.insert(records.end(), file.keys.begin(), file.keys.end());
    }
    std::ranges::sort(records);
    const auto twice = std::ranges::adjacent_find(records);
    if (twice != records.end()) {
        throw Error(ErrorKind::input,
                    fmt::format("merge: record {} (prompt file {}, sample {}) is "
                                "in two files",
                                twice->prompt_index, twice->source, twice->sample));
    }
    return records;
}

GenerationLayout common_layout(const std::vector<ShardFile>& files) {
    GenerationLayout layout = files.front().layout;
    for (const ShardFile& file : files) {
        layout.logprobs = std::max(layout.logprobs, file.layout.logprobs);
        if (!file.layout.origin || layout.sources.size() > file.layout.sources.size()) continue;
        layout.origin = true;
        layout.sources = file.layout.sources;
    }
    return layout;
}

bool adds_up(const std::string& name) {
    return name == "restarts" || name == "records_computed" || name.starts_with(kAllStarts);
}

// Numbers of one type; anything else stays.
void add(h5::Value& sum, const h5::Value& value) {
    if (sum.index() != value.index()) return;
    if (auto* count = std::get_if<int64_t>(&sum)) *count += std::get<int64_t>(value);
    if (auto* time = std::get_if<double>(&sum)) *time += std::get<double>(value);
}

// What the shards have in common; times, starts and records computed are those of all.
h5::Attributes common_provenance(const std::vector<ShardFile>& files,
                                 const std::vector<std::string>& names) {
    h5::Attributes fields = files.front().provenance;
    for (const ShardFile& file : files) {
        for (const auto& [name, value] : file.provenance) {
            const auto found = fields.find(name);
            if (found == fields.end()) continue;
            if (adds_up(name)) {
                if (&file != &files.front()) add(found->second, value);
            } else if (name == "start") {
                found->second = std::min(found->second, value);
            } else if (name == "end" || name == "context") {
                found->second = std::max(found->second, value);
            }
        }
        std::erase_if(fields, [&](const auto& field) {
            static const std::set<std::string> kept = {"start", "end", "context"};
            const auto found = file.provenance.find(field.first);
            if (kept.contains(field.first)) return false;
            return found == file.provenance.end() ||
                   (!adds_up(field.first) && found->second != field.second);
        });
    }
    std::erase_if(fields, [](const auto& field) { return field.first.starts_with(kLastStart); });
    fields["shard"] = std::string("0/1");
    fields["merged_from"] = names;
    return fields;
}

}  // namespace

ResultSummary merge(const MergeOptions& options) {
    const std::vector<fs::path> inputs(options.inputs.begin(), options.inputs.end());
    const fs::path out = check_output(options.out, schema::kGenerations,
                                      options.output_exists == OutputExists::overwrite, inputs);
    std::vector<ShardFile> files;
    for (const fs::path& input : inputs) files.push_back(read_shard(input));
    for (const ShardFile& file : files) check_alike(files.front(), file);
    check_shards(files);
    Assembly assembly{.layout = common_layout(files),
                      .records = all_records(files),
                      .completions = {},
                      .kinds = {},
                      .place = "merge",
                      .files = {},
                      .kind = schema::kGenerations};
    for (const ShardFile& file : files) assembly.files.push_back(file.path);
    return assemble(out, assembly, common_provenance(files, options.inputs), {});
}

int run_merge(const MergeOptions& options) {
    try_files({options.inputs.begin(), options.inputs.end()});
    const ResultSummary summary = merge(options);
    show(stdout, fmt::format("{}: {} records of {} shards, {} with an error\n", options.out,
                             summary.records, options.inputs.size(), summary.errors));
    return 0;
}

}  // namespace quadrille
