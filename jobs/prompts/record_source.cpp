// SPDX-License-Identifier: Apache-2.0
#include "jobs/prompts/record_source.h"

#include "io/digest.h"
#include "io/prompts/option_table.h"
#include "kernels/error.h"
#include "kernels/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>

namespace quadrille {

namespace {

constexpr int64_t kSlice = 1024;  // records read at once where all are looked at

}  // namespace

RecordSource::RecordSource(const PromptSourceOptions& options,
                           const std::vector<std::string>& paths, const std::string& target,
                           int64_t vocab_size, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      limits_{.vocab_size = vocab_size, .context = 0},
      sampled_(options.record.samples > 1) {
    std::set<std::string> honoured = PromptOptions::names();
    if (!options.scores) honoured.erase(options::kInts[options::kScoreFrom].name);
    for (size_t i = 0; i < paths.size(); ++i) {
        const std::string name = i < options.prompts.size() ? options.prompts[i] : "--prompt";
        files_.push_back(
            std::make_unique<File>(File{name, PromptReader(paths[i], options.record, honoured)}));
        const PromptReader& reader = files_.back()->reader;
        const char* needs = reader.is_text()                   ? "the prompts are text"
                            : reader.options().has_stop_text() ? "the prompts have stop_text"
                                                               : nullptr;
        if (needs == nullptr || tokenizer_ != nullptr) continue;
        throw Error(ErrorKind::input,
                    fmt::format("{}: {} and {} has no tokenizer.json", name, needs, target));
    }
    list_records(options);
    note_equal_samples();
}

void RecordSource::list_records(const PromptSourceOptions& options) {
    int64_t prompt = 0;  // counted over all files
    for (size_t source = 0; source < files_.size(); ++source) {
        const PromptReader& reader = files_[source]->reader;
        const int64_t count = reader.record_count();
        const std::vector<int64_t> samples = reader.options().samples(0, count);
        for (int64_t index = 0; index < count; ++index, ++prompt) {
            if (options.limit > 0 && prompt >= options.limit) return;
            if (prompt % options.shard.count != options.shard.index) continue;
            const int64_t several = samples[static_cast<size_t>(index)];
            sampled_ = sampled_ || several > 1;
            for (int64_t sample = 0; sample < several; ++sample) {
                keys_.push_back({.source = static_cast<int32_t>(source),
                                 .prompt_index = index,
                                 .sample = static_cast<int32_t>(sample)});
            }
        }
    }
}

void RecordSource::note_equal_samples() {
    for (const auto& file : files_) {
        const int64_t count = file->reader.record_count();
        const std::vector<int64_t> samples = file->reader.options().samples(0, count);
        const std::vector<double> temperatures = file->reader.options().temperatures(0, count);
        int64_t equal = 0;
        for (size_t i = 0; i < samples.size(); ++i) {
            if (samples[i] > 1 && temperatures[i] <= 0.0) ++equal;
        }
        if (equal == 0) continue;
        notices_.push_back(
            fmt::format("{}: {} of {} prompts ask for several samples at temperature 0: their "
                        "samples are equal",
                        file->name, equal, count));
    }
}

std::vector<bool> RecordSource::completions() const {
    if (std::ranges::all_of(files_,
                            [](const auto& file) { return file->reader.completions().empty(); })) {
        return {};
    }
    std::vector<bool> result;
    for (const RecordKey& key : keys_) {
        const auto& flags = files_[static_cast<size_t>(key.source)]->reader.completions();
        result.push_back(!flags.empty() && flags[static_cast<size_t>(key.prompt_index)]);
    }
    return result;
}

std::vector<const Ids*> RecordSource::ids() const {
    std::vector<const Ids*> ids;
    for (const auto& file : files_) ids.push_back(&file->reader.ids());
    return ids;
}

std::vector<std::string> RecordSource::names() const {
    std::vector<std::string> names;
    for (const auto& file : files_) names.push_back(file->name);
    return names;
}

std::vector<std::string> RecordSource::notices() const {
    std::vector<std::string> notices = notices_;
    for (const auto& file : files_) {
        const auto& some = file->reader.notices();
        notices.insert(notices.end(), some.begin(), some.end());
    }
    return notices;
}

std::string RecordSource::digest() const {
    if (files_.size() == 1) return files_.front()->reader.digest();
    Digest digest;
    for (const auto& file : files_) digest.add(file->reader.digest());
    return digest.hex();
}

int64_t RecordSource::largest_logprobs() const {
    int64_t largest = -1;
    for (const auto& file : files_) {
        largest = std::max(largest, file->reader.options().largest_logprobs());
    }
    return largest;
}

bool RecordSource::has_stop_text() const {
    return std::any_of(files_.begin(), files_.end(),
                       [](const auto& file) { return file->reader.options().has_stop_text(); });
}

// The text that stop strings are looked for in has no special token: one that is such a token must
// stop as a token.
void RecordSource::add_stop_tokens(RecordOptions& options) const {
    if (tokenizer_ == nullptr) return;
    for (const std::string& text : options.stop_text) {
        const int32_t token = tokenizer_->added_token(text);
        if (token >= 0) options.stop_tokens.push_back(token);
    }
}

std::vector<Prompt> RecordSource::load(int32_t source, int64_t first, int64_t count) const {
    const PromptReader& reader = files_[static_cast<size_t>(source)]->reader;
    std::vector<Prompt> prompts = reader.read(first, count, limits_);
    for (Prompt& prompt : prompts) add_stop_tokens(prompt.options);
    if (!reader.is_text()) return prompts;
    for (Prompt& prompt : prompts) {
        if (!prompt.error.empty()) continue;
        try {
            prompt.tokens = tokenizer_->encode(prompt.text);
            check_tokens(prompt, limits_);
        } catch (const std::exception& error) {  // of this text alone: the others go on
            prompt.tokens.clear();
            prompt.error = error.what();
        }
        prompt.text.clear();
    }
    return prompts;
}

// Samples of a record with a seed of its own differ too, and the first of them has that seed, so
// that more samples only add to those there were. The run's seed is the engine's to apply; that of
// a file's attribute is applied here.
void RecordSource::set_sample(Prompt& prompt, const RecordKey& key) const {
    prompt.source = key.source;
    prompt.sample = key.sample;
    int64_t& seed = prompt.options.seed;
    const auto& options = files_[static_cast<size_t>(key.source)]->reader.options();
    if (seed < 0 && options.run_seed()) {
        seed = record_seed(*options.run_seed(), key.prompt_index, key.source, key.sample);
    } else if (seed >= 0 && key.sample > 0) {
        seed = record_seed(static_cast<uint64_t>(seed), key.prompt_index, key.source, key.sample);
    }
}

std::vector<Prompt> RecordSource::read(int64_t first, int64_t count) const {
    const int64_t end = std::min(record_count(), first + std::max<int64_t>(count, 0));
    std::vector<Prompt> records;
    while (first < end) {
        // Records of neighbouring prompts of one file, read at once.
        const RecordKey begin = keys_[static_cast<size_t>(first)];
        int64_t last = begin.prompt_index;
        int64_t stop = first;
        for (; stop < end; ++stop) {
            const RecordKey& key = keys_[static_cast<size_t>(stop)];
            if (key.source != begin.source || key.prompt_index > last + 1) break;
            last = key.prompt_index;
        }
        const std::vector<Prompt> prompts =
            load(begin.source, begin.prompt_index, last - begin.prompt_index + 1);
        for (; first < stop; ++first) {
            const RecordKey& key = keys_[static_cast<size_t>(first)];
            records.push_back(prompts[static_cast<size_t>(key.prompt_index - begin.prompt_index)]);
            set_sample(records.back(), key);
        }
    }
    return records;
}

int64_t RecordSource::largest_total() const {
    const bool texts = std::any_of(files_.begin(), files_.end(),
                                   [](const auto& file) { return file->reader.is_text(); });
    int64_t largest = 0;
    if (!texts) {
        for (const auto& file : files_) largest = std::max(largest, file->reader.largest_total());
        return largest;
    }
    for (int64_t first = 0; first < record_count(); first += kSlice) {
        for (const Prompt& prompt : read(first, kSlice)) {
            if (!prompt.error.empty()) continue;
            const int64_t limit = std::max<int64_t>(prompt.options.max_new_tokens, 1);
            largest = std::max(largest, std::ssize(prompt.tokens) + limit);
        }
    }
    return largest;
}

std::string RecordSource::first_error() const {
    for (int64_t first = 0; first < record_count(); first += kSlice) {
        for (const Prompt& prompt : read(first, kSlice)) {
            if (prompt.error.empty()) continue;
            return fmt::format("{}: record {}: {}",
                               files_[static_cast<size_t>(prompt.source)]->name, prompt.index,
                               prompt.error);
        }
    }
    return "";
}

}  // namespace quadrille
