// SPDX-License-Identifier: Apache-2.0
// PaperBackend: a backend that only counts what it is asked for. Whatever is built on it takes the
// memory that it would take on a real one, by class; nothing is read, moved or computed.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace quadrille {

class PaperBackend final : public Backend {
  public:
    // Counts as the backend of this name allocates.
    explicit PaperBackend(std::string name) : name_(std::move(name)) {}

    // Device memory held, by class; host memory of allocate_host.
    const std::map<Memory, int64_t>& held() const { return held_; }
    int64_t host_bytes() const { return host_bytes_; }

    std::string name() const override { return name_; }
    std::string device() const override { return "paper"; }
    bool records() const override { return name_ == "cuda"; }
    bool on_paper() const override { return true; }

    void* allocate(int64_t bytes) override { return allocate_for(Memory::pass, bytes); }
    void* allocate_for(Memory memory, int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* pointer) noexcept override;
    void upload(void*, const void*, int64_t) override {}
    void download(void*, const void*, int64_t) override;
    void copy(void*, const void*, int64_t) override {}
    void fill_zero(void*, int64_t) override {}
    void synchronize() override {}

#define QUADRILLE_OP(name, parameters, arguments)      \
    void name parameters override {                    \
        std::ignore = std::forward_as_tuple arguments; \
        refuse();                                      \
    }
#include "kernels/ops.def"
#undef QUADRILLE_OP

  private:
    [[noreturn]] static void refuse();

    struct Block {
        Memory memory;
        int64_t bytes;
    };
    std::string name_;
    std::map<Memory, int64_t> held_;
    std::map<const void*, Block> blocks_;
    uintptr_t next_ = uintptr_t{1} << 40;  // addresses that nobody may follow
    std::map<const void*, std::vector<std::byte>> host_;
    int64_t host_bytes_ = 0;
};

}  // namespace quadrille
