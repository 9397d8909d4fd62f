// SPDX-License-Identifier: Apache-2.0
// DeviceStep: a whole decode step (draft, verify, choice, acceptance, draft context) as one
// sequence of work on the backend: one upload before it, one small download behind it, nothing
// between that the host must know. A step is padded to a bucket, so that few shapes occur; a
// backend that can records each shape once and replays it (a CUDA graph). What a record computes
// is the same in any bucket, recorded or not.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/drafter.h"
#include "runtime/model/shard.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"
#include "runtime/sampling/best_over_ranks.h"

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace quadrille {

// Sequences that a step of `sequences` is padded to, at most `slots`: 1, 2, 3, 4, 6, 8, 12, 16, ...
int32_t step_bucket(int32_t sequences, int32_t slots);

// One record of a step.
struct StepRecord {
    int32_t slot = 0;
    int32_t position = 0;  // as Rows
    int32_t pending = 0;
    int32_t anchor = 0;  // its last token
    int32_t drafts = 0;  // of the K drafts, those to verify
    // A coupled draw without penalty, of the token behind the anchor; the others follow. With
    // filters on one rank only.
    SampleRow draw{};
};

struct DeviceStepOptions {
    int64_t known_tokens = 0;  // ids from here on are never chosen
    int32_t max_k = 0;
    bool recorded = false;  // needs Backend::records() and Communicator::recordable()
};

class DeviceStep {
  public:
    // `drafter` may be nullptr (K = 0), else it has a backend_block(). All outlive this.
    DeviceStep(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
               Drafter* drafter, const DeviceStepOptions& options);
    ~DeviceStep();
    DeviceStep(const DeviceStep&) = delete;
    DeviceStep& operator=(const DeviceStep&) = delete;

    // One step of 1 to `slots` records. Collective; the shape is the same on every rank. Every
    // shape runs unrecorded first, is recorded when it comes again, and replayed from then on.
    void run(std::span<const StepRecord> records, int32_t k);
    // The last step's, on the host: drafts (records, k), -1: none; the target's own tokens, 1 +
    // drafts of each record, -1 where no logit is a number.
    std::span<const int32_t> drafts() const;
    std::span<const int32_t> targets() const;

    int64_t replays() const { return replays_; }
    // Seconds from the results of one run() to the work of the next at the backend, summed: what a
    // GPU waits for. pause(): the next run() does not follow the last one.
    double gap_seconds() const { return gap_seconds_; }
    int64_t gaps() const { return gaps_; }
    void pause() { last_end_ = 0; }
    // replays() and the gaps count from zero again.
    void clear_counts();

  private:
    struct Shape {
        int32_t sequences = 0;
        int32_t k = 0;
        bool drawn = false;     // some record has a temperature
        bool filtered = false;  // and filters
        friend auto operator<=>(const Shape&, const Shape&) = default;
    };
    // Byte offsets in the block of inputs.
    struct Layout;
    struct Shaped {
        bool has_run = false;
        std::unique_ptr<Recording> recording;
    };

    Layout layout_of(const Shape& shape) const;
    void stage(const Layout& layout, const Shape& shape, std::span<const StepRecord> records);
    void stage_verify(const Layout& layout, const Shape& shape,
                      std::span<const StepRecord> records);
    void stage_draft(const Layout& layout, const Shape& shape, std::span<const StepRecord> records);
    void issue(const Layout& layout, const Shape& shape);
    View<const int32_t> draft(const Layout& layout, const Shape& shape);
    void choose(const Layout& layout, const Shape& shape, View<const float> logits);
    template <class T>
    T* staged(int64_t offset) const;
    template <class T>
    const T* input(int64_t offset) const;

    Backend& backend_;
    Communicator& comm_;
    Position& position_;
    TargetModel& model_;
    Drafter* drafter_;
    DeviceStepOptions options_;
    int32_t first_id_;
    int32_t valid_;
    int32_t block_;     // of the drafter; 0: none
    int64_t max_rows_;  // verified at most
    BestOverRanks best_;
    Buffer inputs_;
    void* staged_ = nullptr;
    Array<int32_t> tokens_, targets_;
    Array<uint8_t> write_;
    Buffer own_, all_;            // choices of this rank's part of the vocabulary, of all ranks
    int32_t* results_ = nullptr;  // host: targets, padding included, then drafts
    int64_t rows_ = 0;            // of the last step, without padding
    int64_t drafts_begin_ = 0;
    int64_t drafts_ = 0;
    std::map<Shape, Shaped> shapes_;
    int64_t replays_ = 0;
    double gap_seconds_ = 0;
    int64_t gaps_ = 0;
    double last_end_ = 0;  // steady clock, seconds; 0: none
};

}  // namespace quadrille
