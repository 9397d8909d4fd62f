// SPDX-License-Identifier: Apache-2.0
// The CPU's TrellisEncoder: threads share tiles, or 16 columns of a matrix from its last rows to
// its first. Every column's errors concern that column alone, so threads never wait for each other.
#pragma once

#include "kernels/cpu/trellis_paths.h"
#include "kernels/trellis_encoder.h"

namespace quadrille::cpu {

class CpuTrellisEncoder final : public TrellisEncoder {
  public:
    CpuTrellisEncoder(Isa isa, int32_t threads);
    std::string name() const override;
    void encode_tiles(uint16_t* states, const float* tiles, int64_t count,
                      TrellisCode code) override;
    void encode_matrices(std::span<const TrellisMatrix> matrices, TrellisCode code,
                         int32_t sweeps) override;

  private:
    const TrellisPaths& paths_;
    int32_t threads_;
};

}  // namespace quadrille::cpu
