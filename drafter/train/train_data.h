// SPDX-License-Identifier: Apache-2.0
// Batches of a capture to train a drafter on. What a batch holds depends on seed and place alone,
// never on what was drawn before: a run that goes on, or has more ranks, draws the same.
#pragma once

#include "drafter/train/draft_loss.h"
#include "io/capture/capture_reader.h"
#include "io/checkpoint/model_config.h"
#include "kernels/train_ops.h"

#include <cstdint>
#include <vector>

namespace quadrille {

enum class TapNoise : uint8_t { none, gaussian, uniform };

struct DataOptions {
    int64_t sequences = 2;     // of a part
    int64_t anchors = 16;      // of a sequence, at most
    int64_t length = 3072;     // rows of a sequence; a longer one gives a drawn window
    double validation = 0.05;  // share of the sequences that is held back
    TapNoise noise = TapNoise::none;
    double noise_size = 0.05;  // gaussian: of the RMS of a row; uniform: largest value
    bool shuffle = false;      // taps of rows of other sequences: a check, nothing can be learned
    uint64_t seed = 0;
};

// Sequences with their draft blocks, on the host.
struct TrainBatch {
    std::vector<TrainSequence> sequences;
    std::vector<float> taps;    // (context rows, taps * hidden)
    std::vector<float> hidden;  // (slots, hidden): the target's final row before each slot's token
    std::vector<int32_t> context_positions, block_positions, block_tokens, anchors;
    SlotLabels labels;

    int64_t context() const { return std::ssize(context_positions); }
    int64_t blocks() const { return std::ssize(anchors); }
};

class TrainData {
  public:
    // `reader` outlives this. Error{input}: fewer than two sequences with room for a block behind a
    // generated token.
    TrainData(const CaptureReader& reader, const DraftConfig& config, const DataOptions& options);

    int64_t training() const { return std::ssize(training_); }
    int64_t validation() const { return std::ssize(held_back_); }
    const std::vector<int64_t>& training_sequences() const { return training_; }
    const std::vector<int64_t>& held_back() const { return held_back_; }  // ascending
    // Rows of the largest batch.
    int64_t context_limit() const { return context_limit_; }
    int64_t block_limit() const { return options_.sequences * options_.anchors; }

    // The part-th batch since the beginning: sequences in a new order each epoch.
    TrainBatch draw(int64_t part) const;
    // Batches of those held back; always the same anchors, without noise.
    int64_t validation_batches() const;
    TrainBatch validation_batch(int64_t index) const;
    // Tokens of a sequence at which a block can begin, ascending: generated ones, as in serving.
    std::vector<int64_t> anchors_of(int64_t sequence) const {
        return anchors_of(sequence, 0, reader_.length(sequence));
    }
    // Blocks at some of them, neighbours, with as much context as batches have; without noise.
    TrainBatch batch_at(int64_t sequence, const std::vector<int64_t>& anchors) const;

  private:
    int64_t sequence_of(int64_t place) const;
    void add(TrainBatch& batch, int64_t sequence, uint64_t key, bool noisy) const;
    void append(TrainBatch& batch, int64_t sequence, int64_t first, int64_t count,
                const std::vector<int64_t>& anchors, uint64_t key) const;
    void add_blocks(TrainBatch& batch, const CaptureRows& rows, int64_t sequence, int64_t first,
                    const std::vector<int64_t>& anchors) const;
    std::vector<int64_t> anchors_of(int64_t sequence, int64_t first, int64_t end) const;
    std::vector<uint16_t> strange_taps(int64_t sequence, int64_t count, uint64_t key) const;
    void disturb(float* taps, int64_t rows, uint64_t key) const;

    const CaptureReader& reader_;
    DraftConfig config_;
    DataOptions options_;
    std::vector<int64_t> training_, held_back_;
    int64_t context_limit_ = 0;
};

}  // namespace quadrille
