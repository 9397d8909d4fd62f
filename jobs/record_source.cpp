// SPDX-License-Identifier: Apache-2.0
#include "jobs/record_source.h"

#include "kernels/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace quadrille {

namespace {

constexpr int64_t kSlice = 1024;  // records read at once where the whole file is looked at

// What this job obeys; a file that asks for more is refused, never half obeyed.
const std::set<std::string> kHonoured = {"max_new_tokens", "ignore_eos", "stop_tokens", "seed"};

}  // namespace

RecordSource::RecordSource(const GenerateOptions& options, const std::string& path,
                           int64_t vocab_size, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      reader_(path, options.record, kHonoured),
      limits_{.vocab_size = vocab_size, .context = 0},
      count_(options.limit > 0 ? std::min(options.limit, reader_.record_count())
                               : reader_.record_count()) {
    if (reader_.is_text() && tokenizer_ == nullptr) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: the prompts are text and {} has no tokenizer.json",
                                reader_.path().string(), options.target));
    }
}

std::vector<Prompt> RecordSource::read(int64_t first, int64_t count) const {
    count = std::clamp<int64_t>(count_ - first, 0, count);
    std::vector<Prompt> prompts = reader_.read(first, count, limits_);
    if (!reader_.is_text()) return prompts;
    for (Prompt& prompt : prompts) {
        if (!prompt.error.empty()) continue;
        try {
            prompt.tokens = tokenizer_->encode(prompt.text);
            check_tokens(prompt, limits_);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::input) throw;
            prompt.error = error.what();
        }
        prompt.text.clear();
    }
    return prompts;
}

int64_t RecordSource::largest_total() const {
    if (!reader_.is_text()) return reader_.largest_total();
    int64_t largest = 0;
    for (int64_t first = 0; first < count_; first += kSlice) {
        for (const Prompt& prompt : read(first, kSlice)) {
            if (!prompt.error.empty()) continue;
            largest = std::max(largest, std::ssize(prompt.tokens) + prompt.options.max_new_tokens);
        }
    }
    return largest;
}

std::string RecordSource::first_error() const {
    for (int64_t first = 0; first < count_; first += kSlice) {
        for (const Prompt& prompt : read(first, kSlice)) {
            if (!prompt.error.empty()) {
                return fmt::format("record {}: {}", prompt.index, prompt.error);
            }
        }
    }
    return "";
}

}  // namespace quadrille
