// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/unpack.h"

#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "io/results/generation_reader.h"
#include "io/text/tokenizer.h"
#include "jobs/files/batch_output.h"
#include "jobs/files/run_view.h"
#include "kernels/error.h"
#include "runtime/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kSlice = 256;

// Lines to a file, which takes its name when it is whole, or to standard output.
class LineWriter {
  public:
    explicit LineWriter(const std::string& out) : out_(out) {
        if (to_stdout()) return;
        unfinished_ = out_ + ".tmp";
        file_.reset(std::fopen(unfinished_.c_str(), "wb"));
        if (!file_) fail("create", errno);
    }
    ~LineWriter() {
        if (unfinished_.empty()) return;
        std::error_code ignored;
        fs::remove(unfinished_, ignored);
    }
    LineWriter(const LineWriter&) = delete;
    LineWriter& operator=(const LineWriter&) = delete;

    void write(const std::string& line) {
        if (std::fwrite(line.data(), 1, line.size(), stream()) != line.size()) fail("write", errno);
    }
    void finish() {
        if (std::fflush(stream()) != 0) fail("write", errno);
        if (to_stdout()) return;
        if (std::fclose(file_.release()) != 0) fail("close", errno);
        sync_file(unfinished_);
        rename_durably(unfinished_, out_);
        unfinished_.clear();
    }

  private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };

    bool to_stdout() const { return out_ == "-"; }
    std::FILE* stream() const { return to_stdout() ? stdout : file_.get(); }
    [[noreturn]] void fail(const char* verb, int reason) const {
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot {}: {}", to_stdout() ? "standard output" : out_, verb,
                                system_reason(reason)));
    }

    std::string out_;
    std::string unfinished_;
    std::unique_ptr<std::FILE, Close> file_;
};

ordered_json acceptance_json(const Acceptance& a, bool trace) {
    ordered_json out = {
        {"steps", a.steps},     {"drafted", a.drafted},         {"accepted", a.accepted},
        {"emitted", a.emitted}, {"by_position", a.by_position}, {"histogram", a.histogram}};
    if (trace) out["trace"] = a.trace;
    return out;
}

std::string encode(const ordered_json& object) {
    return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string provenance_of(const GenerationReader& reader, const char* name) {
    if (!reader.file().has_group("provenance")) return "";
    const auto value = reader.file().group("provenance").attribute(name);
    const auto* text = value ? std::get_if<std::string>(&*value) : nullptr;
    return text == nullptr ? "" : *text;
}

std::string folder_name(const std::string& path) {
    return (fs::path(path) / "").lexically_normal().parent_path().filename().string();
}

// Reads "2026-01-31T23:59:59Z"; anything else is 0.
int64_t unix_seconds(const std::string& utc) {
    std::tm time{};
    const char* end = ::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
    return end != nullptr && *end == '\0' ? int64_t{::timegm(&time)} : 0;
}

// The tokenizer that the inputs' log-probabilities are spelled out with; null where none is needed
// or given.
std::unique_ptr<Tokenizer> tokenizer_for(const UnpackOptions& options,
                                         const std::vector<GenerationReader>& readers,
                                         std::vector<std::string>& notices) {
    std::unique_ptr<Tokenizer> tokenizer;
    if (options.format != "openai") return tokenizer;
    for (const GenerationReader& reader : readers) {
        const std::string path = reader.path().string();
        if (reader.layout().logprobs < 0) continue;
        if (options.target.empty()) {
            notices.push_back(
                fmt::format("{}: logprobs are left out, as their tokens need a "
                            "tokenizer: give --target",
                            path));
            continue;
        }
        if (!tokenizer) tokenizer = make_tokenizer(options.target);
        const std::string digest = provenance_of(reader, "tokenizer_digest");
        if (!digest.empty() && digest != tokenizer->digest()) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: expected the tokenizer it was made with (digest {}), "
                                    "found that of --target {} ({})",
                                    path, digest, options.target, tokenizer->digest()));
        }
    }
    return tokenizer;
}

// Turns records into lines; samples of one prompt stand side by side in a file and share a line of
// a batch output.
class Formatter {
  public:
    Formatter(const UnpackOptions& options, const Tokenizer* tokenizer, LineWriter& lines)
        : openai_(options.format == "openai"),
          several_(options.inputs.size() > 1),
          tokenizer_(tokenizer),
          lines_(lines) {}

    void add(Generation generation, const GenerationReader& reader, const std::string& file) {
        if (!openai_) {
            ordered_json object;
            if (several_) object["file"] = file;
            object.update(to_json(generation, reader.layout()));
            lines_.write(encode(object));
            return;
        }
        if (begins_line(generation)) end_prompt(reader);
        samples_.push_back(std::move(generation));
    }
    // Samples of a prompt share a line of a batch output.
    bool begins_line(const Generation& generation) const {
        return !openai_ || samples_.empty() || samples_.front().source != generation.source ||
               samples_.front().prompt_index != generation.prompt_index;
    }
    // After the last record of a prompt.
    void end_prompt(const GenerationReader& reader) {
        if (samples_.empty()) return;
        if (const std::string id = custom_id(samples_.front()); !ids_.insert(id).second) {
            if (repeated_++ == 0) first_repeated_ = id;
        }
        const std::string target = provenance_of(reader, "target");
        const BatchOutput output{.model = target.empty() ? "quadrille" : folder_name(target),
                                 .created = unix_seconds(provenance_of(reader, "end")),
                                 .tokenizer = tokenizer_};
        lines_.write(encode(to_batch_output(samples_, output)));
        samples_.clear();
    }
    // "" where every line has a custom_id of its own.
    std::string notice() const {
        if (repeated_ == 0) return "";
        return fmt::format(
            "{} lines have a custom_id that an earlier line has, \"{}\" the first: --format jsonl "
            "tells them apart by source and index",
            repeated_, first_repeated_);
    }

  private:
    bool openai_;
    bool several_;
    const Tokenizer* tokenizer_;
    LineWriter& lines_;
    std::vector<Generation> samples_;
    std::unordered_set<std::string> ids_;  // of batch output lines
    int64_t repeated_ = 0;
    std::string first_repeated_;
};

// Scores are read as generations are.
std::string kind_of_results(const fs::path& path) {
    std::vector<std::string> notices;
    const std::string kind = schema::kind_of(h5::File::open(path), notices);
    return kind == schema::kScores ? kind : schema::kGenerations;
}

// The file that lines go to; "-": standard output.
std::string file_of(const UnpackOptions& options) {
    if (options.out == "-") return options.out;
    const auto objection = [](const fs::path& path) {
        return not_json(path, "JSON lines as unpack writes them", {});
    };
    return output_path(options.out, {.overwrite = options.output_exists == OutputExists::overwrite,
                                     .taken = {options.inputs.begin(), options.inputs.end()},
                                     .objection = objection})
        .string();
}

}  // namespace

ordered_json to_json(const Generation& g, const GenerationLayout& layout) {
    ordered_json out = {{"index", g.prompt_index}};
    if (layout.origin) {
        out["source"] = g.source;
        out["sample"] = g.sample;
    }
    if (const auto* number = std::get_if<int64_t>(&g.id)) out["id"] = *number;
    if (const auto* text = std::get_if<std::string>(&g.id)) out["id"] = *text;
    out["status"] = schema::kStatusNames[static_cast<size_t>(g.status)];
    if (!layout.scores) {
        out["finish_reason"] = schema::kFinishNames[static_cast<size_t>(g.finish_reason)];
    }
    out["error"] = g.error.empty() ? ordered_json() : ordered_json(g.error);
    if (layout.scores) {
        const bool scored = g.error.empty();
        out["score_from"] = g.prompt_tokens;
        out["sum_logprob"] = scored ? ordered_json(sum_logprob(g)) : ordered_json();
        out["is_greedy"] = scored ? ordered_json(g.is_greedy) : ordered_json();
    }
    out["tokens"] = g.tokens;
    if (layout.text) out["text"] = g.text;
    if (!layout.scores) out["acceptance"] = acceptance_json(g.acceptance, layout.trace);
    if (layout.logprobs >= 0)
        out["logprobs"] = {
            {"chosen", g.chosen_logprobs}, {"top_ids", g.top_ids}, {"top", g.top_logprobs}};
    return out;
}

int64_t unpack(const UnpackOptions& options, std::vector<std::string>& notices) {
    const std::string out = file_of(options);
    std::vector<GenerationReader> readers;
    std::vector<RunView> views;
    std::vector<size_t> view_of;  // of each reader
    for (const std::string& input : options.inputs) {
        views.push_back(view_run(input));
        if (views.back().parts && options.format == "openai") {
            throw Error(ErrorKind::usage,
                        fmt::format("{}: the samples of a prompt are together once the run is "
                                    "done: --format jsonl gives what is there",
                                    views.back().path.string()));
        }
        for (const fs::path& path : views.back().files) {
            readers.emplace_back(path, views.back().parts ? schema::kPart : kind_of_results(path));
            view_of.push_back(views.size() - 1);
            if (!readers.back().is_complete() && !views.back().parts)
                throw Error(ErrorKind::input,
                            input + ": is not complete (no attribute complete = 1)");
            if (options.format == "openai" && !readers.back().layout().text)
                throw Error(ErrorKind::input, input + ": has no text, which --format openai needs");
        }
    }
    const std::unique_ptr<Tokenizer> tokenizer = tokenizer_for(options, readers, notices);
    LineWriter lines(out);
    Formatter formatter(options, tokenizer.get(), lines);
    int64_t left = options.limit > 0 ? options.limit : std::numeric_limits<int64_t>::max();
    int64_t written = 0;
    std::vector<FirstOnly> first_only(views.size());
    std::vector<int64_t> done(views.size(), 0);
    for (size_t i = 0; i < readers.size(); ++i) {
        const GenerationReader& reader = readers[i];
        const size_t at = view_of[i];
        for (int64_t first = 0; first < reader.record_count() && left >= 0; first += kSlice) {
            const int64_t count = std::min(kSlice, reader.record_count() - first);
            for (Generation& generation : reader.read(first, count)) {
                if (views[at].parts && !first_only[at](generation)) continue;
                ++done[at];
                if (formatter.begins_line(generation)) --left;
                if (left < 0) break;
                formatter.add(std::move(generation), reader, views[at].path.string());
                ++written;
            }
        }
        formatter.end_prompt(reader);
    }
    for (size_t i = 0; i < views.size(); ++i) {
        if (views[i].parts && left >= 0) notices.push_back(views[i].progress(done[i]));
    }
    lines.finish();
    if (std::string notice = formatter.notice(); !notice.empty()) {
        notices.push_back(std::move(notice));
    }
    return written;
}

int run_unpack(const UnpackOptions& options) {
    std::vector<fs::path> files;
    for (const std::string& input : options.inputs) {
        std::ranges::copy(view_run(input).files, std::back_inserter(files));
    }
    try_files(files);
    std::vector<std::string> notices;
    const int64_t records = unpack(options, notices);
    Log log(true);
    for (const std::string& notice : notices) log.notice(notice);
    if (options.out != "-") show(stdout, fmt::format("{}: {} records\n", options.out, records));
    return 0;
}

}  // namespace quadrille
