// SPDX-License-Identifier: Apache-2.0
// Two passes over the inputs: the first checks every line and finds out what the file must hold,
// the second writes it. Memory is a batch of records and the ids seen.
#include "jobs/files/pack.h"

#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "io/prompts/prompt_lines.h"
#include "io/text/chat_template.h"
#include "io/text/tokenizer.h"
#include "kernels/error.h"
#include "runtime/log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <unordered_map>

namespace quadrille {

namespace fs = std::filesystem;

namespace {

LineFormat format_of(const PackOptions& options, const fs::path& input) {
    if (options.format == "text") return LineFormat::text;
    if (options.format == "jsonl") return LineFormat::jsonl;
    return line_format_of(input);
}

// Calls visit(lines, record) for the records of all inputs in order, up to --limit; then
// done(lines) for each input.
template <class Visit, class Done>
void for_each_record(const PackOptions& options, Visit&& visit, Done&& done) {
    int64_t left = options.limit > 0 ? options.limit : INT64_MAX;
    for (const std::string& input : options.inputs) {
        PromptLines lines(input, format_of(options, input));
        PromptRecord record;
        while (left > 0 && lines.next(record)) {
            --left;
            visit(lines, record);
        }
        done(input, lines);
    }
}

// What the first pass finds.
class Survey {
  public:
    void see(const PromptLines& lines, const PromptRecord& record) {
        const std::string place = lines.place();
        if (record.error.empty()) {
            std::string& first = record.is_text() ? first_text_ : first_tokens_;
            if (first.empty()) first = place;
        } else if (errors_++ == 0) {
            first_error_ = record.error;
        }
        chats_ += record.chat ? 1 : 0;
        if (!record.continuation.empty() && first_continuation_.empty()) {
            first_continuation_ = place;
            columns_.options.insert(options::kInts[options::kScoreFrom].name);
        }
        columns_.note(record);
        see_id(place, record);
        ++records_;
    }

    void finish_input(const std::string& input, const PromptLines& lines) {
        if (errors_ > 0) {
            notices_.push_back(
                fmt::format("{}: {} records have an error and will not run, the "
                            "first: {}",
                            input, errors_, first_error_));
            errors_ = 0;
        }
        if (lines.blank_lines() > 0) {
            notices_.push_back(
                fmt::format("{}: {} blank lines passed over", input, lines.blank_lines()));
        }
        if (!lines.unknown_keys().empty()) {
            std::vector<std::string> keys;
            for (const auto& [key, count] : lines.unknown_keys()) {
                keys.push_back(fmt::format("{} ({} lines)", key, count));
            }
            notices_.push_back(
                fmt::format("{}: not known and ignored: {}", input, fmt::join(keys, ", ")));
        }
    }

    // Both forms in one file need a tokenizer, which makes them all tokens.
    bool is_mixed() const { return !first_text_.empty() && !first_tokens_.empty(); }
    PromptColumns columns() const {
        PromptColumns result = columns_;
        result.expected = records_;
        result.text = first_tokens_.empty() && first_continuation_.empty();
        result.error = result.error || !first_continuation_.empty();  // found as they are joined
        if (records_ > 0 && first_without_id_.empty()) {
            result.id = string_ids_ ? PromptColumns::Id::strings : PromptColumns::Id::integers;
        }
        return result;
    }
    int64_t records() const { return records_; }
    int64_t chats() const { return chats_; }
    const std::string& first_text() const { return first_text_; }
    const std::string& first_continuation() const { return first_continuation_; }
    const std::string& first_tokens() const { return first_tokens_; }
    const std::vector<std::string>& notices() const { return notices_; }

  private:
    void see_id(const std::string& place, const PromptRecord& record) {
        const bool has_id = record.id.index() != 0;
        std::string& first = has_id ? first_with_id_ : first_without_id_;
        if (first.empty()) first = place;
        if (!first_with_id_.empty() && !first_without_id_.empty()) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: id: expected in every record or in none, found one in {} "
                                    "and none in {}",
                                    place, first_with_id_, first_without_id_));
        }
        if (!has_id) return;
        const auto* text = std::get_if<std::string>(&record.id);
        string_ids_ = string_ids_ || text;
        std::string id = text ? *text : fmt::format("{}", std::get<int64_t>(record.id));
        const auto [at, inserted] = ids_.emplace(std::move(id), records_);
        if (!inserted) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: id: expected each id once, found {} in record {} as well",
                                    place, at->first, at->second));
        }
    }

    PromptColumns columns_;
    int64_t records_ = 0;
    int64_t chats_ = 0;   // made by the chat template
    int64_t errors_ = 0;  // of the input that is read
    std::string first_error_;
    std::string first_text_;  // places; "": none
    std::string first_tokens_;
    std::string first_continuation_;
    std::string first_with_id_;
    std::string first_without_id_;
    bool string_ids_ = false;
    std::unordered_map<std::string, int64_t> ids_;  // with the record that has it
    std::vector<std::string> notices_;
};

std::string not_prompts(const fs::path& path) {
    try {
        std::vector<std::string> ignored;
        schema::expect_kind(h5::File::open(path), schema::kPrompts, ignored);
        return "";
    } catch (const Error& error) {
        return fmt::format("it is no prompts file: {}", error.what());
    }
}

// The file that the prompts go to.
fs::path check_files(const PackOptions& options) {
    std::error_code code;
    for (const std::string& input : options.inputs) {
        if (fs::exists(input, code) && !fs::is_directory(input, code) &&
            !fs::is_regular_file(input, code)) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: expected a regular file (inputs are read twice)", input));
        }
    }
    return output_path(options.out, {.overwrite = options.output_exists == OutputExists::overwrite,
                                     .taken = {options.inputs.begin(), options.inputs.end()},
                                     .objection = not_prompts});
}

}  // namespace

PackSummary pack(const PackOptions& options) {
    const fs::path out = check_files(options);
    Survey survey;
    for_each_record(
        options, [&](const auto& lines, const auto& record) { survey.see(lines, record); },
        [&](const auto& input, const auto& lines) { survey.finish_input(input, lines); });
    std::unique_ptr<Tokenizer> tokenizer;
    const bool joins = !survey.first_continuation().empty();
    if (survey.is_mixed() || joins) {
        if (options.target.empty()) {
            const std::string why =
                joins ? fmt::format("{} has a continuation", survey.first_continuation())
                      : fmt::format("{} holds text and {} tokens", survey.first_text(),
                                    survey.first_tokens());
            throw Error(ErrorKind::usage,
                        "--target: expected a checkpoint folder with a tokenizer, as " + why);
        }
        tokenizer = make_tokenizer(options.target);
    }
    const PromptColumns columns = survey.columns();
    PromptWriter writer(out, columns);
    for_each_record(
        options,
        [&](const PromptLines&, PromptRecord& record) {
            if (!record.continuation.empty() && record.error.empty()) {
                join_continuation(record, *tokenizer);
            } else if (tokenizer && record.error.empty() && record.is_text()) {
                record.prompt = tokenizer->encode(std::get<std::string>(record.prompt));
            }
            writer.add(std::move(record));
        },
        [](const auto&, const auto&) {});
    if (writer.records() != survey.records()) {
        throw Error(ErrorKind::input,
                    fmt::format("inputs changed while they were read: {} records, then {}",
                                survey.records(), writer.records()));
    }
    writer.finish();
    PackSummary summary;
    summary.records = writer.records();
    summary.text = columns.text;
    summary.columns.assign(columns.options.begin(), columns.options.end());
    if (columns.id != PromptColumns::Id::none) summary.columns.push_back("id");
    summary.notices = survey.notices();
    if (survey.chats() > 0 && !options.target.empty()) {
        const std::string other = other_template(options.target);
        if (!other.empty()) {
            summary.notices.push_back(
                fmt::format("{} is not the built-in chat template: {} conversations went through "
                            "the built-in one",
                            other, survey.chats()));
        }
    }
    return summary;
}

int run_pack(const PackOptions& options) {
    try_files({options.out});
    const PackSummary summary = pack(options);
    Log log(true);
    for (const std::string& notice : summary.notices) log.notice(notice);
    show(stdout,
         fmt::format("{}: {} records of {}{}{}\n", options.out, summary.records,
                     summary.text ? "text" : "tokens", summary.columns.empty() ? "" : ", with ",
                     fmt::join(summary.columns, ", ")));
    return 0;
}

}  // namespace quadrille
