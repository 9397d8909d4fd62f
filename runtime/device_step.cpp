// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_step.h"

#include "kernels/error.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace quadrille {

namespace {

constexpr int64_t kInt = sizeof(int32_t);

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

int32_t step_bucket(int32_t sequences, int32_t slots) {
    require(sequences >= 1 && sequences <= slots, "a step of 1 to `slots` records");
    int32_t bucket = 1;
    while (bucket < sequences) {
        // 1, then 2 3, 4 6, 8 12, ...: a power of two and half as much again.
        const bool power = (bucket & (bucket - 1)) == 0;
        bucket = bucket == 1 ? 2 : power ? bucket + bucket / 2 : bucket + bucket / 3;
    }
    return std::min(bucket, slots);
}

// Verify has one sequence more than records: padding rows belong to it where the bucket is full.
struct DeviceStep::Layout {
    int64_t draws = 0;                                       // (rows) SampleRow, target
    int64_t draft_draws = 0;                                 // (sequences) SampleRow
    int64_t row_sequence = 0, logit_rows = 0;                // (rows)
    int64_t slot = 0, position = 0, pending = 0, begin = 0;  // (sequences + 1), begin one more
    int64_t anchor = 0;                                      // (sequences)
    int64_t draft_tokens = 0, draft_row_sequence = 0;        // (sequences * block)
    int64_t draft_begin = 0, draft_pending = 0;              // (sequences), begin one more
    int64_t predict = 0;                                     // (sequences * k)
    int64_t bytes = 0;
    int32_t rows = 0;
};

DeviceStep::Layout DeviceStep::layout_of(const Shape& shape) const {
    Layout layout;
    const int64_t sequences = shape.sequences;
    layout.rows = shape.sequences * (shape.k + 1);
    const auto take = [&layout](int64_t count, int64_t size) {
        return std::exchange(layout.bytes, layout.bytes + count * size);
    };
    layout.draws = take(layout.rows, sizeof(SampleRow));
    layout.draft_draws = take(sequences, sizeof(SampleRow));
    layout.row_sequence = take(layout.rows, kInt);
    layout.logit_rows = take(layout.rows, kInt);
    layout.slot = take(sequences + 1, kInt);
    layout.position = take(sequences + 1, kInt);
    layout.pending = take(sequences + 1, kInt);
    layout.begin = take(sequences + 2, kInt);
    layout.anchor = take(sequences, kInt);
    layout.draft_tokens = take(sequences * block_, kInt);
    layout.draft_row_sequence = take(sequences * block_, kInt);
    layout.draft_begin = take(sequences + 1, kInt);
    layout.draft_pending = take(sequences, kInt);
    layout.predict = take(sequences * shape.k, kInt);
    return layout;
}

DeviceStep::DeviceStep(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
                       Drafter* drafter, const DeviceStepOptions& options)
    : backend_(backend),
      comm_(comm),
      position_(position),
      model_(model),
      drafter_(drafter),
      options_(options),
      first_id_(static_cast<int32_t>(model.plan().vocab.begin)),
      valid_(known_ids(model.plan().vocab, options.known_tokens)),
      block_(drafter == nullptr ? 0 : drafter->backend_block()),
      max_rows_(int64_t{model.limits().slots} * (options.max_k + 1)),
      best_(backend, comm, model.plan().vocab, options.known_tokens, max_rows_, 1) {
    require(drafter == nullptr || block_ > options.max_k, "a drafter that needs no host");
    require(!options.recorded || (backend.records() && comm.recordable()),
            "a backend and a communicator that can be recorded");
    const int64_t bytes = layout_of({model.limits().slots, options.max_k, true}).bytes;
    inputs_ = Buffer(backend, bytes);
    tokens_ = Array<int32_t>(backend, 1, max_rows_);
    targets_ = Array<int32_t>(backend, 1, max_rows_);
    write_ = Array<uint8_t>(backend, 1, (max_rows_ + 3) / 4 * 4);
    constexpr int64_t kChoice = sizeof(double) + sizeof(int32_t) + sizeof(float);
    own_ = Buffer(backend, max_rows_ * kChoice);
    all_ = Buffer(backend, max_rows_ * kChoice * comm.size());
    staged_ = backend.allocate_host(bytes);
    results_ = static_cast<int32_t*>(backend.allocate_host(2 * max_rows_ * kInt));
}

DeviceStep::~DeviceStep() {
    shapes_.clear();
    backend_.release_host(staged_);
    backend_.release_host(results_);
}

template <class T>
T* DeviceStep::staged(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(staged_) + offset);
}
template <class T>
const T* DeviceStep::input(int64_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(inputs_.data()) + offset);
}

// ---- inputs -------------------------------------------------------------------------------------

void DeviceStep::stage(const Layout& layout, const Shape& shape,
                       std::span<const StepRecord> records) {
    stage_verify(layout, shape, records);
    if (shape.k > 0) stage_draft(layout, shape, records);
}

void DeviceStep::stage_verify(const Layout& layout, const Shape& shape,
                              std::span<const StepRecord> records) {
    auto* const draws = staged<SampleRow>(layout.draws);
    auto* const row_sequence = staged<int32_t>(layout.row_sequence);
    auto* const slot = staged<int32_t>(layout.slot);
    auto* const begin = staged<int32_t>(layout.begin);
    std::iota(staged<int32_t>(layout.logit_rows), staged<int32_t>(layout.logit_rows) + layout.rows,
              0);
    int32_t row = 0;
    const auto count = static_cast<int32_t>(records.size());
    for (int32_t i = 0; i <= shape.sequences; ++i) {
        begin[i] = row;
        const bool real = i < count;
        const StepRecord record = real ? records[static_cast<size_t>(i)] : StepRecord();
        slot[i] = real ? record.slot : -1;
        staged<int32_t>(layout.position)[i] = record.position;
        staged<int32_t>(layout.pending)[i] = record.pending;
        if (i < shape.sequences) staged<int32_t>(layout.anchor)[i] = real ? record.anchor : -1;
        // The first sequence of padding has all rows that are left.
        const int32_t end = real ? row + 1 + record.drafts : layout.rows;
        require(end <= layout.rows, "a step's blocks within its bucket");
        for (int32_t place = 0; row < end; ++row, ++place) {
            row_sequence[row] = i;
            draws[row] = record.draw;
            draws[row].position += place;
            draws[row].row = row;
        }
    }
    begin[shape.sequences + 1] = row;
    rows_ = begin[count];
}

void DeviceStep::stage_draft(const Layout& layout, const Shape& shape,
                             std::span<const StepRecord> records) {
    auto* const tokens = staged<int32_t>(layout.draft_tokens);
    auto* const row_sequence = staged<int32_t>(layout.draft_row_sequence);
    auto* predict = staged<int32_t>(layout.predict);
    for (int32_t i = 0; i < shape.sequences; ++i) {
        const bool real = i < static_cast<int32_t>(records.size());
        staged<SampleRow>(layout.draft_draws)[i] =
            real ? records[static_cast<size_t>(i)].draw : SampleRow();
        staged<int32_t>(layout.draft_begin)[i] = i * block_;
        staged<int32_t>(layout.draft_pending)[i] = 0;
        const int32_t mask = real ? drafter_->mask_token() : -1;
        std::fill_n(tokens + i * block_, block_, mask);
        if (real) tokens[i * block_] = records[static_cast<size_t>(i)].anchor;
        std::fill_n(row_sequence + i * block_, block_, i);
        for (int32_t place = 1; place <= shape.k; ++place) *predict++ = i * block_ + place;
    }
    staged<int32_t>(layout.draft_begin)[shape.sequences] = shape.sequences * block_;
}

// ---- the work -----------------------------------------------------------------------------------

View<const int32_t> DeviceStep::draft(const Layout& layout, const Shape& shape) {
    DraftPass pass;
    pass.rows.m = shape.sequences * block_;
    pass.rows.sequences = shape.sequences;
    pass.rows.begin = input<int32_t>(layout.draft_begin);
    pass.rows.slot = input<int32_t>(layout.slot);
    pass.rows.position = input<int32_t>(layout.position);
    pass.rows.pending = input<int32_t>(layout.draft_pending);
    pass.rows.row_sequence = input<int32_t>(layout.draft_row_sequence);
    pass.tokens = input<int32_t>(layout.draft_tokens);
    pass.predict = input<int32_t>(layout.predict);
    pass.anchor = input<int32_t>(layout.anchor);
    if (shape.drawn) pass.draws = input<SampleRow>(layout.draft_draws);
    return drafter_->propose_on_backend(shape.k, pass);
}

// targets_: of each row the best over all ranks.
void DeviceStep::choose(const Layout& layout, const Shape& shape, View<const float> logits) {
    const int32_t m = layout.rows;
    if (!shape.drawn) {
        best_.find({static_cast<float*>(own_.data()), m, 1}, {targets_.data(), m, 1}, logits);
        return;
    }
    const bool alone = comm_.size() == 1;
    auto* const scores = static_cast<double*>(own_.data());
    auto* const ids = reinterpret_cast<int32_t*>(scores + m);
    auto* const raw = reinterpret_cast<float*>(ids + m);
    const SampleInput in{logits, input<SampleRow>(layout.draws), m, first_id_, valid_};
    if (shape.filtered) return backend_.sample_filtered(targets_.data(), in);
    backend_.sample(scores, alone ? targets_.data() : ids, raw, in, {nullptr, m, 0});
    if (alone) return;
    const int64_t bytes = 16 * int64_t{m};
    comm_.all_gather(all_.data(), own_.data(), bytes);
    const auto* const all = static_cast<const double*>(all_.data());
    backend_.merge_samples(targets_.data(), all, reinterpret_cast<const int32_t*>(all + m), m,
                           comm_.size(), bytes);
}

void DeviceStep::issue(const Layout& layout, const Shape& shape) {
    backend_.upload(inputs_.data(), staged_, layout.bytes);
    const View<const int32_t> path =
        shape.k > 0 ? draft(layout, shape) : View<const int32_t>(nullptr, shape.sequences, 0);
    PassInputs pass;
    pass.rows.m = layout.rows;
    pass.rows.sequences = shape.sequences + 1;
    pass.rows.begin = input<int32_t>(layout.begin);
    pass.rows.slot = input<int32_t>(layout.slot);
    pass.rows.position = input<int32_t>(layout.position);
    pass.rows.pending = input<int32_t>(layout.pending);
    pass.rows.row_sequence = input<int32_t>(layout.row_sequence);
    pass.tokens = tokens_.data();
    pass.logit_rows = input<int32_t>(layout.logit_rows);
    pass.logit_count = layout.rows;
    backend_.block_tokens(tokens_.data(), input<int32_t>(layout.anchor), path, pass.rows);
    const View<const float> logits = model_.forward(pass);
    position_.op("sample");
    choose(layout, shape, logits);
    if (drafter_ != nullptr) {
        position_.op("draft context");
        backend_.mark_accepted(write_.data(), tokens_.data(), targets_.data(), pass.rows);
        drafter_->append_on_backend(model_.taps(), write_.data(), pass.rows);
    }
    backend_.fetch(results_, targets_.data(), layout.rows * kInt);
    if (shape.k > 0) {
        backend_.fetch(results_ + layout.rows, path.data,
                       int64_t{shape.sequences} * shape.k * kInt);
    }
}

void DeviceStep::run(std::span<const StepRecord> records, int32_t k) {
    require(k >= 0 && k <= options_.max_k, "K within its limit");
    const bool drawn = std::any_of(records.begin(), records.end(), [](const StepRecord& record) {
        return record.draw.inverse_temperature != 0.0;
    });
    const bool filtered = std::any_of(records.begin(), records.end(), [](const StepRecord& record) {
        return is_filtered(record.draw);
    });
    require(!filtered || comm_.size() == 1, "filtered draws of a step on one rank");
    const Shape shape{step_bucket(static_cast<int32_t>(records.size()), model_.limits().slots), k,
                      drawn, filtered};
    const Layout layout = layout_of(shape);
    stage(layout, shape, records);
    Shaped& shaped = shapes_[shape];
    if (shaped.has_run && options_.recorded) {
        if (!shaped.recording) {
            shaped.recording = backend_.record([this, layout, shape] { issue(layout, shape); });
            pause();  // recording is no part of a step
        }
        position_.op("recorded step");
        shaped.recording->replay();
        ++replays_;
    } else {
        issue(layout, shape);
        pause();
    }
    if (last_end_ > 0) {
        gap_seconds_ += now() - last_end_;
        ++gaps_;
    }
    backend_.synchronize();
    last_end_ = now();
    shaped.has_run = true;
    drafts_begin_ = layout.rows;
    drafts_ = std::ssize(records) * k;
}

void DeviceStep::clear_counts() {
    pause();
    replays_ = gaps_ = 0;
    gap_seconds_ = 0;
}

std::span<const int32_t> DeviceStep::targets() const {
    return {results_, static_cast<size_t>(rows_)};
}
std::span<const int32_t> DeviceStep::drafts() const {
    return {results_ + drafts_begin_, static_cast<size_t>(drafts_)};
}

}  // namespace quadrille
