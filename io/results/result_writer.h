// SPDX-License-Identifier: Apache-2.0
// generations.h5 from first to last: claims the name before anything is computed, takes up the
// parts of earlier starts of the same run, commits finished records in parts, assembles the parts
// in input order and renames the whole into place. What is under OUT is therefore always complete.
// Memory: an index of the records and one part.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"
#include "io/results/assembly.h"
#include "io/results/generation_table.h"
#include "io/results/group_writer.h"
#include "io/results/result_files.h"
#include "io/results/run_folder.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

struct ResultOptions {
    std::filesystem::path out;
    bool overwrite = false;  // replace a generations file (nothing else is ever replaced)
    // `id` is set by the writer, as are `origin` and `sources` unless the caller has set them.
    GenerationLayout layout;
    std::vector<RecordKey> records;  // those of the run, ascending: the rows of the file
    std::vector<const Ids*> ids;     // of each prompt file, by prompt_index; outlive the writer
    std::vector<bool> completions;   // by row: asked for as a completion of OpenAI's; {}: none is
    std::vector<std::string> kinds;  // by row, of the prompts; {}: none has one
    h5::Attributes fingerprint;      // what makes two runs the same run: run.h5
    Locking locking = Locking::required;
    // Called before a part or the result gets its name; throws where that must not happen.
    std::function<void()> before_commit;
};

// Keys of `count` records of one prompt file, one sample each.
std::vector<RecordKey> first_records(int64_t count);

class ResultWriter {
  public:
    // Errors: check_output, RunFolder; Error{input} for a part of a newer format. A part that is
    // damaged or of another run is set aside, which `notices` says: its records are not done.
    explicit ResultWriter(ResultOptions options);
    ResultWriter(const ResultWriter&) = delete;
    ResultWriter& operator=(const ResultWriter&) = delete;

    const std::vector<std::string>& notices() const { return notices_; }
    const std::string& run() const { return folder_->run(); }  // its name in parts
    const ResultSummary& resumed() const { return resumed_; }  // done by earlier starts
    int64_t restarts() const { return folder_->restarts(); }
    // Records computed by all starts; more than there are where some were lost.
    int64_t computed() const { return folder_->computed(); }
    int64_t remaining() const { return remaining_; }  // records not done
    // Both count this start and this group only.
    int64_t computed_now() const { return own_->computed(); }
    GroupParts parts() const { return own_->parts(); }

    // See GroupWriter.
    void keep(std::vector<Generation> running) { own_->keep(std::move(running)); }

    const GenerationLayout& layout() const { return options_.layout; }
    // A finished record, in any order, each once. Error{internal} where its statistics disagree.
    void add(Generation generation);
    void commit_if_old() { own_->commit_if_old(); }  // call now and then
    void commit() { own_->commit(); }
    bool is_done(const RecordKey& key) const { return done_[row_of(key)]; }
    const std::vector<bool>& done() const { return done_; }  // by row, those of other groups apart
    // What another group of ranks has done in this start, all of it committed.
    void add_group(const GroupParts& parts, int64_t computed);

    // Every record must be done. Writes OUT.tmp from the parts, renames it to OUT, removes
    // OUT.parts (what was set aside stays).
    ResultSummary finish(const h5::Attributes& provenance);

  private:
    size_t row_of(const RecordKey& key) const;  // Error{internal} for a record not of the run
    void take_up_parts();
    void take_up(const std::filesystem::path& path);
    std::vector<std::filesystem::path> all_parts() const;

    ResultOptions options_;
    std::optional<RunFolder> folder_;
    std::optional<GroupWriter> own_;  // as group 0
    std::vector<GroupParts> groups_;  // the others, once they are through
    std::vector<bool> done_;          // by row
    int64_t remaining_ = 0;
    ResultSummary resumed_;
    std::vector<std::string> notices_;
    bool finished_ = false;
};

}  // namespace quadrille
