// SPDX-License-Identifier: Apache-2.0
// The GPU's TrellisEncoder: matrices of one k side by side, row block by row block, as many at a
// time as its memory holds.
#pragma once

#include "kernels/cuda/quantize/trellis_kernels.h"

#include <string>

namespace quadrille::cuda {

class CudaTrellisEncoder final : public TrellisEncoder {
  public:
    // device: which of the visible GPUs. Throws Error{device}.
    explicit CudaTrellisEncoder(int32_t device);
    std::string name() const override { return "cuda"; }
    void encode_tiles(uint16_t* states, const float* tiles, int64_t count,
                      TrellisCode code) override;
    // n: multiples of 128.
    void encode_matrices(std::span<const TrellisMatrix> matrices, TrellisCode code,
                         int32_t sweeps) override;

  private:
    void set_code(TrellisCode code);
    void encode_together(std::span<const TrellisMatrix> matrices, int bits, int32_t sweeps);
    TrellisScratch scratch() const;

    int32_t device_;
    int32_t processors_;
    Stream stream_;
    DeviceBuffer table_;
    DeviceBuffer choices_;
};

}  // namespace quadrille::cuda
