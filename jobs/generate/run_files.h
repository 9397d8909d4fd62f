// SPDX-License-Identifier: Apache-2.0
// What the leader of a group of ranks reads and writes for generate: prompts in, generations out in
// parts. The leader of group 0 leads the run (leader_files.h), the others join it (member_files.h;
// docs/design.md §5, §7).
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/h5/h5.h"
#include "io/results/group_writer.h"
#include "io/results/result_writer.h"
#include "io/text/tokenizer.h"
#include "jobs/common/provenance.h"
#include "jobs/generate/generate_options.h"
#include "jobs/generate/record_queue.h"
#include "jobs/generate/run_alarms.h"
#include "jobs/generate/start_figures.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "kernels/backend.h"
#include "runtime/log.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// What every rank must know and only the leader of the run can find out.
struct RunShape {
    int64_t records = 0;
    int64_t capacity = 0;        // tokens per slot
    int64_t known_tokens = 0;    // ids from here on are never chosen
    int64_t remaining = 0;       // records that no earlier start has done
    int64_t start = 0;           // of this run, counted from 0
    bool stop_text = false;      // some record has stop strings
    bool skipped = false;        // OUT holds the results of this run: nothing is to do
    int64_t errors = 0;          // records with an error in it, where it is skipped
    std::array<char, 17> run{};  // its name in parts, ended by a 0
};

// Seconds of a record from its admission to its first token and to its end.
struct Latency {
    float first = 0;
    float whole = 0;
};

class RunFiles {
  public:
    // All arguments outlive the files. `before_commit`: see PartWriter.
    struct Around {
        const GenerateOptions& options;
        const ModelConfig& config;
        const h5::Attributes& identity;  // model_identity
        const Backend& backend;
        int32_t k = 0;
        Log& log;
        std::function<void()> before_commit;
    };
    virtual ~RunFiles() = default;
    RunFiles(const RunFiles&) = delete;
    RunFiles& operator=(const RunFiles&) = delete;

    // What makes two runs the same, a field a line.
    std::string description() const;
    const std::vector<bool>& done() const { return done_; }  // by earlier starts, for each record
    // How many earlier starts ended by themselves while they ran a record (io/results/crash_log.h),
    // kGiveUp at most, for each record.
    const std::vector<char>& ends() const { return ends_; }
    // A record that ran at one such end, with others maybe, runs alone; at a second it is an error.
    static constexpr char kGiveUp = 2;
    std::vector<bool> alone() const;
    const Tokenizer* tokenizer() const { return tokenizer_.get(); }

    // Records with what earlier starts kept of them.
    std::vector<Prompt> read(const RecordQueue::Slice& slice) const;
    void add(std::vector<Generation> finished);
    void commit();
    // Records that are running, for the next start to go on with.
    void keep(std::vector<Generation> running);
    // What this group has done in this start so far; a failure is nobody's loss.
    void keep_figures(const StartFigures& figures) const noexcept;
    // One for each record that ran to its end here.
    const std::vector<Latency>& latencies() const { return latencies_; }
    // The process is about to die: keeps what can be kept, unless it dies of that.
    void save_what_is_there(bool may_commit);

    // The records of this group in this start; those of the run's leader also of earlier starts.
    const ResultSummary& totals() const { return totals_; }
    virtual int64_t computed() const = 0;  // records, in this start
    virtual GroupParts parts() const = 0;

  protected:
    // Opens the prompts.
    explicit RunFiles(const Around& around);
    // What follows from the shape of the run: its fingerprint, the limit of its prompts.
    void set_shape(const RunShape& shape);
    GenerationLayout layout() const;
    // By record; empty: no prompt has one.
    std::vector<std::string> kinds() const;
    // Once the run is claimed. `ends`: as the run's leader counts them; {}: as they are here.
    void take_up_earlier(std::vector<char> ends);

    Around around_;
    std::filesystem::path out_;  // links followed
    std::unique_ptr<Tokenizer> tokenizer_;
    std::optional<PromptFiles> prompt_files_;
    std::optional<RecordSource> source_;
    std::vector<std::vector<std::string>> kinds_;  // of each prompt file, by prompt
    h5::Attributes fingerprint_;
    std::vector<bool> done_;
    std::vector<char> ends_;
    std::map<RecordKey, Generation> kept_;
    std::map<RecordKey, std::vector<std::string>> crashes_;
    ResultSummary totals_;
    std::vector<Latency> latencies_;
    RunAlarms alarms_;
    std::filesystem::path figures_;  // file of this start's figures; empty: none
    bool saving_ = false;            // in a writer: an error that ends the job may come from there

  private:
    virtual bool has_writer() const = 0;
    virtual void write(Generation generation) = 0;
    virtual void write_running(std::vector<Generation> running) = 0;
    virtual void commit_part(bool only_if_old) = 0;
    std::string text_of(const Generation& generation) const;
    void give_up(Prompt& prompt) const;
};

// What an output of the run may not be: its prompt files, and its other output, "" for none.
std::vector<std::filesystem::path> other_files(const GenerateOptions& options,
                                               const std::string& other);

// The first field that `there` has otherwise than `here`, both as description() tells them.
std::string other_field(const std::string& here, const std::string& there);

}  // namespace quadrille
