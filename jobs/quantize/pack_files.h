// SPDX-License-Identifier: Apache-2.0
// PackFiles: the pack that is being made and the folder OUT.parts beside it. A task's matrices are
// a file there until all of a unit are done; then the unit's file is put together in OUT. A pack is
// complete once it has its config.json, which is written last.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "io/results/run_lock.h"
#include "jobs/quantize/pack_plan.h"
#include "kernels/quantize/quantize_matrix.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// What is told of a quantized matrix.
struct MatrixRecord {
    std::string module;
    std::string kind;  // name(WeightClass)
    int64_t n = 0;
    int64_t k = 0;
    int64_t bits = 0;
    int64_t rows = 0;      // calibration rows of its Hessian
    int64_t left_out = 0;  // rows that were not finite
    double proxy_error = 0;
    double relative_error = 0;  // squared error over squared weights
};

struct QuantizedTask {
    std::vector<QuantizedMatrix> matrices;
    std::vector<MatrixRecord> records;
};

class PackFiles {
  public:
    // `run`: what tells a run from another. `leads`: this rank makes the folders and holds the
    // lock. Error{usage}: OUT is complete, of another run, or not empty; Error{io}.
    PackFiles(const std::filesystem::path& out, nlohmann::json run, Locking locking);

    void open_as_leader(int64_t bytes_needed);
    // Error{io}: this rank does not see what the leader made.
    void open_as_member() const;

    // The finished file of a unit, or nullopt. A damaged one counts for nothing.
    std::optional<Checkpoint> finished(const PlannedUnit& unit) const;
    bool has_part(const PlannedTask& task) const;
    void commit(const PlannedTask& task, const QuantizedTask& result) const;
    // The unit's file of the source's tensors and the parts, which go.
    void assemble(const PlannedUnit& unit, const Checkpoint& source) const;
    // Index, other files of the source, config.json; the folder of parts goes.
    void finish(const PackPlan& plan, const Checkpoint& source,
                const nlohmann::ordered_json& config);

    const std::filesystem::path& out() const { return out_; }
    const nlohmann::json& run() const { return run_; }
    const std::filesystem::path& parts() const { return parts_; }  // goes with the pack's end

  private:
    std::filesystem::path part_file(const PlannedTask& task) const;
    void check_run() const;

    std::filesystem::path out_;
    std::filesystem::path parts_;
    nlohmann::json run_;
    Locking locking_;
    std::optional<RunLock> lock_;
};

nlohmann::json as_json(const MatrixRecord& record);

// What all files of a finished pack tell of their matrices, in their order.
std::vector<MatrixRecord> read_records(const Checkpoint& pack);

}  // namespace quadrille
