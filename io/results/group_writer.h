// SPDX-License-Identifier: Apache-2.0
// What one group of ranks writes while a run lasts: its finished records, in parts of its own, and
// the count of them in its lock. The group that leads the run has a ResultWriter around it.
#pragma once

#include "io/records.h"
#include "io/results/generation_table.h"
#include "io/results/result_files.h"
#include "io/results/run_lock.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace quadrille {

// The kind of the ids in a result of several prompt files.
IdKind common_kind(const std::vector<const Ids*>& ids);

// Parts that a group has committed in this start: numbers from `first` up to, not including, `end`.
struct GroupParts {
    int group = 0;
    int64_t first = 0;
    int64_t end = 0;
};

class GroupWriter {
  public:
    struct Options {
        std::filesystem::path folder;  // OUT.parts
        int group = 0;
        GenerationLayout layout;      // `id` is that of the ids
        std::string run;              // run_name of the fingerprint
        std::vector<const Ids*> ids;  // of each prompt file, by prompt_index; outlive the writer
        std::function<void()> before_commit;  // see PartWriter
    };
    // `lock`: of this group; outlives the writer.
    GroupWriter(Options options, RunLock& lock);

    // A finished record, in any order. Error{internal} where its statistics disagree.
    void add(Generation generation);
    void commit_if_old() { part_.commit_if_old(); }  // call now and then
    void commit() { part_.commit(); }
    // Records that are running, as far as they have come: in place of those this start kept before.
    // Nothing where there are none.
    void keep(std::vector<Generation> running);

    GroupParts parts() const { return {options_.group, part_.first_part(), part_.next_part()}; }
    int64_t computed() const { return lock_.computed_now(); }  // records, by this start

  private:
    RecordId id_of(const RecordKey& key) const;

    Options options_;
    RunLock& lock_;
    PartWriter part_;
    std::filesystem::path partial_;  // of this start; empty: not yet named
};

// What starts of the run have kept of records, the longest of each. A file that is damaged or of
// another run counts for nothing: its records begin again.
std::map<RecordKey, Generation> read_kept(const std::filesystem::path& folder,
                                          const std::string& run);

}  // namespace quadrille
