// SPDX-License-Identifier: Apache-2.0
#include "jobs/eval/eval.h"

#include "io/output.h"
#include "jobs/common/model_identity.h"
#include "jobs/common/model_session.h"
#include "jobs/common/table.h"
#include "jobs/eval/reference.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "runtime/ranks/record_block.h"
#include "runtime/sampling/row_scores.h"
#include "runtime/teacher_forcing.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kBlock = 64;            // records read and broadcast at once
constexpr const char* kAll = "all";       // the last row of the table
constexpr const char* kNoKind = "other";  // of a record without one, where others have one

// What is summed over scored tokens, in the order of the records: the same sum for any batch.
struct Totals {
    int64_t records = 0;
    int64_t tokens = 0;
    int64_t hits = 0;  // the token is the most likely one
    double nll = 0.0;
    // Next to the reference.
    int64_t same = 0;  // both have the same most likely token
    double divergence = 0.0;

    void add(const Totals& other) {
        records += other.records;
        tokens += other.tokens;
        hits += other.hits;
        nll += other.nll;
        same += other.same;
        divergence += other.divergence;
    }
    double mean() const { return per_token(nll); }
    double per_token(double sum) const { return sum / static_cast<double>(tokens); }
};

struct EvalShape {
    int64_t records = 0;
    int64_t longest = 0;
};

// All tokens but the first are scored.
bool is_scored(const Prompt& prompt) {
    return prompt.error.empty() && prompt.tokens.size() >= 2;
}

class EvalJob {
  public:
    EvalJob(const EvalOptions& options, const RankStart& start)
        : options_(options), signals_(start.signals), session_(options_, start) {}
    int run();

  private:
    void start_up();
    void check_groups() const;
    void open_prompts();
    bool leads() const { return session_.leads_run(); }

    void open_reference();
    void read_reference();
    std::vector<Prompt> block(int64_t first);
    void read_all();
    void read_block(TeacherForcing& forcing, const std::vector<Prompt>& block);
    std::string kind_of(const Prompt& prompt) const;
    void report() const;

    const EvalOptions& options_;
    StopSignals& signals_;
    mutable ModelSession session_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::optional<PromptFiles> files_;
    std::optional<RecordSource> source_;  // of the leader, as the kinds are
    std::vector<std::vector<std::string>> kinds_;
    EvalShape shape_;
    std::optional<Reference> reference_;
    int64_t reference_row_ = 0;  // its rows of the blocks before
    std::optional<RowScores> scores_;
    std::map<std::string, Totals> totals_;
    std::vector<Totals> record_;  // of each record of a block
    std::vector<int32_t> next_;
    int64_t left_out_ = 0;
    int64_t done_tokens_ = 0;
};

int EvalJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] {
        read_all();
        if (leads()) report();
        return kSuccess;
    });
}

void EvalJob::start_up() {
    session_.agree("groups", [&] { check_groups(); });
    session_.choose_backend();
    session_.read_checkpoint(0);
    session_.agree("files", [&] {
        if (leads()) open_prompts();
    });
    session_.world().broadcast_host(&shape_, sizeof shape_, 0);
    const int64_t slots = std::min(options_.max_seqs, shape_.records);
    const ModelLimits limits = model_limits(slots, shape_.longest, options_.max_batched_tokens, 0);
    if (!options_.against.empty()) {
        open_reference();
        session_.agree("weights of --against", [&] { reference_->load(limits); });
        read_reference();
        session_.agree("head of --against", [&] { reference_->end_reading(); });
    }
    session_.load(limits, session_.models().config().vocab_size, session_.model_comm());
}

void EvalJob::open_reference() {
    session_.agree("--against", [&] {
        reference_.emplace(session_, options_.against, session_.models().config().vocab_size);
    });
    const std::vector<std::string> all = gather_texts(
        session_.world(), field_lines(model_identity(reference_->checkpoint(), nullptr)));
    session_.agree("--against of all ranks", [&] {
        const std::string differing = differing_fields(all, session_.mpi().hosts());
        if (differing.empty()) return;
        throw Error(ErrorKind::input, fmt::format("ranks do not have the same model in {}:\n{}",
                                                  options_.against, differing));
    });
}

// Before the target is loaded: two models need the memory of one.
void EvalJob::read_reference() {
    for (int64_t at = 0; at < shape_.records; at += kBlock) {
        std::vector<TeacherForcing::Tokens> sequences;
        const std::vector<Prompt> prompts = block(at);
        for (const Prompt& prompt : prompts) {
            if (is_scored(prompt)) sequences.emplace_back(prompt.tokens);
        }
        reference_->read(sequences);
        session_.log().progress(
            {.done = std::min(at + kBlock, shape_.records), .total = shape_.records, .tokens = 0});
    }
}

// Collective.
std::vector<Prompt> EvalJob::block(int64_t first) {
    return broadcast_records(session_.group(), 0,
                             leads() ? source_->read(first, kBlock) : std::vector<Prompt>());
}

void EvalJob::check_groups() const {
    if (session_.group_count() == 1) return;
    throw Error(ErrorKind::usage,
                fmt::format("--tp {}: {} ranks would form {} groups; eval is the work of one",
                            options_.tp, session_.world().size(), session_.group_count()));
}

void EvalJob::open_prompts() {
    if (!options_.json.empty()) {
        const auto objection = [](const std::filesystem::path& path) {
            return not_json(path, "a report of eval, which is replaced", {"kinds"});
        };
        output_path(options_.json, {.option = "--json",
                                    .overwrite = true,
                                    .taken = {options_.prompts.begin(), options_.prompts.end()},
                                    .objection = objection});
    }
    if (has_tokenizer(options_.target) && text_supported()) {
        tokenizer_ = make_tokenizer(options_.target);
    }
    const ModelConfig& config = session_.models().config();
    files_.emplace(options_, options_.target);
    source_.emplace(options_, files_->paths(), options_.target, config.vocab_size,
                    tokenizer_.get());
    source_->set_context(config.max_position_embeddings + 1);
    kinds_ = read_kinds(files_->paths());
    for (const std::string& notice : source_->notices()) session_.log().notice(notice);
    shape_.records = source_->record_count();
    for (int64_t first = 0; first < shape_.records; first += kBlock) {
        for (const Prompt& prompt : source_->read(first, kBlock)) {
            if (prompt.error.empty())
                shape_.longest = std::max(shape_.longest, std::ssize(prompt.tokens));
        }
    }
    if (shape_.longest < 2) {
        throw Error(ErrorKind::input,
                    "prompts: expected a record of two tokens or more, of which "
                    "all but the first are scored, found none");
    }
}

std::string EvalJob::kind_of(const Prompt& prompt) const {
    const auto& kinds = kinds_[static_cast<size_t>(prompt.source)];
    const auto at = static_cast<size_t>(prompt.index);
    return at < kinds.size() && !kinds[at].empty() ? kinds[at] : kNoKind;
}

void EvalJob::read_all() {
    const TargetModel& target = session_.models().target();
    const int32_t rows = prefill_rows(target.limits());
    TeacherForcing forcing(session_.backend(), session_.position(), session_.models().target(),
                           {.max_batched_tokens = rows});
    scores_.emplace(session_.backend(), session_.model_comm(), target.plan().vocab, rows);
    for (int64_t at = 0; at < shape_.records; at += kBlock) {
        read_block(forcing, block(at));
        const int64_t done = std::min(at + kBlock, shape_.records);
        session_.log().progress({.done = done, .total = shape_.records, .tokens = done_tokens_});
    }
    session_.log().finish(
        {.done = shape_.records, .total = shape_.records, .tokens = done_tokens_});
}

void EvalJob::read_block(TeacherForcing& forcing, const std::vector<Prompt>& block) {
    std::vector<TeacherForcing::Tokens> sequences;
    std::vector<const Prompt*> scored;
    std::vector<int64_t> begins;  // the reference's rows of the sequences
    for (const Prompt& prompt : block) {
        if (!is_scored(prompt)) {
            ++left_out_;
            continue;
        }
        begins.push_back(reference_row_);
        reference_row_ += std::ssize(prompt.tokens);
        sequences.emplace_back(prompt.tokens);
        scored.push_back(&prompt);
    }
    record_.assign(scored.size(), {.records = 1});
    forcing.run(sequences, [&](const ObservedRows& rows) {
        const TeacherForcing::Tokens tokens = sequences[static_cast<size_t>(rows.sequence)];
        // The last row predicts what the record does not have.
        const auto first = static_cast<size_t>(rows.position) + 1;
        const size_t count = std::min(static_cast<size_t>(rows.logits.rows),
                                      tokens.size() - std::min(first, tokens.size()));
        if (count == 0) return;
        Totals& totals = record_[static_cast<size_t>(rows.sequence)];
        const auto next = tokens.subspan(first, count);
        View<const float> logits = rows.logits;
        logits.rows = static_cast<int64_t>(count);
        const auto scores = scores_->score(logits, next);
        for (size_t i = 0; i < count; ++i) {
            if (std::isnan(scores[i].logprob)) {
                throw Error(
                    ErrorKind::input,
                    fmt::format("record {}: no logit of token {} is a number",
                                scored[static_cast<size_t>(rows.sequence)]->index, first + i));
            }
            totals.nll -= scores[i].logprob;
            totals.hits += scores[i].best == next[i] ? 1 : 0;
            ++totals.tokens;
        }
        if (!reference_) return;
        const int64_t row = begins[static_cast<size_t>(rows.sequence)] + rows.position;
        for (const RowDistance& distance : reference_->distances(row, logits, scores)) {
            totals.divergence += distance.divergence;
            totals.same += distance.same_best ? 1 : 0;
        }
    });
    for (size_t i = 0; i < scored.size(); ++i) {
        done_tokens_ += record_[i].tokens;
        if (leads()) totals_[kind_of(*scored[i])].add(record_[i]);
    }
}

void EvalJob::report() const {
    std::vector<std::pair<std::string, Totals>> rows(totals_.begin(), totals_.end());
    Totals all;
    for (const auto& [kind, totals] : rows) all.add(totals);
    if (rows.size() == 1 && rows.front().first == kNoKind) rows.clear();
    rows.emplace_back(kAll, all);
    Table table(reference_ ? "lrrrrrrr" : "lrrrrr");
    std::vector<std::string> head = {"kind", "records",    "tokens",
                                     "NLL",  "perplexity", "most likely"};
    if (reference_) head.insert(head.end(), {"KL", "same choice"});
    table.row(head);
    nlohmann::ordered_json kinds;
    for (const auto& [kind, totals] : rows) {
        const double hits = static_cast<double>(totals.hits) / static_cast<double>(totals.tokens);
        std::vector<std::string> cells = {kind,
                                          fmt::to_string(totals.records),
                                          fmt::to_string(totals.tokens),
                                          fmt::format("{:.6f}", totals.mean()),
                                          fmt::format("{:.4f}", std::exp(totals.mean())),
                                          fmt::format("{:.2f} %", 100 * hits)};
        kinds[kind] = {{"records", totals.records},
                       {"tokens", totals.tokens},
                       {"nll", totals.mean()},
                       {"perplexity", std::exp(totals.mean())},
                       {"most_likely", hits}};
        if (reference_) {
            const double same = totals.per_token(static_cast<double>(totals.same));
            const double divergence = totals.per_token(totals.divergence);
            cells.insert(cells.end(),
                         {fmt::format("{:.6f}", divergence), fmt::format("{:.2f} %", 100 * same)});
            kinds[kind]["kl"] = divergence;
            kinds[kind]["same_choice"] = same;
        }
        table.row(cells);
    }
    show(stdout, table.text(0));
    if (left_out_ > 0) {
        session_.log().notice(fmt::format(
            "{} records with an error or of fewer than two tokens are left out", left_out_));
    }
    if (options_.json.empty()) return;
    nlohmann::ordered_json document = {
        {"target", options_.target},
        {"checkpoint_digest", session_.models().checkpoint().digest()},
        {"backend", session_.backend().name()},
        {"kinds", kinds}};
    if (reference_) {
        document["against"] = options_.against;
        document["against_digest"] = reference_->checkpoint().digest();
    }
    replace_file(options_.json, document.dump(2) + "\n");
}

}  // namespace

int run_eval(const EvalOptions& options, const RankStart& start) {
    return EvalJob(options, start).run();
}

}  // namespace quadrille
