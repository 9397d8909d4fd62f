// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibration/calibration_rows.h"

#include "runtime/prefill_plan.h"

#include <algorithm>

namespace quadrille {
namespace {
constexpr int64_t kMostSlots = 64;  // sequences of a pass
}

CalibrationRows::CalibrationRows(Backend& backend, const ModelConfig& config, Sequences sequences,
                                 int64_t max_rows)
    : backend_(backend),
      sequences_(std::move(sequences)),
      streams_count_(static_cast<int32_t>(config.hc_mult)),
      width_(config.hc_mult * config.hidden_size) {
    int64_t longest = 1;
    for (const auto& sequence : sequences_) {
        rows_ += std::ssize(sequence);
        longest = std::max<int64_t>(longest, std::ssize(sequence));
    }
    limits_.slots =
        static_cast<int32_t>(std::clamp<int64_t>(std::ssize(sequences_), 1, kMostSlots));
    limits_.capacity = prefill_ceiling(longest);
    limits_.max_rows =
        static_cast<int32_t>(std::min(max_rows, prefill_ceiling(std::max<int64_t>(rows_, 1))));
    plan_passes(limits_.max_rows);
    streams_.resize(static_cast<size_t>(rows_ * width_));
    batch_.emplace(backend, limits_.max_rows, limits_.slots);
    pass_streams_ = Array<float>(backend, limits_.max_rows, width_);
}

void CalibrationRows::plan_passes(int64_t max_rows) {
    int64_t room = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
        const int64_t length = std::ssize(sequences_[i]);
        for (int32_t position = 0; position < length;) {
            int32_t rows = prefill_chunk(length, position, static_cast<int32_t>(room));
            if (rows == 0 || std::ssize(passes_.back()) == limits_.slots) {
                passes_.emplace_back();
                room = max_rows;
                rows = prefill_chunk(length, position, static_cast<int32_t>(room));
            }
            passes_.back().push_back(
                {.sequence = static_cast<int64_t>(i), .position = position, .rows = rows});
            room -= rows;
            position += rows;
        }
    }
}

int64_t CalibrationRows::load(const std::vector<Piece>& pass) {
    batch_->clear(true);
    for (const Piece& piece : pass) {
        const auto& tokens = sequences_[static_cast<size_t>(piece.sequence)];
        batch_->add(static_cast<int32_t>(piece.sequence % limits_.slots), piece.position, 0,
                    std::span(tokens).subspan(static_cast<size_t>(piece.position),
                                              static_cast<size_t>(piece.rows)),
                    Logits::none);
    }
    batch_->upload();
    return batch_->m();
}

void CalibrationRows::embed(const Matrix& table) {
    int64_t first = 0;
    for (const auto& pass : passes_) {
        const int64_t m = load(pass);
        const View<float> streams = pass_streams_.first(m);
        backend_.embed(streams, batch_->tokens(), table, streams_count_);
        backend_.download(streams_.data() + first * width_, streams.data,
                          m * width_ * int64_t{sizeof(float)});
        first += m;
    }
}

void CalibrationRows::swap_streams(std::vector<float>& other) {
    require(other.size() == streams_.size(), "streams of the same rows");
    streams_.swap(other);
}

void CalibrationRows::each_pass(const Visit& visit, bool keep) {
    int64_t first = 0;
    for (const auto& pass : passes_) {
        const int64_t m = load(pass);
        const View<float> streams = pass_streams_.first(m);
        const int64_t bytes = m * width_ * int64_t{sizeof(float)};
        float* const host = streams_.data() + first * width_;
        backend_.upload(streams.data, host, bytes);
        visit(streams, batch_->rows(), first);
        if (keep) backend_.download(host, streams.data, bytes);
        first += m;
    }
}

}  // namespace quadrille
