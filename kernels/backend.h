// SPDX-License-Identifier: Apache-2.0
// Backend: a device and every op of the model on it. The only compute header that the layers above
// include.
#pragma once

#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/ops.h"

#include <cstdint>
#include <memory>
#include <string>

namespace quadrille {

class Backend : public Device, public Ops {
  public:
    // The best that the device itself does, measured now without any op; 0: not known.
    virtual double best_read() { return 0; }                              // bytes/s
    virtual double best_decode(int32_t /*bits*/, Codebook) { return 0; }  // EXL3 weights/s
    virtual double best_multiply() { return 0; }  // multiply-adds/s of 16-bit numbers
};

// "cpu", "cuda" or "check" (kernels/check: the GPU judged by the CPU; without one, the CPU's best
// path by its plain one); "cpu-plain", "cpu-avx2" and "cpu-avx512" force the CPU's path (all give
// the same bits). Throws Error{usage} for other names and Error{device} for one this
// build or machine cannot provide. device: which of the visible GPUs.
std::unique_ptr<Backend> make_backend(const std::string& name, int32_t device = 0);

// Usable GPUs; 0 without a driver or in a build without CUDA.
int32_t gpu_count();
// True: this build has the CUDA backend.
bool has_cuda();

}  // namespace quadrille
