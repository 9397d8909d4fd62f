// SPDX-License-Identifier: Apache-2.0
// What generate is asked to do: options with the defaults of docs/design.md §9, and their flags.
#pragma once

#include "io/results/run_lock.h"
#include "jobs/options/job.h"
#include "jobs/options/model_options.h"
#include "jobs/options/option_values.h"
#include "jobs/prompts/prompt_source_options.h"
#include "runtime/accept.h"

#include <cstdint>
#include <string>

namespace quadrille {

inline constexpr int64_t kMostSlots = 256;  // that are taken unasked

struct GenerateOptions : ModelOptions, PromptSourceOptions {
    int64_t k = -1;   // drafts per step; -1: 2 with a drafter, else 0
    std::string out;  // generations.h5

    int64_t max_context = 0;  // tokens per record; 0: longest prompt + max_new_tokens
    uint64_t seed = 0;        // of the run
    AcceptRule accept = AcceptRule::coupled;
    bool no_text = false;
    bool strict = false;         // a record error ends the job before it starts
    bool fail_on_error = false;  // exit kRecordErrors when a record has an error

    int64_t max_seqs = 0;  // records at once; 0: as many as fit, up to kMostSlots
    OutputExists output_exists = OutputExists::fail;
    int64_t max_time = 0;     // seconds the run may take, then it drains; 0: any
    int64_t grace = 20;       // seconds a drain may take
    int64_t watchdog = 300;   // seconds until a silent rank ends the job; 0: never
    std::string save_hidden;  // capture.h5 of what was generated; "": none
    std::string heartbeat;    // a JSON file with the progress; "": none
    std::string tsv;          // file that rows of measurements are appended to; "": none
    Locking locking = Locking::required;
    bool verify_weights = false;  // read and check all of both models first
    bool dry_run = false;         // check everything, run nothing, write nothing
    std::string command_line;     // as given, for provenance
    std::string slurm_job;        // "" outside Slurm
};

void add_flags(CLI::App& app, GenerateOptions& options);
void finish(GenerateOptions& options, const Invocation& invocation);
// The same without what only a run needs: prompts and an output.
void finish_planned(GenerateOptions& options, const Invocation& invocation);
// Records at once, at most; `records` 0: how many there are is not known.
int64_t most_slots(const GenerateOptions& options, int64_t records);
// True: draws need more of a row than its best token.
bool draws_filtered(const GenerateOptions& options);

}  // namespace quadrille
