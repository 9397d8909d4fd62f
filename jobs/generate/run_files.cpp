// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_files.h"

#include "io/output.h"
#include "io/results/crash_log.h"
#include "io/results/run_folder.h"
#include "io/text/utf8.h"
#include "jobs/common/model_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

namespace quadrille {

RunFiles::RunFiles(const Around& around)
    : around_(around), out_(follow_links(around.options.out)), alarms_(around.log, around.k > 0) {
    const GenerateOptions& options = around_.options;
    if (has_tokenizer(options.target) && text_supported()) {
        tokenizer_ = make_tokenizer(options.target);
    }
    prompt_files_.emplace(options, options.target);
    for (const std::string& notice : prompt_files_->notices()) around_.log.notice(notice);
    source_.emplace(options, prompt_files_->paths(), options.target, around_.config.vocab_size,
                    tokenizer_.get());
    for (const std::string& notice : source_->notices()) around_.log.notice(notice);
    kinds_ = read_kinds(prompt_files_->paths());
    prompt_files_->discard();
}

std::vector<std::filesystem::path> other_files(const GenerateOptions& options,
                                               const std::string& other) {
    std::vector<std::filesystem::path> files(options.prompts.begin(), options.prompts.end());
    if (!other.empty()) files.emplace_back(other);
    return files;
}

void RunFiles::set_shape(const RunShape& shape) {
    // What is only read may fill the context.
    source_->set_context(shape.capacity + (around_.options.scores ? 1 : 0));
    fingerprint_ = fingerprint(around_.options, around_.identity, tokenizer_.get(),
                               source_->digest(), around_.k, shape.capacity, around_.backend);
}

GenerationLayout RunFiles::layout() const {
    GenerationLayout layout;
    layout.k = around_.k;
    layout.id = common_kind(source_->ids());
    layout.text = tokenizer_ && !around_.options.no_text;
    layout.logprobs = source_->largest_logprobs();
    layout.scores = around_.options.scores;
    layout.origin = source_->has_origin();
    if (layout.origin) layout.sources = source_->names();
    return layout;
}

std::vector<std::string> RunFiles::kinds() const {
    if (std::ranges::all_of(kinds_, &std::vector<std::string>::empty)) return {};
    std::vector<std::string> result;
    for (const RecordKey& key : source_->keys()) {
        const auto& of_file = kinds_[static_cast<size_t>(key.source)];
        const auto at = static_cast<size_t>(key.prompt_index);
        result.push_back(at < of_file.size() ? of_file[at] : std::string());
    }
    return result;
}

std::string RunFiles::description() const {
    return field_lines(fingerprint_);
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

void RunFiles::take_up_earlier(std::vector<char> ends) {
    kept_ = read_kept(parts_folder(out_), run_name(fingerprint_));
    crashes_ = read_crashes(parts_folder(out_));
    ends_ = std::move(ends);
    if (!ends_.empty()) return;
    for (const RecordKey& key : source_->keys()) {
        const auto found = crashes_.find(key);
        const int64_t count = found == crashes_.end() ? 0 : std::ssize(found->second);
        ends_.push_back(static_cast<char>(std::min<int64_t>(count, kGiveUp)));
    }
}

std::vector<bool> RunFiles::alone() const {
    std::vector<bool> alone;
    for (const char count : ends_) alone.push_back(count > 0 && count < kGiveUp);
    return alone;
}

void RunFiles::give_up(Prompt& prompt) const {
    prompt.kept = {};
    prompt.error =
        fmt::format("skipped: {} starts of this run ended while they ran it", kGiveUp + 0);
    const auto found = crashes_.find(key_of(prompt));
    if (found == crashes_.end()) return;
    prompt.error += fmt::format(": {}", fmt::join(found->second, "; "));
}

std::vector<Prompt> RunFiles::read(const RecordQueue::Slice& slice) const {
    std::vector<Prompt> prompts = source_->read(slice.first, slice.count);
    for (Prompt& prompt : prompts) {
        const auto found = kept_.find(key_of(prompt));
        if (found != kept_.end()) prompt.kept = found->second;
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
        if (ends_[static_cast<size_t>(slice.first) + i] >= kGiveUp) give_up(prompts[i]);
    }
    return prompts;
}

void RunFiles::keep(std::vector<Generation> running) {
    saving_ = true;
    write_running(std::move(running));
    saving_ = false;
}

void RunFiles::add(std::vector<Generation> finished) {
    saving_ = true;
    for (Generation& generation : finished) {
        totals_.add(generation);
        alarms_.look(generation, totals_);
        if (generation.seconds > 0) {
            latencies_.push_back({.first = static_cast<float>(generation.first_seconds),
                                  .whole = static_cast<float>(generation.seconds)});
        }
        if (tokenizer_ && !around_.options.no_text) generation.text = text_of(generation);
        write(std::move(generation));
    }
    commit_part(true);
    saving_ = false;
}

void RunFiles::keep_figures(const StartFigures& figures) const noexcept {
    if (figures_.empty()) return;
    try {
        around_.before_commit();  // throws where nothing may be written any more
        replace_file(figures_, figures_json(figures));
    } catch (const std::exception&) {
        // The next time may do better; parts that cannot be written end the job anyway.
    }
}

void RunFiles::commit() {
    saving_ = true;
    commit_part(false);
    saving_ = false;
}

void RunFiles::save_what_is_there(bool may_commit) {
    if (!saving_ && may_commit && has_writer()) commit();
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
