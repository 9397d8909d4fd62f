// SPDX-License-Identifier: Apache-2.0
#include "jobs/prompts/record_source.h"

#include "io/digest.h"
#include "kernels/error.h"
#include "kernels/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace quadrille {

namespace {

constexpr int64_t kSlice = 1024;  // records read at once where all are looked at

}  // namespace

RecordSource::RecordSource(const PromptSourceOptions& options,
                           const std::vector<std::string>& paths, const std::string& target,
                           int64_t vocab_size, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      limits_{.vocab_size = vocab_size, .context = 0},
      samples_(options.samples) {
    for (size_t i = 0; i < paths.size(); ++i) {
        const std::string name = i < options.prompts.size() ? options.prompts[i] : "--prompt";
        files_.push_back(
            std::make_unique<File>(File{name, PromptReader(paths[i], options.record)}));
        const PromptReader& reader = files_.back()->reader;
        const char* needs = reader.is_text()                   ? "the prompts are text"
                            : reader.options().has_stop_text() ? "the prompts have stop_text"
                                                               : nullptr;
        if (needs == nullptr || tokenizer_ != nullptr) continue;
        throw Error(ErrorKind::input,
                    fmt::format("{}: {} and {} has no tokenizer.json", name, needs, target));
    }
    list_records(options);
}

void RecordSource::list_records(const PromptSourceOptions& options) {
    int64_t prompt = 0;  // counted over all files
    for (size_t source = 0; source < files_.size(); ++source) {
        const int64_t count = files_[source]->reader.record_count();
        for (int64_t index = 0; index < count; ++index, ++prompt) {
            if (options.limit > 0 && prompt >= options.limit) return;
            if (prompt % options.shard.count != options.shard.index) continue;
            for (int64_t sample = 0; sample < samples_; ++sample) {
                keys_.push_back({.source = static_cast<int32_t>(source),
                                 .prompt_index = index,
                                 .sample = static_cast<int32_t>(sample)});
            }
        }
    }
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
    std::vector<std::string> notices;
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

std::vector<Prompt> RecordSource::load(int32_t source, int64_t first, int64_t count) const {
    const PromptReader& reader = files_[static_cast<size_t>(source)]->reader;
    std::vector<Prompt> prompts = reader.read(first, count, limits_);
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
            largest = std::max(largest, std::ssize(prompt.tokens) + prompt.options.max_new_tokens);
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
