// SPDX-License-Identifier: Apache-2.0
#include "jobs/plan/plan.h"

#include "io/files.h"
#include "io/output.h"
#include "io/text/tokenizer.h"
#include "jobs/common/job_models.h"
#include "jobs/common/memory_plan.h"
#include "jobs/common/table.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/host_memory.h"
#include "runtime/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

namespace quadrille {

namespace {

// Bytes of a token in OUT: its id and about five letters of text; parts and the result lie there
// together for a while.
constexpr int64_t kTokenBytes = 2 * (4 + 5);
constexpr int64_t kAlternativeBytes = 2 * 8;  // of a log-probability and its id

struct Records {
    int64_t count = 0;  // 0: not known
    int64_t capacity = 0;
    int64_t alternatives = -1;
};

Records read_records(const GenerateOptions& options, const ModelConfig& config) {
    Records records;
    const int64_t longest = config.max_position_embeddings;
    if (options.max_context > longest) {
        throw Error(ErrorKind::usage, fmt::format("--max-context: expected at most {}, the model's "
                                                  "max_position_embeddings, found {}",
                                                  longest, options.max_context));
    }
    records.capacity = options.max_context > 0 ? options.max_context : longest;
    if (options.prompts.empty() && options.prompt_texts.empty()) return records;
    std::unique_ptr<Tokenizer> tokenizer;
    if (has_tokenizer(options.target) && text_supported()) {
        tokenizer = make_tokenizer(options.target);
    }
    const PromptFiles files(options, options.target);
    const RecordSource source(options, files.paths(), options.target, config.vocab_size,
                              tokenizer.get());
    records.count = source.record_count();
    records.alternatives = source.largest_logprobs();
    if (options.max_context == 0) {
        records.capacity = std::clamp<int64_t>(source.largest_total(), 2, longest);
    }
    return records;
}

std::string backend_of(const std::string& name) {
    if (name != "auto") return name == "cuda" ? "cuda" : "cpu";
    return gpu_count() > 0 ? "cuda" : "cpu";
}

int64_t free_bytes(const PlanOptions& options, const std::string& backend) {
    if (options.memory > 0) return static_cast<int64_t>(1e9 * options.memory);
    if (backend != "cuda") return available_host_memory();
    return gpu_count() > 0 ? make_backend("cuda")->available() : -1;
}

// Bytes of OUT and its parts, if every record has all its tokens.
int64_t disk_bytes(const GenerateOptions& options, const Records& records) {
    const int64_t token = kTokenBytes + (records.alternatives + 1) * kAlternativeBytes;
    return records.count * options.record.max_new_tokens * token;
}

std::string disk_text(const GenerateOptions& options, int64_t bytes) {
    std::string text = fmt::format("OUT and its parts: {} at most", format_bytes(bytes));
    if (options.out.empty()) return text + "\n";
    std::error_code code;
    const auto space = std::filesystem::space(folder_of(options.out), code);
    if (code) return text + "\n";
    const auto left = static_cast<int64_t>(space.available);
    return text + fmt::format(", {} free there{}\n", format_bytes(left),
                              left < bytes ? ": not enough" : "");
}

nlohmann::json as_json(const MemoryPlan& plan, const RunPlan& run, int64_t available) {
    nlohmann::json classes = nlohmann::json::object();
    for (const auto& [name, bytes] : plan.classes()) classes[name] = bytes;
    return {{"backend", run.backend},
            {"ranks", run.ranks},
            {"slots", plan.limits.slots},
            {"context", plan.limits.capacity},
            {"rows", plan.limits.max_rows},
            {"bytes", classes},
            {"total", plan.total()},
            {"available", available},
            {"fits", available < 0 || plan.total() <= available}};
}

}  // namespace

int run_plan(const PlanOptions& options) {
    const GenerateOptions& generate = options.generate;
    const auto k = static_cast<int32_t>(generate.draft == "none" ? 0 : generate.k);
    const JobModels models({.target = generate.target,
                            .draft = generate.draft,
                            .placement = generate.draft_placement,
                            .k = k,
                            .identified = false},
                           static_cast<int>(options.ranks), 0);
    const Records records = read_records(generate, models.config());
    RunPlan run{.backend = backend_of(generate.backend), .ranks = static_cast<int>(options.ranks)};
    run.eager = generate.eager;
    run.nccl = run.backend == "cuda" && run.ranks > 1 && generate.comm != "mpi";
    run.filtered = draws_filtered(generate);
    const auto plan = [&](int64_t slots, int64_t capacity) {
        run.limits = model_limits(slots, capacity, generate.max_batched_tokens, k);
        return models.plan(run);
    };
    const int64_t available = free_bytes(options, run.backend);
    const int64_t most = most_slots(generate, records.count);
    int64_t slots = most;
    if (generate.max_seqs == 0) {
        slots = std::max<int64_t>(
            fitting_slots(most, available,
                          [&](int64_t count) { return plan(count, records.capacity); }),
            1);
    }
    const MemoryPlan found = plan(slots, records.capacity);
    const bool fits = available < 0 || found.total() <= available;
    std::string text =
        fmt::format("{}, {} ranks, {} slots of {} tokens, passes of up to {} rows; each rank:\n{}",
                    run.backend, run.ranks, found.limits.slots, found.limits.capacity,
                    found.limits.max_rows, plan_table(found, available));
    if (!fits) text += fmt::format("does not fit: {}\n", plan_advice(found, available, plan));
    const int64_t disk = disk_bytes(generate, records);
    if (disk > 0) text += disk_text(generate, disk);
    show(stdout, text);
    if (!options.json.empty()) {
        nlohmann::json document = as_json(found, run, available);
        if (disk > 0) document["disk"] = disk;
        const auto objection = [](const std::filesystem::path& path) {
            return not_json(path, "a plan, which is replaced", {"total"});
        };
        const auto path =
            output_path(options.json, {.option = "--json",
                                       .overwrite = true,
                                       .taken = {generate.prompts.begin(), generate.prompts.end()},
                                       .objection = objection});
        replace_file(path, document.dump(2) + "\n");
    }
    return fits ? kSuccess : static_cast<int>(ErrorKind::device);
}

}  // namespace quadrille
