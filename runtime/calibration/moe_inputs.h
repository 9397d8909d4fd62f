// SPDX-License-Identifier: Apache-2.0
// MoeInputs: what the experts of one layer are given by the calibration rows, and the Hessians of
// an expert's matrices from it, with one expert loaded at a time.
#pragma once

#include "runtime/calibration/calibration_rows.h"
#include "runtime/calibration/input_sum.h"
#include "runtime/calibration/sublayer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct ExpertSums {
    InputSum in;   // of gate and up
    InputSum mid;  // of down
};

class MoeInputs {
  public:
    // Loads the site and the router of place's layer.
    MoeInputs(Backend& backend, const Checkpoint& checkpoint, const SublayerPlace& place,
              CalibrationRows& rows);

    // Rows that the router gives to expert `expert`, each with the square of its weight there: the
    // share that an error of the expert has in the layer's. Where they are too few for a Hessian,
    // rows of the others join with a small weight, so that no expert goes without one.
    ExpertSums expert(int64_t expert) const;
    // The shared expert, which every row goes through.
    ExpertSums shared() const;

    int64_t routed_rows(int64_t expert) const;

  private:
    struct Choice {
        std::vector<int64_t> rows;
        std::vector<float> weights;
    };
    Choice choose(int64_t expert) const;
    ExpertSums sums(const std::string& prefix, int64_t width, const Choice& choice) const;

    Backend& backend_;
    const Checkpoint& checkpoint_;
    const ModelConfig& config_;
    std::string prefix_;  // of the layer's feed-forward part
    int64_t max_rows_;
    int64_t rows_;
    std::vector<float> in_;       // (rows, hidden)
    std::vector<int32_t> ids_;    // (rows, experts per token)
    std::vector<float> weights_;  // (rows, experts per token)
};

}  // namespace quadrille
