// SPDX-License-Identifier: Apache-2.0
// What each subcommand is asked to do: plain structs with the defaults of docs/design.md §9, and
// the parser that fills them. Parsing is a pure function of the arguments and of a few environment
// values, so that every rank can run it on rank 0's and come to the same result or error.
#pragma once

#include "drafter/dflash2/draft_plan.h"
#include "io/records.h"
#include "io/results/run_lock.h"
#include "runtime/accept.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace quadrille {

enum class OutputExists { fail, overwrite };

// Every count-th prompt, the index-th first.
struct Shard {
    int64_t index = 0;
    int64_t count = 1;
};

struct GenerateOptions {
    std::string target;                // checkpoint folder
    std::string draft = "none";        // drafter's folder
    int64_t k = -1;                    // drafts per step; -1: 2 with a drafter, else 0
    std::vector<std::string> prompts;  // prompts.h5 files, text lines or JSON lines
    std::vector<std::string> prompt_texts;
    std::string out;  // generations.h5

    RecordOptions record;     // defaults of the records; its own seed stays -1
    int64_t max_context = 0;  // tokens per record; 0: longest prompt + max_new_tokens
    uint64_t seed = 0;        // of the run
    int64_t samples = 1;      // generations of each prompt
    AcceptRule accept = AcceptRule::coupled;
    int64_t limit = 0;  // prompts to run, the first ones of all files; 0: all
    Shard shard;        // of those
    bool no_text = false;
    bool strict = false;         // a record error ends the job before it starts
    bool fail_on_error = false;  // exit 1 when a record has an error

    int64_t max_seqs = 16;
    int64_t max_batched_tokens = 7168;  // a multiple of 64
    int64_t tp = 0;                     // ranks that share one copy of the model; 0: all
    std::string backend = "auto";       // auto, cpu, cuda, check
    std::string comm = "auto";          // auto, mpi, nccl
    DraftPlacement draft_placement = DraftPlacement::sharded;
    bool eager = false;  // no CUDA graphs

    OutputExists output_exists = OutputExists::fail;
    int64_t max_time = 0;    // seconds the run may take, then it drains; 0: any
    int64_t grace = 20;      // seconds a drain may take
    int64_t watchdog = 300;  // seconds until a silent rank ends the job; 0: never
    std::string heartbeat;   // a JSON file with the progress; "": none
    Locking locking = Locking::required;
    bool dry_run = false;      // check everything, run nothing, write nothing
    std::string command_line;  // as given, for provenance
    std::string slurm_job;     // "" outside Slurm
};

struct BenchOptions {
    std::string target;                      // checkpoint folder
    std::string draft = "none";              // drafter's folder
    std::vector<int64_t> k;                  // drafts per step, a run each
    std::vector<int64_t> concurrency = {1};  // records at once, a run each
    std::string prompts;                     // as GenerateOptions; "": made-up tokens
    int64_t prompt_tokens = 128;             // of a made-up prompt
    int64_t new_tokens = 64;                 // of every record
    int64_t limit = 0;   // records; 0: the largest concurrency, or all of the file
    int64_t repeat = 1;  // runs of a configuration, of which the median is told

    int64_t max_batched_tokens = 7168;
    int64_t tp = 0;
    std::string backend = "auto";
    std::string comm = "auto";
    DraftPlacement draft_placement = DraftPlacement::sharded;
    bool eager = false;  // no CUDA graphs

    std::string json;  // report file; "": none
    std::string tsv;   // file that rows are appended to; "": none
};

struct InspectOptions {
    std::vector<std::string> paths;  // files of ours or checkpoint folders
    int64_t limit = 5;               // records shown of each file; 0: none
};

struct PackOptions {
    std::vector<std::string> inputs;  // text or JSON lines
    std::string out;                  // prompts.h5
    std::string target;               // checkpoint whose tokenizer is used where one is needed
    std::string format = "auto";      // auto (by suffix), text, jsonl
    int64_t limit = 0;                // 0: all
    OutputExists output_exists = OutputExists::fail;
};

struct UnpackOptions {
    std::vector<std::string> inputs;  // generations.h5 files
    std::string out = "-";            // JSON lines; "-": standard output
    std::string format = "jsonl";     // jsonl, openai (lines of a batch output file)
    std::string target;               // checkpoint whose tokenizer spells out log-probabilities
    int64_t limit = 0;                // 0: all
    OutputExists output_exists = OutputExists::fail;
};

// Help or version: text for standard output and the exit code.
struct ShowText {
    std::string text;
    int code = 0;
};

using Command = std::variant<ShowText, GenerateOptions, BenchOptions, InspectOptions, PackOptions,
                             UnpackOptions>;

struct Invocation {
    std::vector<std::string> arguments;    // without the program's name
    std::vector<std::string> environment;  // NAME=value of the names that fill options
};

// Reads argv and those environment variables that fill options (docs/design.md §9).
Invocation read_invocation(int argc, const char* const* argv);

// `offered`: subcommands to register. Throws Error{usage} that names the flag (or the environment
// variable), what was expected and what was found.
Command parse_command(const Invocation& invocation, std::span<const std::string_view> offered);

// The version of the program, and its commit ("" when it was not built from a repository).
std::string version();
std::string commit();

}  // namespace quadrille
