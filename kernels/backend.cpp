// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include "kernels/check/check_backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"
#ifdef QUADRILLE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

#include <fmt/format.h>

namespace quadrille {

std::unique_ptr<Recording> Device::record(const std::function<void()>&) {
    throw Error(ErrorKind::internal, fmt::format("backend '{}' records nothing", name()));
}

std::unique_ptr<Backend> make_backend(const std::string& name, int32_t device) {
    if (name == "cpu") return std::make_unique<cpu::CpuBackend>();
    for (const cpu::Isa isa : {cpu::Isa::plain, cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (name == fmt::format("cpu-{}", cpu::name(isa))) {
            return std::make_unique<cpu::CpuBackend>(isa);
        }
    }
    if (name == "cuda") {
#ifdef QUADRILLE_CUDA
        return std::make_unique<cuda::CudaBackend>(device);
#else
        throw Error(ErrorKind::device,
                    fmt::format("backend 'cuda', GPU {}: this build has no CUDA (meson option "
                                "cuda)",
                                device));
#endif
    }
    if (name == "check") {
        const bool gpu = gpu_count() > 0;
        return std::make_unique<check::CheckBackend>(make_backend(gpu ? "cuda" : "cpu", device),
                                                     make_backend(gpu ? "cpu" : "cpu-plain"));
    }
    throw Error(ErrorKind::usage, fmt::format("backend '{}': expected cpu, cuda or check", name));
}

int32_t gpu_count() {
#ifdef QUADRILLE_CUDA
    return cuda::device_count();
#else
    return 0;
#endif
}

bool has_cuda() {
#ifdef QUADRILLE_CUDA
    return true;
#else
    return false;
#endif
}

}  // namespace quadrille
