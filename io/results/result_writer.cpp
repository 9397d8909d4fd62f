// SPDX-License-Identifier: Apache-2.0
#include "io/results/result_writer.h"

#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/generation_reader.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::vector<RecordKey> first_records(int64_t count) {
    std::vector<RecordKey> keys(static_cast<size_t>(count));
    for (size_t i = 0; i < keys.size(); ++i) keys[i].prompt_index = static_cast<int64_t>(i);
    return keys;
}

ResultWriter::ResultWriter(ResultOptions options) : options_(std::move(options)) {
    const std::vector<RecordKey>& records = options_.records;
    require(
        std::adjacent_find(records.begin(), records.end(), std::greater_equal<>{}) == records.end(),
        "result writer: the records of a run ascend");
    GenerationLayout& layout = options_.layout;
    layout.id = common_kind(options_.ids);
    for (const RecordKey& key : records)
        layout.origin = layout.origin || key.source != 0 || key.sample != 0;
    done_.resize(records.size(), false);
    remaining_ = std::ssize(records);

    check_output(options_.out, result_kind(layout), options_.overwrite);
    folder_.emplace(parts_folder(options_.out), options_.fingerprint, std::ssize(options_.records),
                    options_.locking);
    check_output(options_.out, result_kind(layout),
                 options_.overwrite);  // a run that held the lock may have finished
    if (!folder_->unsaid().empty())
        notices_.push_back(
            fmt::format("{} was begun by a version that did not record {}: taken as unchanged",
                        folder_->path().string(), fmt::join(folder_->unsaid(), ", ")));
    take_up_parts();
    own_.emplace(GroupWriter::Options{.folder = folder_->path(),
                                      .group = 0,
                                      .layout = layout,
                                      .run = folder_->run(),
                                      .ids = options_.ids,
                                      .before_commit = options_.before_commit},
                 folder_->lock());
}

void ResultWriter::take_up_parts() {
    for (const fs::path& path : list_parts(folder_->path())) {
        try {
            take_up(path);
        } catch (const Error& error) {
            const bool newer = seal_holds(path) && schema::is_newer(path);
            if (error.kind() != ErrorKind::input || newer) throw;
            const fs::path aside = RunFolder::set_aside(path);
            notices_.push_back(fmt::format("{}; kept as {}, its records are computed again",
                                           error.what(), aside.filename().string()));
        }
    }
}

// All of the part or nothing of it.
void ResultWriter::take_up(const fs::path& path) {
    if (!seal_holds(path)) throw Error(ErrorKind::input, path.string() + ": truncated or damaged");
    const GenerationReader part(path, schema::kPart);
    const auto other_run = [&] {
        return Error(ErrorKind::input, path.string() + ": a part of another run");
    };
    GenerationLayout layout = part.layout();
    layout.sources = options_.layout.sources;  // names: the fingerprint knows what is in the files
    if (part.file().attribute(schema::kRunAttribute) != h5::Value(folder_->run()) ||
        layout != options_.layout)
        throw other_run();
    const std::vector<Generation> records = part.read(0, part.record_count());
    std::vector<size_t> rows;
    for (const Generation& record : records) {
        const int64_t row = find_row(options_.records, key_of(record));
        if (row < 0) throw other_run();
        rows.push_back(static_cast<size_t>(row));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (done_[rows[i]]) continue;  // the first part that has it counts
        done_[rows[i]] = true;
        --remaining_;
        resumed_.add(records[i]);
    }
}

size_t ResultWriter::row_of(const RecordKey& key) const {
    const int64_t row = find_row(options_.records, key);
    if (row < 0)
        throw Error(ErrorKind::internal,
                    fmt::format("record {} (prompt file {}, sample {}) is not of this run",
                                key.prompt_index, key.source, key.sample));
    return static_cast<size_t>(row);
}

void ResultWriter::add(Generation generation) {
    const RecordKey key = key_of(generation);
    const size_t row = row_of(key);
    if (done_[row])
        throw Error(ErrorKind::internal,
                    fmt::format("record {} was finished twice", key.prompt_index));
    own_->add(std::move(generation));
    done_[row] = true;
    --remaining_;
}

void ResultWriter::add_group(const GroupParts& parts, int64_t computed) {
    groups_.push_back(parts);
    folder_->add_computed(computed);
    remaining_ -= computed;
}

// On a network file system the listing may lack what another host has just committed, but a name
// that was never asked for is looked up where it is.
std::vector<fs::path> ResultWriter::all_parts() const {
    std::vector<fs::path> parts = list_parts(folder_->path());
    for (const GroupParts& of : groups_)
        for (int64_t number = of.first; number < of.end; ++number)
            parts.push_back(part_path(folder_->path(), of.group, number));
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    return parts;
}

ResultSummary ResultWriter::finish(const h5::Attributes& provenance) {
    require(!finished_, "result writer: finish once");
    commit();
    const auto unfinished = std::ranges::find(done_, false);
    if (groups_.empty() && unfinished != done_.end())
        throw Error(
            ErrorKind::internal,
            fmt::format(
                "record {} was never finished",
                options_.records[static_cast<size_t>(unfinished - done_.begin())].prompt_index));
    ResultSummary summary = assemble(options_.out,
                                     {.layout = options_.layout,
                                      .records = options_.records,
                                      .completions = options_.completions,
                                      .kinds = options_.kinds,
                                      .place = folder_->path().string(),
                                      .files = all_parts(),
                                      .kind = schema::kPart},
                                     provenance, options_.before_commit);
    finished_ = true;
    folder_->remove();
    return summary;
}

}  // namespace quadrille
