// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/handles.h"

#include <fmt/format.h>

namespace quadrille::cuda {

void fail(cudaError_t error, const char* expression, std::source_location where) {
    throw Error(
        ErrorKind::device,
        fmt::format("{}: {} ({})", expression, cudaGetErrorString(error), cudaGetErrorName(error)),
        where);
}

Stream::Stream() {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_ = Owned<cudaStream_t, cudaStreamDestroy>(stream);
    int device = 0;
    int major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    overlaps_ = major >= 9;
}

bool Stream::is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(get(), &status));
    return status != cudaStreamCaptureStatusNone;
}

Event::Event() {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreate(&event));
    event_ = Owned<cudaEvent_t, cudaEventDestroy>(event);
}

float Event::since(const Event& start) const {
    float milliseconds = 0.0f;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.event_.get(), event_.get()));
    return milliseconds;
}

Graph::Graph(const Stream& stream) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
    graph_ = Owned<cudaGraph_t, cudaGraphDestroy>(graph);
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    executable_ = Owned<cudaGraphExec_t, cudaGraphExecDestroy>(executable);
}

void Graph::end_broken(const Stream& stream) noexcept {
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(stream.get(), &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
}

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
    require(bytes >= 0, "device buffer of a non-negative size");
    if (bytes == 0) return;
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (error != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        size_t available = 0;
        size_t total = 0;
        static_cast<void>(cudaMemGetInfo(&available, &total));
        throw Error(ErrorKind::device,
                    fmt::format("device memory: cannot allocate {} bytes, {} of {} are free: {}",
                                bytes, available, total, cudaGetErrorString(error)));
    }
    memory_ = Owned<void*, cudaFree>(memory);
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : bytes_(bytes) {
    require(bytes >= 0, "pinned buffer of a non-negative size");
    if (bytes == 0) return;
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(bytes), 0);
    if (error != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        throw Error(ErrorKind::device,
                    fmt::format("page-locked host memory: cannot allocate {} bytes: {}", bytes,
                                cudaGetErrorString(error)));
    }
    memory_ = Owned<void*, cudaFreeHost>(memory);
}

}  // namespace quadrille::cuda
