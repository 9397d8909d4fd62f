// SPDX-License-Identifier: Apache-2.0
// What the records of generations files come to, read in slices.
#pragma once

#include "io/h5/schema.h"
#include "io/results/generation_reader.h"
#include "io/results/result_summary.h"
#include "jobs/files/run_view.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

struct GenerationTotals {
    ResultSummary sums;
    std::vector<int64_t> status = std::vector<int64_t>(schema::kStatusNames.size(), 0);
    std::vector<int64_t> finish = std::vector<int64_t>(schema::kFinishNames.size(), 0);
    int64_t violations = 0;  // records whose statistics disagree
    std::string first_violation;

    void add(const GenerationReader& reader);
    // The same for parts: each record once.
    void add(const GenerationReader& reader, FirstOnly& first_only);

  private:
    void add(const GenerationReader& reader, FirstOnly* first_only);
};

// Sums of a finished file, or of the parts of a run so far; several lines of JSON.
std::string generations_json(const RunView& view);
// The kind of a file of generations: schema::kPart, kScores or kGenerations.
std::string generations_kind(const std::filesystem::path& path);

}  // namespace quadrille
