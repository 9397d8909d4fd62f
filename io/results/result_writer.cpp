// SPDX-License-Identifier: Apache-2.0
#include "io/results/result_writer.h"

#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/generation_reader.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlice = 256;  // records of a part in memory at a time

void add_lists(std::vector<int64_t>& sum, const std::vector<int64_t>& values) {
    if (sum.size() < values.size()) sum.resize(values.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
}

double ratio(int64_t part, int64_t whole) {
    if (whole == 0) return std::numeric_limits<double>::quiet_NaN();
    return static_cast<double>(part) / static_cast<double>(whole);
}

// Lengths by row become the bounds of the whole.
void accumulate(std::vector<int64_t>& lengths) {
    lengths.push_back(0);
    std::exclusive_scan(lengths.begin(), lengths.end(), lengths.begin(), int64_t{0});
}

// An attribute holds 64 KB at most: lists, which are as long as there are ranks, become datasets.
void write_provenance(h5::Group group, const h5::Attributes& facts) {
    for (const auto& [name, value] : facts) {
        const auto* list = std::get_if<std::vector<std::string>>(&value);
        if (list == nullptr)
            group.set_attribute(name, value);
        else
            group.create_dataset(name, h5::Element::string, {std::ssize(*list)})
                .write_strings(0, *list);
    }
}

}  // namespace

std::vector<RecordKey> first_records(int64_t count) {
    std::vector<RecordKey> keys(static_cast<size_t>(count));
    for (size_t i = 0; i < keys.size(); ++i) keys[i].prompt_index = static_cast<int64_t>(i);
    return keys;
}

void ResultSummary::add(const Generation& generation) {
    ++records;
    errors += generation.status == Status::error ? 1 : 0;
    tokens += std::ssize(generation.tokens);
    const Acceptance& a = generation.acceptance;
    steps += a.steps;
    drafted += a.drafted;
    accepted += a.accepted;
    emitted += a.emitted;
    add_lists(by_position, a.by_position);
    add_lists(histogram, a.histogram);
}

double ResultSummary::accepted_per_step() const {
    return ratio(accepted, steps);
}

double ResultSummary::emitted_per_step() const {
    return ratio(emitted, steps);
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

    check_output(options_.out, options_.overwrite);
    folder_.emplace(parts_folder(options_.out), options_.fingerprint, options_.locking);
    check_output(options_.out, options_.overwrite);  // a run that held the lock may have finished
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
        const std::optional<size_t> row = find_row(key_of(record));
        if (!row) throw other_run();
        rows.push_back(*row);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (done_[rows[i]]) continue;  // the first part that has it counts
        done_[rows[i]] = true;
        --remaining_;
        resumed_.add(records[i]);
    }
}

std::optional<size_t> ResultWriter::find_row(const RecordKey& key) const {
    const auto found = std::lower_bound(options_.records.begin(), options_.records.end(), key);
    if (found == options_.records.end() || *found != key) return std::nullopt;
    return static_cast<size_t>(found - options_.records.begin());
}

size_t ResultWriter::row_of(const RecordKey& key) const {
    const std::optional<size_t> row = find_row(key);
    if (!row)
        throw Error(ErrorKind::internal,
                    fmt::format("record {} (prompt file {}, sample {}) is not of this run",
                                key.prompt_index, key.source, key.sample));
    return *row;
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

ResultWriter::Index ResultWriter::index_parts(const std::vector<fs::path>& parts) const {
    const size_t records = options_.records.size();
    Index index{std::vector<Place>(records), std::vector<int64_t>(records, 0), {}};
    if (options_.layout.trace) index.trace_offsets.resize(records, 0);
    for (size_t p = 0; p < parts.size(); ++p) {
        const GenerationReader part(parts[p], schema::kPart);
        if (part.layout().k != options_.layout.k || part.layout().trace != options_.layout.trace)
            throw Error(ErrorKind::input, parts[p].string() + ": a part of another run");
        const std::vector<RecordKey> keys = part.keys(0, part.record_count());
        for (size_t i = 0; i < keys.size(); ++i) {
            const size_t row = row_of(keys[i]);
            if (index.places[row].part >= 0) continue;  // the first part that has it counts
            index.places[row] = {static_cast<int32_t>(p), static_cast<int32_t>(i)};
            index.offsets[row] = part.offsets()[i + 1] - part.offsets()[i];
            if (options_.layout.trace)
                index.trace_offsets[row] = part.trace_offsets()[i + 1] - part.trace_offsets()[i];
        }
    }
    for (size_t row = 0; row < records; ++row) {
        if (index.places[row].part >= 0) continue;
        const int64_t record = options_.records[row].prompt_index;
        if (!done_[row] && groups_.empty())
            throw Error(ErrorKind::internal, fmt::format("record {} was never finished", record));
        throw Error(ErrorKind::io, fmt::format("{}: the part that held record {} is gone",
                                               folder_->path().string(), record));
    }
    accumulate(index.offsets);
    if (options_.layout.trace) accumulate(index.trace_offsets);
    return index;
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

// Reads the part in slices; neighbours in the whole are written together.
void ResultWriter::copy_part(const fs::path& path, int32_t part, const std::vector<Place>& places,
                             GenerationTable& table, ResultSummary& summary) const {
    const GenerationReader reader(path, schema::kPart);
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        std::vector<Generation> slice = reader.read(first, count);
        std::vector<std::pair<size_t, size_t>> order;  // row in the whole, index in the slice
        for (size_t i = 0; i < slice.size(); ++i) {
            const size_t row = row_of(key_of(slice[i]));
            if (places[row].part == part && places[row].row == first + static_cast<int64_t>(i))
                order.emplace_back(row, i);
        }
        std::sort(order.begin(), order.end());
        for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
            std::vector<Generation> run;
            for (end = begin;
                 end < order.size() && order[end].first == order[begin].first + (end - begin);
                 ++end) {
                summary.add(slice[order[end].second]);
                run.push_back(std::move(slice[order[end].second]));
            }
            table.write(static_cast<int64_t>(order[begin].first), run);
        }
    }
}

ResultSummary ResultWriter::assemble(const fs::path& whole, const h5::Attributes& provenance) {
    const std::vector<fs::path> parts = all_parts();
    Index index = index_parts(parts);
    ResultSummary summary;
    summary.by_position.resize(static_cast<size_t>(options_.layout.k), 0);
    summary.histogram.resize(static_cast<size_t>(options_.layout.k) + 1, 0);
    h5::File file = h5::File::create(whole);
    schema::stamp(file, schema::kGenerations);
    {
        GenerationTable table(file, options_.layout, std::move(index.offsets),
                              std::move(index.trace_offsets));
        for (size_t p = 0; p < parts.size(); ++p)
            copy_part(parts[p], static_cast<int32_t>(p), index.places, table, summary);
        file.flush();
    }
    if (!options_.completions.empty()) {
        const std::vector<uint8_t> flags(options_.completions.begin(), options_.completions.end());
        file.group("generations")
            .create_dataset("completion", h5::Element::u8, {std::ssize(flags)})
            .write<uint8_t>(0, flags);
    }
    file.group("acceptance")
        .set_attributes({{"accepted_per_step", summary.accepted_per_step()},
                         {"emitted_per_step", summary.emitted_per_step()},
                         {"accept_length", summary.accept_length()}});
    write_provenance(file.create_group("provenance"), provenance);
    file.set_attribute(schema::kErrorsAttribute, summary.errors);
    file.set_attribute(schema::kCompleteAttribute, int64_t{1});
    file.close();
    return summary;
}

ResultSummary ResultWriter::finish(const h5::Attributes& provenance) {
    require(!finished_, "result writer: finish once");
    commit();
    fs::path whole = options_.out;
    whole += ".tmp";
    std::error_code ignored;
    ResultSummary summary;
    try {
        summary = assemble(whole, provenance);
        seal_file(whole);
        if (options_.before_commit) options_.before_commit();
        rename_durably(whole, options_.out);
    } catch (...) {
        fs::remove(whole, ignored);
        throw;
    }
    finished_ = true;
    folder_->remove();
    return summary;
}

}  // namespace quadrille
