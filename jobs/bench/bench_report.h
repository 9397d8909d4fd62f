// SPDX-License-Identifier: Apache-2.0
// What a bench measured, and how it is told: a table, rows of docs/results.tsv, JSON. Nothing here
// measures.
#pragma once

#include "io/records.h"
#include "runtime/engine.h"
#include "runtime/model/work_bound.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// One configuration: the median of its repeats by decode time.
struct BenchRun {
    int64_t k = 0;
    int64_t concurrency = 1;
    EngineStats stats;
    int64_t prefill_passes = 0;
    double prefill_collectives = 0;  // seconds in collectives
    double decode_collectives = 0;   // seconds in collectives
    int64_t decode_emitted = 0;      // tokens of the decode passes
    int64_t draft_steps = 0;         // verify steps of all records
    int64_t accepted = 0;            // drafts
    double spread = 0;               // (slowest - fastest) / median of the repeats' decode time

    // The floor of one decode pass (means over the passes), without collectives.
    std::map<WorkKind, WorkSum> work;
    std::map<WorkKind, double> floors;          // seconds
    std::map<WorkKind, double> prefill_floors;  // seconds of all prefill passes
    double decode_floor = 0;                    // seconds; 0: not known
    double prefill_floor = 0;                   // seconds of all prefill passes
    // The same collectives when no rank waits for another's work.
    double collective_floor = 0;               // seconds of one decode pass
    double prefill_collective_floor = 0;       // seconds of all prefill passes
    std::vector<std::vector<int32_t>> tokens;  // of every record

    double prefill_rate() const;  // tokens/s
    double decode_rate() const;   // tokens/s
    double step_seconds() const;
    double accept_length() const;    // 1 + accepted drafts a step; NaN without steps
    double decode_fraction() const;  // floor of ops and collectives / step; NaN: not known
    double prefill_fraction() const;
    std::string digest() const;  // of all tokens
};

struct BenchReport {
    std::string date;     // UTC, ISO 8601
    std::string version;  // and commit
    std::string hardware;
    std::string target;  // folder's name
    std::string draft;   // folder's name or none
    std::string backend;
    std::string comm;
    bool eager = false;  // no CUDA graphs asked for
    int64_t ranks = 1;
    int64_t records = 0;
    std::string prompts;        // "128 tokens, made up" or a file's name
    std::string draws;          // as draws_text() tells it
    int64_t prompt_tokens = 0;  // of all records
    int64_t new_tokens = 0;     // of a record
    int64_t repeat = 1;
    MachineRates rates;
    std::vector<BenchRun> runs;
};

// "" where all runs wrote the same tokens, else the first difference: which run, record and token.
std::string first_difference(std::span<const BenchRun> runs);

// "greedy", or the options that draws have: "temperature 1, top_p 0.95".
std::string draws_text(const RecordOptions& options);

std::string bench_table(const BenchReport& report);
std::string bench_json(const BenchReport& report);
// Rows of docs/results.tsv, each ended by a line feed.
std::string bench_rows(const BenchReport& report);

}  // namespace quadrille
