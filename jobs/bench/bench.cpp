// SPDX-License-Identifier: Apache-2.0
// Start-up as every job on ranks, then for every configuration a warm-up and the measured
// repeats, each on an engine of its own over the same model and drafter.
#include "jobs/bench/bench.h"

#include "drafter/dflash2/step_work.h"
#include "io/output.h"
#include "io/text/tokenizer.h"
#include "jobs/bench/bench_floor.h"
#include "jobs/bench/bench_report.h"
#include "jobs/common/model_session.h"
#include "jobs/common/provenance.h"
#include "jobs/common/results_tsv.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "jobs/roofline/machine_rates.h"
#include "jobs/roofline/step_floor.h"
#include "jobs/roofline/timed_comm.h"
#include "kernels/backend.h"
#include "runtime/engine.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/record_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace quadrille {

namespace {

// What every rank must know and only the leader can find out.
struct BenchShape {
    int64_t capacity = 0;
    int64_t known_tokens = 0;
};

// The passes of one run, sorted by what they did.
struct Measured {
    BenchRun run;
    std::vector<int64_t> passes_by_records;  // decode passes of b records, by b
    CollectiveCounts prefill, decode;
};

class BenchJob {
  public:
    BenchJob(const BenchOptions& options, const RankStart& start)
        : options_(options), session_(options, start), host_(session_.world()) {}
    int run();

  private:
    bool leads() const { return host_.rank() == 0; }
    void start_up();
    void check_groups();
    void read_prompts();
    void check_outputs() const;
    int64_t most_records() const { return std::ranges::max(options_.concurrency); }
    int32_t most_drafts() const { return static_cast<int32_t>(std::ranges::max(options_.k)); }

    void run_all();
    Engine& engine_of(int32_t k);
    void warm_up(int32_t k, int64_t concurrency);
    Measured measure_once(int32_t k, int64_t concurrency);
    BenchRun measure(int32_t k, int64_t concurrency);
    void add_floor(Measured& measured);
    BenchReport report();
    void publish(const BenchReport& report) const;

    const BenchOptions& options_;
    ModelSession session_;
    Communicator& host_;             // all ranks
    std::optional<TimedComm> comm_;  // of the model
    std::vector<Prompt> prompts_;
    BenchShape shape_;
    std::map<int32_t, Engine> engines_;  // by K: recorded steps live as long as their engine
    // A decode pass's, by the bucket of its records: replayed collectives are not counted.
    std::map<std::pair<int32_t, int32_t>, CollectiveCounts> pass_collectives_;
    StepModel step_model_;
    MachineRates rates_;
    std::optional<CollectiveTimes> collectives_;
    std::vector<BenchRun> runs_;
};

int BenchJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] {
        run_all();
        if (!leads()) return kSuccess;
        publish(report());
        const std::string difference = first_difference(runs_);
        if (difference.empty()) return kSuccess;
        throw Error(ErrorKind::internal, fmt::format("the tokens differ: {}", difference));
    });
}

void BenchJob::start_up() {
    session_.agree("groups", [&] { check_groups(); });
    session_.choose_backend();
    comm_.emplace(session_.model_comm());
    session_.read_checkpoint(most_drafts());
    session_.agree("files", [&] {
        if (!leads()) return;
        read_prompts();
        check_outputs();
    });
    host_.broadcast_host(&shape_, sizeof shape_, 0);
    prompts_ = broadcast_records(host_, 0, std::move(prompts_));
    const int64_t slots = std::min(most_records(), std::ssize(prompts_));
    session_.load(model_limits(slots, shape_.capacity, options_.max_batched_tokens, most_drafts()),
                  shape_.known_tokens, *comm_);
    session_.agree("floor", [&] { step_model_ = step_model(session_.models()); });
}

void BenchJob::check_groups() {
    if (session_.group_count() == 1) return;
    throw Error(ErrorKind::usage,
                fmt::format("--tp {}: {} ranks would form {} groups; bench measures one",
                            options_.tp, host_.size(), session_.group_count()));
}

void BenchJob::read_prompts() {
    std::unique_ptr<Tokenizer> tokenizer;
    if (has_tokenizer(options_.target) && text_supported()) {
        tokenizer = make_tokenizer(options_.target);
    }
    const ModelConfig& config = session_.models().config();
    shape_.known_tokens = tokenizer ? tokenizer->size() : config.vocab_size;
    if (options_.prompts.empty()) {
        const int64_t records = options_.limit > 0 ? options_.limit : most_records();
        prompts_ = made_up_prompts(records, options_.prompt_tokens, shape_.known_tokens);
    } else {
        PromptSourceOptions chosen;
        chosen.prompts = {options_.prompts};
        chosen.limit = options_.limit;
        const PromptFiles files(chosen, options_.target);
        RecordSource source(chosen, files.paths(), options_.target, config.vocab_size,
                            tokenizer.get());
        source.set_context(config.max_position_embeddings);
        prompts_ = source.read(0, source.record_count());
    }
    if (prompts_.empty()) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected records, found none", options_.prompts));
    }
    int64_t longest = 0;
    for (Prompt& prompt : prompts_) {
        if (!prompt.error.empty()) {
            throw Error(ErrorKind::input, fmt::format("{}: record {}: {}", options_.prompts,
                                                      prompt.index, prompt.error));
        }
        longest = std::max(longest, std::ssize(prompt.tokens));
        prompt.options = options_.record;
        prompt.options.max_new_tokens = options_.new_tokens;
        prompt.options.ignore_eos = true;
    }
    shape_.capacity = longest + options_.new_tokens;
    if (shape_.capacity > config.max_position_embeddings) {
        throw Error(ErrorKind::usage,
                    fmt::format("a prompt of {} tokens and {} new ones: expected at most {} in all",
                                longest, options_.new_tokens, config.max_position_embeddings));
    }
}

// Found out before the run rather than after it.
void BenchJob::check_outputs() const {
    if (!options_.tsv.empty()) {
        output_path(options_.tsv, {.option = "--append-tsv",
                                   .overwrite = true,
                                   .taken = {options_.prompts, options_.json},
                                   .objection = [](const auto&) { return ""; }});
        append_results(options_.tsv, "");
    }
    if (options_.json.empty()) return;
    const auto objection = [](const std::filesystem::path& path) {
        return not_json(path, "a report of bench, which is replaced", {"date", "runs"});
    };
    output_path(options_.json, {.option = "--json",
                                .overwrite = true,
                                .taken = {options_.prompts, options_.tsv},
                                .objection = objection});
}

void BenchJob::run_all() {
    const std::vector<OpWork> ops = step_work(step_model_, {.contexts = {0}, .k = most_drafts()});
    collectives_.emplace(session_.backend(), *comm_);
    rates_ = measure_rates(session_.backend(), *comm_, exl3_forms(ops));
    for (const int64_t concurrency : options_.concurrency) {
        for (const int64_t k : options_.k) {
            session_.log().notice(fmt::format("batch {}, K = {}", concurrency, k));
            runs_.push_back(measure(static_cast<int32_t>(k), concurrency));
        }
    }
}

Engine& BenchJob::engine_of(int32_t k) {
    const EngineOptions options = {
        .max_batched_tokens = prefill_rows(session_.models().target().limits()),
        .k = k,
        .known_tokens = shape_.known_tokens,
        .eos = session_.models().config().eos_token_ids,
        .steps = options_.eager ? StepWay::in_parts : StepWay::recorded};
    return engines_
        .try_emplace(k, session_.backend(), *comm_, session_.position(), session_.models().target(),
                     k > 0 ? session_.models().drafter() : nullptr, options)
        .first->second;
}

// A few steps, so that memory is touched, scratch has its size and full steps are recorded.
void BenchJob::warm_up(int32_t k, int64_t concurrency) {
    Engine& engine = engine_of(k);
    for (const Prompt& prompt : prompts_) {
        if (engine.in_flight() == concurrency) break;
        Prompt shorter = prompt;
        shorter.options.max_new_tokens = std::min<int64_t>(options_.new_tokens, 3 * (k + 1) + 1);
        engine.submit(std::move(shorter));
    }
    while (!engine.idle()) engine.step();
    engine.take_finished();
}

Measured BenchJob::measure_once(int32_t k, int64_t concurrency) {
    Measured measured;
    BenchRun& run = measured.run;
    run.k = k;
    run.concurrency = concurrency;
    run.tokens.resize(prompts_.size());
    measured.passes_by_records.resize(
        static_cast<size_t>(session_.models().target().limits().slots) + 1);
    Engine& engine = engine_of(k);
    engine.clear_stats();
    comm_->take_counts();
    comm_->barrier();
    for (size_t next = 0; next < prompts_.size() || !engine.idle();) {
        while (next < prompts_.size() && engine.in_flight() < concurrency) {
            engine.submit(prompts_[next++]);
        }
        const EngineStats before = engine.stats();
        const double waited = comm_->seconds();
        comm_->take_counts();
        engine.step();
        const EngineStats& after = engine.stats();
        const bool decoded = after.decode_steps > before.decode_steps;
        (decoded ? run.decode_collectives : run.prefill_collectives) += comm_->seconds() - waited;
        CollectiveCounts counts = comm_->take_counts();
        if (decoded) {
            const auto records = static_cast<int32_t>(after.decode_records - before.decode_records);
            CollectiveCounts& known = pass_collectives_[{
                k, step_bucket(records, session_.models().target().limits().slots)}];
            if (after.recorded_steps > before.recorded_steps) counts = known;
            known = counts;
        }
        for (const auto& [collective, count] : counts) {
            (decoded ? measured.decode : measured.prefill)[collective] += count;
        }
        if (decoded) {
            run.decode_emitted += after.emitted - before.emitted;
            ++measured.passes_by_records.at(
                static_cast<size_t>(after.decode_records - before.decode_records));
        } else {
            ++run.prefill_passes;
        }
        for (Generation& generation : engine.take_finished()) {
            run.draft_steps += generation.acceptance.steps;
            run.accepted += generation.acceptance.accepted;
            run.tokens.at(static_cast<size_t>(generation.prompt_index)) =
                std::move(generation.tokens);
        }
    }
    run.stats = engine.stats();
    return measured;
}

BenchRun BenchJob::measure(int32_t k, int64_t concurrency) {
    warm_up(k, concurrency);
    std::vector<Measured> repeats;
    for (int64_t i = 0; i < options_.repeat; ++i) repeats.push_back(measure_once(k, concurrency));
    const std::vector<std::vector<int32_t>> tokens = repeats.front().run.tokens;
    for (const Measured& repeat : repeats) {
        if (repeat.run.tokens == tokens) continue;
        throw Error(
            ErrorKind::internal,
            fmt::format("K = {}, concurrency {}: a repeat wrote other tokens", k, concurrency));
    }
    // Ranks agree on the median: the leader's clock decides.
    std::vector<double> seconds;
    for (const Measured& repeat : repeats) seconds.push_back(repeat.run.stats.decode_seconds);
    host_.broadcast_host(seconds.data(), std::ssize(seconds) * int64_t{sizeof(double)}, 0);
    std::vector<size_t> order(repeats.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return seconds[i]; });
    const size_t middle = order[order.size() / 2];
    Measured& chosen = repeats[middle];
    if (seconds[middle] > 0) {
        chosen.run.spread = (seconds[order.back()] - seconds[order.front()]) / seconds[middle];
    }
    add_floor(chosen);
    return std::move(chosen.run);
}

// Contexts count at their mean: half of a record's new tokens are behind its prompt.
void BenchJob::add_floor(Measured& measured) {
    BenchRun& run = measured.run;
    int64_t prompt_tokens = 0;
    for (const Prompt& prompt : prompts_) prompt_tokens += std::ssize(prompt.tokens);
    const int64_t context = prompt_tokens / std::ssize(prompts_) + options_.new_tokens / 2;
    set_floor(run, step_model_, rates_, measured.passes_by_records, context);
    const auto passes = static_cast<double>(run.stats.decode_steps);
    if (passes > 0) run.collective_floor = collectives_->seconds(measured.decode) / passes;
    run.prefill_collective_floor = collectives_->seconds(measured.prefill);
}

BenchReport BenchJob::report() {
    BenchReport report;
    report.date = utc_now();
    report.version = version_and_commit();
    report.hardware = session_.backend().device();
    report.target = last_name(options_.target);
    report.draft = options_.draft != "none"     ? last_name(options_.draft)
                   : session_.models().drafts() ? "made drafter"
                                                : "no drafter";
    report.backend = options_.backend == "auto" ? session_.backend().name() : options_.backend;
    report.comm = comm_->name();
    report.eager = options_.eager;
    report.ranks = host_.size();
    report.records = std::ssize(prompts_);
    for (const Prompt& prompt : prompts_) report.prompt_tokens += std::ssize(prompt.tokens);
    report.prompts = options_.prompts.empty()
                         ? fmt::format("{} made-up tokens", options_.prompt_tokens)
                         : fmt::format("{}", last_name(options_.prompts));
    report.draws = draws_text(options_.record);
    report.new_tokens = options_.new_tokens;
    report.repeat = options_.repeat;
    report.rates = rates_;
    report.runs = runs_;
    return report;
}

void BenchJob::publish(const BenchReport& report) const {
    show(stdout, bench_table(report));
    if (!options_.tsv.empty()) append_results(options_.tsv, bench_rows(report));
    if (options_.json.empty()) return;
    replace_file(follow_links(options_.json), bench_json(report));
}

}  // namespace

std::vector<Prompt> made_up_prompts(int64_t records, int64_t tokens, int64_t vocabulary) {
    std::vector<Prompt> prompts(static_cast<size_t>(records));
    uint64_t state = 0;
    for (int64_t i = 0; i < records; ++i) {
        Prompt& prompt = prompts[static_cast<size_t>(i)];
        prompt.index = i;
        for (int64_t t = 0; t < tokens; ++t) {
            state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
            const auto bits = static_cast<int64_t>(state >> 33);
            prompt.tokens.push_back(static_cast<int32_t>(bits % vocabulary));
        }
    }
    return prompts;
}

int run_bench(const BenchOptions& options, const RankStart& start) {
    start.signals.release();
    return BenchJob(options, start).run();
}

}  // namespace quadrille
