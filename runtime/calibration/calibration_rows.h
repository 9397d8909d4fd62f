// SPDX-License-Identifier: Apache-2.0
// CalibrationRows: the mHC streams of every row of the calibration text, in host memory, between
// the sublayers of a model of which a single one is loaded at a time.
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/target_model.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace quadrille {

class CalibrationRows {
  public:
    using Sequences = std::vector<std::vector<int32_t>>;
    // streams (m, streams * hidden) in backend memory; `first`: place of the first row among all.
    using Visit = std::function<void(View<float> streams, const Rows& rows, int64_t first)>;

    // Tokens are in the vocabulary. Passes hold up to `max_rows` rows, a multiple of kPrefillGrid.
    CalibrationRows(Backend& backend, const ModelConfig& config, Sequences sequences,
                    int64_t max_rows);

    int64_t rows() const { return rows_; }
    const ModelLimits& limits() const { return limits_; }  // of a sublayer that runs over them

    // Streams at the start of the model; `table` native (vocab, hidden).
    void embed(const Matrix& table);
    // All rows in order, sequences whole from their first token. Afterwards the streams are as
    // `visit` left them.
    void update(const Visit& visit) { each_pass(visit, true); }
    // The same; what `visit` writes to the streams is forgotten.
    void look(const Visit& visit) { each_pass(visit, false); }

    // (rows, streams * hidden), where the rows stand: what update would go on from.
    const std::vector<float>& streams() const { return streams_; }
    // Other streams of the same rows take their place. `other`: of the same size.
    void swap_streams(std::vector<float>& other);

  private:
    // Rows of a sequence in a pass.
    struct Piece {
        int64_t sequence = 0;
        int32_t position = 0;
        int32_t rows = 0;
    };
    void plan_passes(int64_t max_rows);
    void each_pass(const Visit& visit, bool keep);
    int64_t load(const std::vector<Piece>& pass);

    Backend& backend_;
    Sequences sequences_;
    int32_t streams_count_;
    int64_t width_;
    int64_t rows_ = 0;
    ModelLimits limits_;
    std::vector<std::vector<Piece>> passes_;
    std::vector<float> streams_;  // (rows, streams * hidden)
    std::optional<StepBatch> batch_;
    Array<float> pass_streams_;
};

}  // namespace quadrille
