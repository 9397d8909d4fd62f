// SPDX-License-Identifier: Apache-2.0
#include "kernels/trellis_encoder.h"

#include "kernels/cpu/trellis_encoder.h"
#include "kernels/error.h"
#ifdef QUADRILLE_CUDA
#include "kernels/cuda/quantize/cuda_trellis_encoder.h"
#endif

#include <fmt/format.h>

namespace quadrille {

std::unique_ptr<TrellisEncoder> make_trellis_encoder(const std::string& backend, int32_t threads,
                                                     [[maybe_unused]] int32_t device) {
    if (backend == "cpu") {
        return std::make_unique<cpu::CpuTrellisEncoder>(cpu::detect_isa(), threads);
    }
    for (const cpu::Isa isa : {cpu::Isa::plain, cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (backend == fmt::format("cpu-{}", cpu::name(isa))) {
            return std::make_unique<cpu::CpuTrellisEncoder>(isa, threads);
        }
    }
    if (backend == "cuda") {
#ifdef QUADRILLE_CUDA
        return std::make_unique<cuda::CudaTrellisEncoder>(device);
#else
        throw Error(ErrorKind::device,
                    "encoder 'cuda': this build has no CUDA (meson option cuda)");
#endif
    }
    throw Error(ErrorKind::usage, fmt::format("encoder '{}': expected cpu or cuda", backend));
}

}  // namespace quadrille
