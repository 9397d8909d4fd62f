// SPDX-License-Identifier: Apache-2.0
// CUDA handles: one move-only class per foreign resource, whose constructor acquires or throws
// Error{device} and whose destructor never throws; and the two checks. No other file calls the CUDA
// runtime unchecked.
#pragma once

#include "kernels/error.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>
#include <utility>

namespace quadrille::cuda {

[[noreturn]] void fail(cudaError_t error, const char* expression,
                       std::source_location where = std::source_location::current());

inline void check(cudaError_t error, const char* expression,
                  std::source_location where = std::source_location::current()) {
    if (error != cudaSuccess) fail(error, expression, where);
}

#define CUDA_CHECK(expression) ::quadrille::cuda::check((expression), #expression)
// After every launch: what the launch itself got wrong; nothing is waited for.
#define LAUNCH_CHECK() ::quadrille::cuda::check(cudaGetLastError(), "kernel launch")

// The handle, and how it is given back, of a resource that a null handle stands for the lack of.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
class Owned {
  public:
    Owned() = default;
    explicit Owned(Handle handle) : handle_(handle) {}
    Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() {
        if (handle_ != nullptr) static_cast<void>(kDestroy(handle_));
    }

    Handle get() const { return handle_; }

  private:
    Handle handle_ = nullptr;
};

// A stream, and whether its device can start a kernel before the one ahead of it has ended.
struct LaunchStream {
    cudaStream_t stream;
    bool overlaps;
    operator cudaStream_t() const { return stream; }
};

// A stream belongs to the device that is current when it is made.
class Stream {
  public:
    Stream();
    LaunchStream get() const { return {stream_.get(), overlaps_}; }
    void synchronize() const { CUDA_CHECK(cudaStreamSynchronize(get())); }
    bool is_capturing() const;

  private:
    Owned<cudaStream_t, cudaStreamDestroy> stream_;
    bool overlaps_ = false;
};

class Event {
  public:
    Event();
    void record(const Stream& stream) { CUDA_CHECK(cudaEventRecord(event_.get(), stream.get())); }
    void wait_on(const Stream& stream) {
        CUDA_CHECK(cudaStreamWaitEvent(stream.get(), event_.get(), 0));
    }
    void synchronize() const { CUDA_CHECK(cudaEventSynchronize(event_.get())); }
    // Milliseconds from `start`; both have happened.
    float since(const Event& start) const;

  private:
    Owned<cudaEvent_t, cudaEventDestroy> event_;
};

// Work recorded once and replayed: what a stream is given between the two ends of `record`.
class Graph {
  public:
    template <class Work>
    static Graph record(const Stream& stream, Work&& work) {
        CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
        try {
            work();
        } catch (...) {
            end_broken(stream);
            throw;
        }
        return Graph(stream);
    }
    void launch(const Stream& stream) const {
        CUDA_CHECK(cudaGraphLaunch(executable_.get(), stream.get()));
    }

  private:
    explicit Graph(const Stream& stream);
    static void end_broken(const Stream& stream) noexcept;

    Owned<cudaGraph_t, cudaGraphDestroy> graph_;
    Owned<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

// Device memory, not initialised. Nothing for 0 bytes.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(int64_t bytes);
    void* data() const { return memory_.get(); }
    int64_t bytes() const { return bytes_; }

  private:
    Owned<void*, cudaFree> memory_;
    int64_t bytes_ = 0;
};

// Page-locked host memory.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(int64_t bytes);
    void* data() const { return memory_.get(); }
    int64_t bytes() const { return bytes_; }

  private:
    Owned<void*, cudaFreeHost> memory_;
    int64_t bytes_ = 0;
};

}  // namespace quadrille::cuda
