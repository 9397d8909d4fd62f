// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_files.h"

#include "io/results/run_folder.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace quadrille {

RunFiles::RunFiles(const GenerateOptions& options, const Model& model, Log& log,
                   std::function<void()> before_commit)
    : options_(options), model_(model), log_(log), before_commit_(std::move(before_commit)) {
    const bool with_tokenizer = has_tokenizer(options_.target) && text_supported();
    if (with_tokenizer) tokenizer_ = make_tokenizer(options_.target);
    prompt_files_.emplace(options_, options_.target);
    for (const std::string& notice : prompt_files_->notices()) log_.notice(notice);
    source_.emplace(options_, prompt_files_->paths(), options_.target, model_.config.vocab_size,
                    tokenizer_.get());
    for (const std::string& notice : source_->notices()) log_.notice(notice);
}

RunShape RunFiles::settle_shape() {
    const int64_t longest = model_.config.max_position_embeddings;
    if (options_.max_context > longest) {
        throw Error(ErrorKind::usage, fmt::format("--max-context: expected at most {}, the model's "
                                                  "max_position_embeddings, found {}",
                                                  longest, options_.max_context));
    }
    RunShape shape;
    shape.records = source_->record_count();
    shape.capacity = options_.max_context > 0 ? options_.max_context : source_->largest_total();
    shape.capacity = std::clamp<int64_t>(shape.capacity, 2, longest);
    shape.known_tokens = tokenizer_ ? tokenizer_->size() : model_.config.vocab_size;
    shape.stop_text = source_->has_stop_text();
    return shape;
}

void RunFiles::set_fingerprint(const RunShape& shape) {
    source_->set_context(shape.capacity);
    fingerprint_ = fingerprint(options_, model_.checkpoint, model_.drafter, tokenizer_.get(),
                               source_->digest(), model_.k, shape.capacity, model_.backend);
}

GenerationLayout RunFiles::layout() const {
    GenerationLayout layout;
    layout.k = model_.k;
    layout.id = common_kind(source_->ids());
    layout.text = tokenizer_ && !options_.no_text;
    layout.logprobs = source_->largest_logprobs();
    layout.origin = source_->has_origin();
    if (layout.origin) layout.sources = source_->names();
    return layout;
}

RunShape RunFiles::lead() {
    RunShape shape = settle_shape();
    set_fingerprint(shape);
    if (options_.strict) {  // a prompt that fills the context counts too
        const std::string error = source_->first_error();
        if (!error.empty()) throw Error(ErrorKind::input, fmt::format("{} (--strict)", error));
    }
    const bool overwrite = options_.output_exists == OutputExists::overwrite;
    if (options_.dry_run) {
        check_output(options_.out, overwrite);
        check_run(parts_folder(options_.out), fingerprint_);
        return shape;
    }
    writer_.emplace(ResultOptions{.out = options_.out,
                                  .overwrite = overwrite,
                                  .layout = layout(),
                                  .records = source_->keys(),
                                  .ids = source_->ids(),
                                  .fingerprint = fingerprint_,
                                  .locking = options_.locking,
                                  .before_commit = before_commit_});
    for (const std::string& notice : writer_->notices()) log_.notice(notice);
    done_ = writer_->done();
    totals_ = writer_->resumed();
    shape.remaining = writer_->remaining();
    if (writer_->restarts() > 0) {
        log_.notice(fmt::format("going on with {}: {} of {} records are done",
                                parts_folder(options_.out).string(), totals_.records,
                                shape.records));
    }
    return shape;
}

void RunFiles::follow(const RunShape& shape) {
    set_fingerprint(shape);
}

void RunFiles::join(int group, const std::vector<bool>& done) {
    done_ = done;
    const std::filesystem::path folder = parts_folder(options_.out);
    lock_.emplace(folder, options_.locking, RunLock::kPatience, group);
    member_.emplace(GroupWriter::Options{.folder = folder,
                                         .group = group,
                                         .layout = layout(),
                                         .run = run_name(fingerprint_),
                                         .ids = source_->ids(),
                                         .before_commit = before_commit_},
                    *lock_);
}

std::string RunFiles::description() const {
    std::string text;
    for (const auto& [name, value] : fingerprint_) {
        text += fmt::format("{} {}\n", name, h5::describe(value));
    }
    return text;
}

std::string RunFiles::text_of(const Generation& generation) const {
    if (generation.text_end >= 0) {  // a stop string begins there
        std::string bytes;
        for (const int32_t token : generation.tokens) {
            if (!tokenizer_->is_special(token)) bytes += tokenizer_->token_bytes(token);
        }
        bytes.resize(static_cast<size_t>(generation.text_end));
        return replace_broken_utf8(bytes);
    }
    const bool ended = generation.finish_reason == FinishReason::eos ||
                       generation.finish_reason == FinishReason::stop;
    const std::span<const int32_t> tokens(generation.tokens);
    return tokenizer_->decode(tokens.first(tokens.size() - (ended ? 1 : 0)), true);
}

void RunFiles::add(std::vector<Generation> finished) {
    saving_ = true;
    for (Generation& generation : finished) {
        totals_.add(generation);
        if (tokenizer_ && !options_.no_text) generation.text = text_of(generation);
        if (writer_) {
            writer_->add(std::move(generation));
        } else {
            member_->add(std::move(generation));
        }
    }
    writer_ ? writer_->commit_if_old() : member_->commit_if_old();
    saving_ = false;
}

void RunFiles::commit() {
    saving_ = true;
    writer_ ? writer_->commit() : member_->commit();
    saving_ = false;
}

void RunFiles::save_what_is_there(bool may_commit) {
    prompt_files_.reset();  // its temporary files would stay
    if (!saving_ && may_commit && (writer_ || member_)) commit();
}

int64_t RunFiles::computed() const {
    return writer_ ? writer_->computed_now() : member_->computed();
}

GroupParts RunFiles::parts() const {
    return writer_ ? writer_->parts() : member_->parts();
}

void RunFiles::add_group(const GroupParts& parts, int64_t computed) {
    writer_->add_group(parts, computed);
}

ResultSummary RunFiles::finish(RunFacts facts) {
    facts.restarts = writer_->restarts();
    facts.records_computed = writer_->computed();
    saving_ = true;
    ResultSummary totals = writer_->finish(provenance(options_, fingerprint_, facts));
    saving_ = false;
    return totals;
}

std::string other_field(const std::string& here, const std::string& there) {
    for (size_t begin = 0; begin < there.size();) {
        const size_t end = std::min(there.find('\n', begin), there.size());
        const std::string line = there.substr(begin, end - begin);
        if (here.find(line + "\n") == std::string::npos) return line;
        begin = end + 1;
    }
    return "a field less";
}

}  // namespace quadrille
