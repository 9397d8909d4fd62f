// SPDX-License-Identifier: Apache-2.0
// A backend that passes everything on to another one, for those that watch or break single ops.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {

class ForwardBackend : public Backend {
  public:
    explicit ForwardBackend(std::unique_ptr<Backend> inner)
        : owned_(std::move(inner)), inner_(*owned_) {}
    explicit ForwardBackend(Backend& inner) : inner_(inner) {}  // which outlives this
    Backend& inner() { return inner_; }

    std::string name() const override { return inner_.name(); }
    std::string device() const override { return inner_.device(); }
    std::vector<std::string> libraries() const override { return inner_.libraries(); }
    bool on_host() const override { return inner_.on_host(); }
    int64_t available() const override { return inner_.available(); }
    bool shares_host_memory() const override { return inner_.shares_host_memory(); }

    void* allocate(int64_t bytes) override { return inner().allocate(bytes); }
    void release(void* pointer) noexcept override { inner().release(pointer); }
    void* allocate_host(int64_t bytes) override { return inner().allocate_host(bytes); }
    void release_host(void* pointer) noexcept override { inner().release_host(pointer); }
    void upload(void* to, const void* host, int64_t bytes) override {
        inner().upload(to, host, bytes);
    }
    void download(void* host, const void* from, int64_t bytes) override {
        inner().download(host, from, bytes);
    }
    void copy(void* to, const void* from, int64_t bytes) override { inner().copy(to, from, bytes); }
    void fill_zero(void* to, int64_t bytes) override { inner().fill_zero(to, bytes); }
    void synchronize() override { inner().synchronize(); }
    std::unique_ptr<Mark> mark() override { return inner().mark(); }

#define QUADRILLE_OP(name, parameters, arguments) \
    void name parameters override {               \
        inner().name arguments;                   \
    }
#include "kernels/ops.def"
#undef QUADRILLE_OP

  private:
    std::unique_ptr<Backend> owned_;
    Backend& inner_;
};

}  // namespace quadrille
