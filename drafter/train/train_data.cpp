// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/train_data.h"

#include "kernels/dtype.h"
#include "kernels/error.h"
#include "kernels/noise.h"
#include "kernels/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace quadrille {
namespace {

enum class Draw : uint32_t { order = 16, window, anchors, noise, split, shuffle };

uint64_t bits_of(uint64_t seed, Draw draw, uint64_t key, uint64_t index) {
    const Words4 words =
        philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                    static_cast<uint32_t>(key), static_cast<uint32_t>(draw)},
                   seed ^ (key >> 32) << 32);
    return uint64_t{words.x} << 32 | words.y;
}

template <class V>
void shuffle(std::vector<V>& values, uint64_t seed, Draw draw, uint64_t key) {
    for (size_t i = values.size(); i > 1; --i) {
        std::swap(values[i - 1], values[bits_of(seed, draw, key, i) % i]);
    }
}

}  // namespace

TrainData::TrainData(const CaptureReader& reader, const DraftConfig& config,
                     const DataOptions& options)
    : reader_(reader), config_(config), options_(options) {
    int64_t longest = 0;
    for (int64_t i = 0; i < reader.sequences(); ++i) {
        if (anchors_of(i, 0, reader.length(i)).empty()) continue;
        training_.push_back(i);
        longest = std::max(longest, std::min(reader.length(i), options.length));
    }
    if (training_.size() < 2) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected two sequences or more in which a generated token "
                                "stands {} tokens before the end, found {}",
                                reader.path().string(), config.block_size, training_.size()));
    }
    shuffle(training_, options.seed, Draw::split, 0);
    const double share = options.validation * static_cast<double>(training_.size());
    const auto kept = std::clamp<int64_t>(std::llround(share), 1, std::ssize(training_) - 1);
    held_back_.assign(training_.end() - kept, training_.end());
    training_.resize(training_.size() - static_cast<size_t>(kept));
    std::ranges::sort(held_back_);
    context_limit_ = longest * options.sequences;
}

std::vector<int64_t> TrainData::anchors_of(int64_t sequence, int64_t first, int64_t end) const {
    std::vector<int64_t> anchors;
    const uint8_t* mask = reader_.mask_of(sequence);
    for (int64_t a = first + 1; a + config_.block_size <= end; ++a) {
        if (mask[a] != 0) anchors.push_back(a);
    }
    return anchors;
}

int64_t TrainData::sequence_of(int64_t place) const {
    std::vector<int64_t> order = training_;
    shuffle(order, options_.seed, Draw::order, static_cast<uint64_t>(place / training()));
    return order[static_cast<size_t>(place % training())];
}

TrainBatch TrainData::draw(int64_t part) const {
    TrainBatch batch;
    for (int64_t i = part * options_.sequences; i < (part + 1) * options_.sequences; ++i) {
        add(batch, sequence_of(i), static_cast<uint64_t>(i) + 1, true);
    }
    return batch;
}

int64_t TrainData::validation_batches() const {
    return (validation() + options_.sequences - 1) / options_.sequences;
}

TrainBatch TrainData::validation_batch(int64_t index) const {
    TrainBatch batch;
    const int64_t begin = index * options_.sequences;
    for (int64_t i = begin; i < std::min(begin + options_.sequences, validation()); ++i) {
        add(batch, held_back_[static_cast<size_t>(i)], 0, false);
    }
    return batch;
}

void TrainData::add(TrainBatch& batch, int64_t sequence, uint64_t key, bool noisy) const {
    const int64_t length = reader_.length(sequence);
    const int64_t count = std::min(length, options_.length);
    const uint64_t at = bits_of(options_.seed, Draw::window, key, static_cast<uint64_t>(sequence));
    auto first = static_cast<int64_t>(at % static_cast<uint64_t>(length - count + 1));
    std::vector<int64_t> anchors = anchors_of(sequence, first, first + count);
    if (anchors.empty()) {  // the window holds the prompt alone: the last one does not
        first = length - count;
        anchors = anchors_of(sequence, first, length);
    }
    if (anchors.empty()) return;
    shuffle(anchors, options_.seed, Draw::anchors, key);
    anchors.resize(std::min(anchors.size(), static_cast<size_t>(options_.anchors)));
    std::ranges::sort(anchors);
    append(batch, sequence, first, count, anchors, key);
    if (noisy)
        disturb(batch.taps.data() + std::ssize(batch.taps) - count * reader_.tap_columns(), count,
                key);
}

TrainBatch TrainData::batch_at(int64_t sequence, const std::vector<int64_t>& anchors) const {
    require(!anchors.empty() && std::ssize(anchors) <= block_limit(), "blocks of one batch");
    const int64_t end = anchors.back() + config_.block_size;
    const int64_t count = std::min(end, options_.length);
    TrainBatch batch;
    append(batch, sequence, end - count, count, anchors, 0);
    return batch;
}

// Rows [first, first + count) of a sequence and blocks at `anchors`.
void TrainData::append(TrainBatch& batch, int64_t sequence, int64_t first, int64_t count,
                       const std::vector<int64_t>& anchors, uint64_t key) const {
    const CaptureRows rows = reader_.read(sequence, first, count);
    const int64_t context = batch.context();
    batch.sequences.push_back({context, count, batch.blocks(), std::ssize(anchors)});
    const size_t before = batch.taps.size();
    batch.taps.resize(before + rows.taps.size());
    const std::vector<uint16_t> taps =
        options_.shuffle ? strange_taps(sequence, count, key) : rows.taps;
    std::ranges::transform(taps, batch.taps.begin() + static_cast<int64_t>(before),
                           [](uint16_t bits) { return to_float(BF16{bits}); });
    for (int64_t p = 0; p < count; ++p) {
        batch.context_positions.push_back(static_cast<int32_t>(first + p));
    }
    add_blocks(batch, rows, sequence, first, anchors);
}

// Rows of other sequences in any order.
std::vector<uint16_t> TrainData::strange_taps(int64_t sequence, int64_t count, uint64_t key) const {
    const auto width = static_cast<size_t>(reader_.tap_columns());
    const int64_t all = reader_.sequences();
    std::vector<uint16_t> found;
    for (int64_t step = 0; found.size() < static_cast<size_t>(count) * width; ++step) {
        const int64_t other = (sequence + 1 + step % (all - 1)) % all;
        const auto missing = count - static_cast<int64_t>(found.size() / width);
        const CaptureRows rows = reader_.read(other, 0, std::min(missing, reader_.length(other)));
        found.insert(found.end(), rows.taps.begin(), rows.taps.end());
    }
    std::vector<size_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), size_t{0});
    shuffle(order, options_.seed, Draw::shuffle, key);
    std::vector<uint16_t> taps(found.size());
    for (size_t i = 0; i < taps.size(); ++i) {
        taps[i] = found[order[i / width] * width + i % width];
    }
    return taps;
}

void TrainData::add_blocks(TrainBatch& batch, const CaptureRows& rows, int64_t sequence,
                           int64_t first, const std::vector<int64_t>& anchors) const {
    const int32_t* tokens = reader_.tokens_of(sequence);
    const uint8_t* mask = reader_.mask_of(sequence);
    for (const int64_t a : anchors) {
        batch.anchors.push_back(static_cast<int32_t>(a - first));
        for (int64_t k = 0; k < config_.block_size; ++k) {
            const int64_t p = a + k;
            batch.block_positions.push_back(static_cast<int32_t>(p));
            batch.block_tokens.push_back(k == 0 ? tokens[p]
                                                : static_cast<int32_t>(config_.mask_token_id));
            if (k == 0) continue;
            batch.labels.label.push_back(tokens[p]);
            batch.labels.before.push_back(tokens[p - 1]);
            batch.labels.supervised.push_back(mask[p]);
            const auto row = rows.final_hidden.begin() + (p - 1 - first) * config_.hidden_size;
            batch.hidden.insert(batch.hidden.end(), row, row + config_.hidden_size);
        }
    }
}

void TrainData::disturb(float* taps, int64_t rows, uint64_t key) const {
    if (options_.noise == TapNoise::none) return;
    const auto hidden = static_cast<size_t>(config_.hidden_size);
    const size_t parts = static_cast<size_t>(rows) * config_.target_layer_ids.size();
    for (size_t part = 0; part < parts; ++part) {
        float* row = taps + part * hidden;
        double squares = 0;
        for (size_t i = 0; i < hidden; ++i) {
            squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
        }
        const double rms = std::sqrt(squares / static_cast<double>(hidden));
        for (size_t i = 0; i < hidden; ++i) {
            const size_t at = 2 * (part * hidden + i);
            const double u = uniform_of(bits_of(options_.seed, Draw::noise, key, at));
            double drawn = 2 * u - 1;
            if (options_.noise == TapNoise::gaussian) {
                const double v = uniform_of(bits_of(options_.seed, Draw::noise, key, at + 1));
                drawn = rms * std::sqrt(-2 * noise_log(u)) * std::cos(2 * std::numbers::pi * v);
            }
            row[i] += static_cast<float>(options_.noise_size * drawn);
        }
    }
}

}  // namespace quadrille
