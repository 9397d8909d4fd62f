// SPDX-License-Identifier: Apache-2.0
// The device side of the CUDA backend: memory, copies, recording. Ops lie beside their kernels.
#include "kernels/cuda/cuda_backend.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/machine_rates.h"
#include "kernels/host_memory.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>

namespace quadrille::cuda {

namespace {

constexpr int kLowestMajor = 8;                   // mma.sync with fp16, bf16 and tf32; cp.async
constexpr int64_t kReadBytes = int64_t{1} << 30;  // that the read rate is measured over

}  // namespace

int32_t device_count() {
    int count = 0;  // left as it is on errors
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
    }
    return count;
}

namespace {

// Makes `device` current before any other member is built on it.
std::string use_device(int32_t device) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        static_cast<void>(cudaGetLastError());
        throw Error(
            ErrorKind::device,
            fmt::format("no usable GPU: {}",
                        error == cudaSuccess ? "no device is visible" : cudaGetErrorString(error)));
    }
    if (device < 0 || device >= count) {
        throw Error(ErrorKind::device,
                    fmt::format("GPU {} does not exist: {} visible", device, count));
    }
    CUDA_CHECK(cudaSetDevice(device));
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    if (properties.major < kLowestMajor) {
        throw Error(ErrorKind::device,
                    fmt::format("GPU {} ({}, sm_{}{}) is too old: sm_80 or newer", device,
                                properties.name, properties.major, properties.minor));
    }
    return properties.name;
}

}  // namespace

CudaBackend::CudaBackend(int32_t device) : device_name_(use_device(device)) {
    check_image();
}

// "CUDA 13.0" of the runtime, of the driver's interface, and the driver's own version where the
// system tells it.
std::vector<std::string> CudaBackend::libraries() const {
    int runtime = 0;
    int driver = 0;
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    const auto text = [](int version) {
        return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    };
    std::vector<std::string> found = {fmt::format("CUDA runtime {}", text(runtime)),
                                      fmt::format("CUDA driver {}", text(driver))};
    std::ifstream file("/sys/module/nvidia/version");
    std::string version;
    if (file >> version) found.push_back(fmt::format("NVIDIA driver {}", version));
    return found;
}

void* CudaBackend::allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    DeviceBuffer buffer(bytes);
    void* pointer = buffer.data();
    CUDA_CHECK(cudaMemsetAsync(pointer, 0, static_cast<size_t>(bytes), stream_.get()));
    memory_.emplace(pointer, std::move(buffer));
    return pointer;
}

void CudaBackend::release(void* pointer) noexcept {
    memory_.erase(pointer);
}

void* CudaBackend::allocate_host(int64_t bytes) {
    if (bytes == 0) return nullptr;
    PinnedBuffer buffer(bytes);
    void* pointer = buffer.data();
    std::memset(pointer, 0, static_cast<size_t>(bytes));
    host_memory_.emplace(pointer, std::move(buffer));
    return pointer;
}

void CudaBackend::release_host(void* pointer) noexcept {
    host_memory_.erase(pointer);
}

bool CudaBackend::is_pinned(const void* host, int64_t bytes) const {
    const auto after = host_memory_.upper_bound(host);
    if (after == host_memory_.begin()) return false;
    const auto& [start, buffer] = *std::prev(after);
    const auto* const end = static_cast<const std::byte*>(start) + buffer.bytes();
    return static_cast<const std::byte*>(host) + bytes <= end;
}

void CudaBackend::upload(void* to, const void* host, int64_t bytes) {
    if (bytes <= 0) return;
    if (!is_pinned(host, bytes)) {
        require(!stream_.is_capturing(), "a recorded upload: from memory of allocate_host");
        return ring_.upload(to, host, bytes);
    }
    CUDA_CHECK(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                               stream_.get()));
}

void CudaBackend::download(void* host, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               stream_.get()));
    stream_.synchronize();
}

void CudaBackend::fetch(void* host, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               stream_.get()));
}

// Free memory of a device that shares the host's leaves out what pages of files could give back.
int64_t CudaBackend::available() const {
    if (shares_host_memory()) return available_host_memory();
    size_t available = 0;
    size_t total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return static_cast<int64_t>(available);
}

bool CudaBackend::shares_host_memory() const {
    int device = 0;
    int integrated = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device));
    return integrated != 0;
}

namespace {

class EventMark final : public Mark {
  public:
    explicit EventMark(const Stream& stream) { event_.record(stream); }
    void wait() override { event_.synchronize(); }

  private:
    Event event_;
};

class GraphRecording final : public Recording {
  public:
    GraphRecording(Graph graph, const Stream& stream) : graph_(std::move(graph)), stream_(stream) {}
    void replay() override { graph_.launch(stream_); }

  private:
    Graph graph_;
    const Stream& stream_;
};

}  // namespace

std::unique_ptr<Mark> CudaBackend::mark() {
    return std::make_unique<EventMark>(stream_);
}

std::unique_ptr<Recording> CudaBackend::record(const std::function<void()>& work) {
    workspace_.keep();
    return std::make_unique<GraphRecording>(Graph::record(stream_, work), stream_);
}

double CudaBackend::best_read() {
    return read_rate(kReadBytes, processors(), stream_);
}
double CudaBackend::best_decode(int32_t bits, Codebook codebook) {
    return decode_rate(bits, codebook == Codebook::mul1, processors(), stream_);
}
double CudaBackend::best_multiply() {
    return multiply_rate(processors(), stream_);
}

void CudaBackend::copy(void* to, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                               stream_.get()));
}

void CudaBackend::fill_zero(void* to, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_.get()));
}

}  // namespace quadrille::cuda
