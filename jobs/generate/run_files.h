// SPDX-License-Identifier: Apache-2.0
// What the leader of a group of ranks reads and writes for generate: prompts in, generations out.
// The leader of group 0 leads the run: it settles what the run is and what of it is done, and makes
// the result of all groups' parts (docs/design.md §5, §7).
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "io/results/group_writer.h"
#include "io/results/result_writer.h"
#include "io/results/run_lock.h"
#include "io/text/tokenizer.h"
#include "jobs/common/provenance.h"
#include "jobs/generate/generate_options.h"
#include "jobs/generate/record_queue.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "kernels/backend.h"
#include "runtime/log.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// What every rank must know and only the leader of the run can find out.
struct RunShape {
    int64_t records = 0;
    int64_t capacity = 0;      // tokens per slot
    int64_t known_tokens = 0;  // ids from here on are never chosen
    int64_t remaining = 0;     // records that no earlier start has done
    bool stop_text = false;    // some record has stop strings
};

class RunFiles {
  public:
    struct Model {
        const ModelConfig& config;
        const Checkpoint& checkpoint;
        const Checkpoint* drafter = nullptr;
        const Backend& backend;
        int32_t k = 0;
    };
    // Opens the prompts. `before_commit`: see PartWriter. All arguments outlive this.
    RunFiles(const GenerateOptions& options, const Model& model, Log& log,
             std::function<void()> before_commit);

    // The leader of the run: checks and claims the output, takes up what earlier starts have done.
    // A dry run only checks.
    RunShape lead();
    // Leaders of other groups: which run it is; then, once the run is claimed, their own parts.
    void follow(const RunShape& shape);
    void join(int group, const std::vector<bool>& done);

    // What makes two runs the same, a field a line.
    std::string description() const;
    const std::vector<bool>& done() const { return done_; }  // by earlier starts, for each record
    const Tokenizer* tokenizer() const { return tokenizer_.get(); }

    std::vector<Prompt> read(const RecordQueue::Slice& slice) const {
        return source_->read(slice.first, slice.count);
    }
    void add(std::vector<Generation> finished);
    void commit();
    // The process is about to die: keeps what can be kept, unless it dies of that.
    void save_what_is_there(bool may_commit);

    // Sums of this group in this start, in the leader of the run also of earlier starts.
    const ResultSummary& totals() const { return totals_; }
    int64_t computed() const;  // records, in this start
    GroupParts parts() const;

    // The leader of the run.
    const ResultSummary& resumed() const { return writer_->resumed(); }
    void add_group(const GroupParts& parts, int64_t computed);
    ResultSummary finish(RunFacts facts);  // no record is left

  private:
    RunShape settle_shape();
    void set_fingerprint(const RunShape& shape);
    GenerationLayout layout() const;
    std::string text_of(const Generation& generation) const;

    const GenerateOptions& options_;
    Model model_;
    Log& log_;
    std::function<void()> before_commit_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::optional<PromptFiles> prompt_files_;
    std::optional<RecordSource> source_;
    h5::Attributes fingerprint_;
    std::vector<bool> done_;
    std::optional<ResultWriter> writer_;  // of the run's leader
    std::optional<RunLock> lock_;         // of the others
    std::optional<GroupWriter> member_;
    ResultSummary totals_;
    bool saving_ = false;  // in a writer: an error that ends the job may come from there
};

// The first field that `there` has otherwise than `here`, both as description() tells them.
std::string other_field(const std::string& here, const std::string& there);

}  // namespace quadrille
