// SPDX-License-Identifier: Apache-2.0
// One generations file of several files that hold its records: the parts of a run, or the results
// of a prompts file's shards. Memory: an index of the records and one slice of a file.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"
#include "io/results/generation_table.h"
#include "io/results/result_summary.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace quadrille {

struct Assembly {
    GenerationLayout layout;
    std::vector<RecordKey> records;  // ascending: the rows of the file
    std::vector<bool> completions;   // by row, beside what the files say of it; {}: none
    std::vector<std::string> kinds;  // the same
    std::string place;               // of the files, for messages
    std::vector<std::filesystem::path> files;
    std::string kind;  // of the files: schema::kPart or schema::kGenerations
};

// Writes OUT.tmp, seals it, calls `before_commit` (may be empty) and renames it to OUT. Of a record
// in two files the first counts. Error{input}: a file of another layout; Error{internal}: one with
// a record that is not among them; Error{io}: no file holds a record.
ResultSummary assemble(const std::filesystem::path& out, const Assembly& assembly,
                       const h5::Attributes& provenance,
                       const std::function<void()>& before_commit);

// The place of a key among ascending ones, or -1.
int64_t find_row(const std::vector<RecordKey>& records, const RecordKey& key);

}  // namespace quadrille
