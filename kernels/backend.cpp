// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

#include <fmt/format.h>

namespace quadrille {

std::unique_ptr<Backend> make_backend(const std::string& name) {
    if (name == "cpu") return std::make_unique<cpu::CpuBackend>();
    for (const cpu::Isa isa : {cpu::Isa::plain, cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (name == fmt::format("cpu-{}", cpu::name(isa))) {
            return std::make_unique<cpu::CpuBackend>(isa);
        }
    }
    throw Error(ErrorKind::usage, fmt::format("backend '{}': expected cpu", name));
}

}  // namespace quadrille
