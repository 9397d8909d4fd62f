// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/leader_files.h"

#include "io/h5/trial.h"
#include "io/results/crash_log.h"
#include "io/results/run_folder.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quadrille {

RunShape LeaderFiles::claim() {
    const GenerateOptions& options = around_.options;
    RunShape run = shape();
    set_shape(run);
    if (options.strict) {  // a prompt that fills the context counts too
        const std::string error = source_->first_error();
        if (!error.empty()) throw Error(ErrorKind::input, fmt::format("{} (--strict)", error));
    }
    const bool overwrite = options.output_exists == OutputExists::overwrite;
    const bool skip = options.output_exists == OutputExists::skip;
    try_files({out_});
    const char* const kind = result_kind(layout());
    check_output(options.out, kind, overwrite || skip, other_files(options, options.heartbeat));
    if (skip && std::filesystem::exists(out_)) {
        run.errors = check_result(out_, kind, fingerprint_);
        run.skipped = true;
        return run;
    }
    if (options.dry_run) {
        check_run(parts_folder(out_), fingerprint_);
        return run;
    }
    writer_.emplace(ResultOptions{.out = out_,
                                  .overwrite = overwrite,
                                  .layout = layout(),
                                  .records = source_->keys(),
                                  .ids = source_->ids(),
                                  .completions = source_->completions(),
                                  .kinds = kinds(),
                                  .fingerprint = fingerprint_,
                                  .locking = options.locking,
                                  .before_commit = around_.before_commit});
    for (const std::string& notice : writer_->notices()) around_.log.notice(notice);
    done_ = writer_->done();
    take_up_earlier({});
    run.start = writer_->restarts();
    figures_ = figures_path(parts_folder(out_), 0, run.start);
    totals_ = writer_->resumed();
    run.remaining = writer_->remaining();
    std::copy_n(writer_->run().data(), std::min(writer_->run().size(), run.run.size() - 1),
                run.run.data());
    if (writer_->restarts() > 0) {
        around_.log.notice(fmt::format("going on with {}: {} of {} records are done",
                                       parts_folder(out_).string(), totals_.records, run.records));
    }
    tell_of_crashes();
    return run;
}

void LeaderFiles::tell_of_crashes() const {
    int64_t alone = 0;
    int64_t skipped = 0;
    for (size_t row = 0; row < ends_.size(); ++row) {
        if (done_[row] || ends_[row] == 0) continue;
        ++(ends_[row] < kGiveUp ? alone : skipped);
    }
    if (alone > 0) {
        around_.log.notice(
            fmt::format("{} records ran when an earlier start ended by itself (see {}): each of "
                        "them runs alone, after the others",
                        alone, (parts_folder(out_) / kCrashLog).string()));
    }
    if (skipped > 0) {
        around_.log.notice(
            fmt::format("{} records ran when two earlier starts ended by themselves: they are "
                        "skipped, each with an error that says how",
                        skipped));
    }
}

RunShape LeaderFiles::shape() const {
    const int64_t longest = around_.config.max_position_embeddings;
    if (around_.options.max_context > longest) {
        throw Error(ErrorKind::usage, fmt::format("--max-context: expected at most {}, the model's "
                                                  "max_position_embeddings, found {}",
                                                  longest, around_.options.max_context));
    }
    RunShape run;
    run.records = source_->record_count();
    run.capacity =
        around_.options.max_context > 0 ? around_.options.max_context : source_->largest_total();
    run.capacity = std::clamp<int64_t>(run.capacity, 2, longest);
    run.known_tokens = tokenizer_ ? tokenizer_->size() : around_.config.vocab_size;
    run.stop_text = source_->has_stop_text();
    return run;
}

void LeaderFiles::write(Generation generation) {
    writer_->add(std::move(generation));
}

void LeaderFiles::write_running(std::vector<Generation> running) {
    writer_->keep(std::move(running));
}

void LeaderFiles::commit_part(bool only_if_old) {
    only_if_old ? writer_->commit_if_old() : writer_->commit();
}

void LeaderFiles::add_group(const GroupParts& parts, int64_t computed) {
    writer_->add_group(parts, computed);
}

StartFigures LeaderFiles::earlier() const {
    return earlier_figures(parts_folder(out_), writer_->restarts());
}

ResultSummary LeaderFiles::finish(RunFacts facts) {
    facts.restarts = writer_->restarts();
    facts.records_computed = writer_->computed();
    saving_ = true;
    ResultSummary totals = writer_->finish(provenance(around_.options, fingerprint_, facts));
    saving_ = false;
    return totals;
}

}  // namespace quadrille
