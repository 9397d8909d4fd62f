// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the ops on one GPU and one stream, in the order in which they are called. Nothing is
// allocated once the scratch has grown to the largest pass, so a pass can be recorded as a graph.
// A download waits for the stream; everything else returns at once.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/cuda/workspace.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace quadrille::cuda {

// The number of usable devices; 0 without a driver.
int32_t device_count();

class CudaBackend final : public Backend {
  public:
    // Throws Error{device} saying why where `device` cannot be used.
    explicit CudaBackend(int32_t device);

    const Stream& stream() const { return stream_; }
    int32_t processors() const { return kernels_.processors(); }

    std::string name() const override { return "cuda"; }
    std::string device() const override { return device_name_; }
    std::vector<std::string> libraries() const override;
    bool shares_host_memory() const override;
    int64_t available() const override;

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* pointer) noexcept override;
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override { stream_.synchronize(); }
    std::unique_ptr<Mark> mark() override;
    void fetch(void* host, const void* from, int64_t bytes) override;
    bool records() const override { return true; }
    std::unique_ptr<Recording> record(const std::function<void()>& work) override;
    double best_read() override;
    double best_decode(int32_t bits, Codebook codebook) override;
    double best_multiply() override;

#define QUADRILLE_OP(name, parameters, arguments) void name parameters override;
#include "kernels/ops.def"
#undef QUADRILLE_OP

  private:
    bool is_pinned(const void* host, int64_t bytes) const;

    std::string device_name_;
    Stream stream_;
    KernelSet kernels_;
    UploadRing ring_{stream_};
    Workspace workspace_{stream_};
    Products products_{stream_, kernels_, workspace_};
    Moe moe_{*this, products_, stream_, kernels_, workspace_};
    std::map<const void*, DeviceBuffer> memory_;
    std::map<const void*, PinnedBuffer> host_memory_;
};

}  // namespace quadrille::cuda
