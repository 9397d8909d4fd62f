// SPDX-License-Identifier: Apache-2.0
// CheckBackend: a backend that runs another one and lets the CPU judge every op. Both start from
// the same bits: the working backend's memory and its mirror are equal between ops, so an error is
// found in the op that makes it and never grows. For finding faults, not for speed.
#pragma once

#include "kernels/backend.h"
#include "kernels/check/mirror.h"

#include <cstdint>
#include <memory>
#include <string>

namespace quadrille::check {

class OpCall;

class CheckBackend final : public Backend {
  public:
    // `reference` works on host memory. A working backend that does too must give its bits, any
    // other one must stay within the tolerances of kernels/check/tolerance.h. An op that does not
    // throws Error{internal} naming op, element, both values and what is allowed.
    CheckBackend(std::unique_ptr<Backend> work, std::unique_ptr<Backend> reference);

    std::string name() const override { return "check"; }
    std::string device() const override;

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override { return work_->allocate_host(bytes); }
    void release_host(void* pointer) noexcept override { work_->release_host(pointer); }
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override { work_->synchronize(); }

#define QUADRILLE_OP(name, parameters, arguments) void name parameters override;
#include "kernels/ops.def"
#undef QUADRILLE_OP

  private:
    OpCall call(const char* op);

    std::unique_ptr<Backend> work_;
    std::unique_ptr<Backend> reference_;
    Mirror mirror_;
};

}  // namespace quadrille::check
