// SPDX-License-Identifier: Apache-2.0
#include "io/results/assembly.h"

#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/generation_reader.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlice = 256;  // records of a file in memory at a time

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

// Rows of `from` alternatives a token become rows of `to` of them: -1 and NaN where there are none.
void widen(Generation& generation, int64_t from, int64_t to) {
    if (from == to || to < 0) return;
    const int64_t tokens = std::ssize(generation.tokens);
    const float none = std::numeric_limits<float>::quiet_NaN();
    if (from < 0) generation.chosen_logprobs.assign(static_cast<size_t>(tokens), none);
    std::vector<int32_t> ids(static_cast<size_t>(tokens * to), -1);
    std::vector<float> values(static_cast<size_t>(tokens * to), none);
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < from; ++i) {
            const auto at = static_cast<size_t>(t * from + i);
            const auto wide = static_cast<size_t>(t * to + i);
            ids[wide] = generation.top_ids[at];
            values[wide] = generation.top_logprobs[at];
        }
    }
    generation.top_ids = std::move(ids);
    generation.top_logprobs = std::move(values);
}

class Assembler {
  public:
    explicit Assembler(const Assembly& assembly)
        : assembly_(assembly), completions_(assembly.completions), kinds_(assembly.kinds) {
        completions_.resize(assembly.records.size(), false);
        kinds_.resize(assembly.records.size());
        index();
    }
    ResultSummary write(const fs::path& whole, const h5::Attributes& provenance);

  private:
    struct Place {
        int32_t file = -1;
        int32_t row = -1;
    };
    size_t row_of(const RecordKey& key) const;
    void index();
    void copy(size_t number, GenerationTable& table);
    void add(Generation& generation, size_t row, int64_t logprobs);
    void write_columns(h5::Group generations) const;

    const Assembly& assembly_;
    std::vector<bool> completions_;
    std::vector<std::string> kinds_;
    // The place of each record, and the bounds of its tokens and trace steps in the whole file.
    std::vector<Place> places_;
    std::vector<int64_t> offsets_;
    std::vector<int64_t> trace_offsets_;
    ResultSummary summary_;
};

size_t Assembler::row_of(const RecordKey& key) const {
    const int64_t row = find_row(assembly_.records, key);
    if (row < 0)
        throw Error(ErrorKind::internal,
                    fmt::format("record {} (prompt file {}, sample {}) is not of this run",
                                key.prompt_index, key.source, key.sample));
    return static_cast<size_t>(row);
}

void Assembler::index() {
    const size_t records = assembly_.records.size();
    places_.resize(records);
    offsets_.resize(records, 0);
    if (assembly_.layout.trace) trace_offsets_.resize(records, 0);
    for (size_t f = 0; f < assembly_.files.size(); ++f) {
        const GenerationReader file(assembly_.files[f], assembly_.kind);
        if (file.layout().k != assembly_.layout.k || file.layout().trace != assembly_.layout.trace)
            throw Error(ErrorKind::input, assembly_.files[f].string() + ": a part of another run");
        const std::vector<RecordKey> keys = file.keys(0, file.record_count());
        for (size_t i = 0; i < keys.size(); ++i) {
            const size_t row = row_of(keys[i]);
            if (places_[row].file >= 0) continue;
            places_[row] = {static_cast<int32_t>(f), static_cast<int32_t>(i)};
            offsets_[row] = file.offsets()[i + 1] - file.offsets()[i];
            if (assembly_.layout.trace)
                trace_offsets_[row] = file.trace_offsets()[i + 1] - file.trace_offsets()[i];
        }
    }
    for (size_t row = 0; row < records; ++row)
        if (places_[row].file < 0)
            throw Error(ErrorKind::io,
                        fmt::format("{}: the part that held record {} is gone", assembly_.place,
                                    assembly_.records[row].prompt_index));
    accumulate(offsets_);
    if (assembly_.layout.trace) accumulate(trace_offsets_);
}

void Assembler::add(Generation& generation, size_t row, int64_t logprobs) {
    if (generation.kind.empty()) generation.kind = kinds_[row];
    kinds_[row] = generation.kind;
    summary_.add(generation);
    if (generation.completion) completions_[row] = true;
    widen(generation, logprobs, assembly_.layout.logprobs);
}

// Reads a file in slices; neighbours in the whole are written together.
void Assembler::copy(size_t number, GenerationTable& table) {
    const GenerationReader reader(assembly_.files[number], assembly_.kind);
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        std::vector<Generation> slice = reader.read(first, count);
        std::vector<std::pair<size_t, size_t>> order;  // row in the whole, index in the slice
        for (size_t i = 0; i < slice.size(); ++i) {
            const size_t row = row_of(key_of(slice[i]));
            if (places_[row].file == static_cast<int32_t>(number) &&
                places_[row].row == first + static_cast<int64_t>(i))
                order.emplace_back(row, i);
        }
        std::sort(order.begin(), order.end());
        for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
            std::vector<Generation> run;
            for (end = begin;
                 end < order.size() && order[end].first == order[begin].first + (end - begin);
                 ++end) {
                Generation& generation = slice[order[end].second];
                add(generation, order[end].first, reader.layout().logprobs);
                run.push_back(std::move(generation));
            }
            table.write(static_cast<int64_t>(order[begin].first), run);
        }
    }
}

// Columns that only a whole file has.
void Assembler::write_columns(h5::Group generations) const {
    if (std::ranges::find(completions_, true) != completions_.end()) {
        const std::vector<uint8_t> flags(completions_.begin(), completions_.end());
        generations.create_dataset("completion", h5::Element::u8, {std::ssize(flags)})
            .write<uint8_t>(0, flags);
    }
    if (std::ranges::any_of(kinds_, [](const std::string& kind) { return !kind.empty(); })) {
        generations.create_dataset("kind", h5::Element::string, {std::ssize(kinds_)})
            .write_strings(0, kinds_);
    }
}

ResultSummary Assembler::write(const fs::path& whole, const h5::Attributes& provenance) {
    summary_.by_position.resize(static_cast<size_t>(assembly_.layout.k), 0);
    summary_.histogram.resize(static_cast<size_t>(assembly_.layout.k) + 1, 0);
    h5::File file = h5::File::create(whole);
    schema::stamp(file, result_kind(assembly_.layout));
    {
        GenerationTable table(file, assembly_.layout, std::move(offsets_),
                              std::move(trace_offsets_));
        for (size_t f = 0; f < assembly_.files.size(); ++f) copy(f, table);
        file.flush();
    }
    write_columns(file.group("generations"));
    file.group("acceptance")
        .set_attributes({{"accepted_per_step", summary_.accepted_per_step()},
                         {"emitted_per_step", summary_.emitted_per_step()},
                         {"accept_length", summary_.accept_length()}});
    write_provenance(file.create_group("provenance"), provenance);
    file.set_attribute(schema::kErrorsAttribute, summary_.errors);
    file.set_attribute(schema::kCompleteAttribute, int64_t{1});
    file.close();
    return summary_;
}

}  // namespace

int64_t find_row(const std::vector<RecordKey>& records, const RecordKey& key) {
    const auto found = std::lower_bound(records.begin(), records.end(), key);
    if (found == records.end() || *found != key) return -1;
    return found - records.begin();
}

ResultSummary assemble(const fs::path& out, const Assembly& assembly,
                       const h5::Attributes& provenance,
                       const std::function<void()>& before_commit) {
    fs::path whole = out;
    whole += ".tmp";
    try {
        const ResultSummary summary = Assembler(assembly).write(whole, provenance);
        seal_file(whole);
        if (before_commit) before_commit();
        rename_durably(whole, out);
        return summary;
    } catch (...) {
        std::error_code ignored;
        fs::remove(whole, ignored);
        throw;
    }
}

}  // namespace quadrille
