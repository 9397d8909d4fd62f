// SPDX-License-Identifier: Apache-2.0
// NCCL carries bytes and adds nothing up: an all-gather, and an all-to-all of sends and receives,
// so that every sum is this program's own (runtime/ranks/tree_reduce.h). Calls enqueue on the
// backend's stream and may be recorded in a graph. A stream that waits for a rank that is gone is
// the watchdog's business (runtime/ranks/watchdog.h); what NCCL finds out itself is a thread's
// here.
#include "runtime/ranks/comm_nccl.h"

#include "kernels/buffer.h"
#include "kernels/cuda/cuda_backend.h"
#include "runtime/ranks/agree.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <exception>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kWatchEvery = 100ms;

template <class Text, size_t kSize>
void write_text(std::array<char, kSize>& to, const Text& text) {
    const std::string_view from = text;
    std::copy_n(from.data(), std::min(from.size(), kSize - 1), to.data());
}

// ---- the library --------------------------------------------------------------------------------

struct Library {
    decltype(&ncclGetVersion) get_version = nullptr;
    decltype(&ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&ncclCommInitRank) init_rank = nullptr;
    decltype(&ncclCommDestroy) destroy = nullptr;
    decltype(&ncclCommAbort) abort = nullptr;
    decltype(&ncclCommGetAsyncError) async_error = nullptr;
    decltype(&ncclGetErrorString) error_text = nullptr;
    decltype(&ncclGetLastError) last_error = nullptr;
    decltype(&ncclAllGather) all_gather = nullptr;
    decltype(&ncclAllReduce) all_reduce = nullptr;
    decltype(&ncclSend) send = nullptr;
    decltype(&ncclRecv) receive = nullptr;
    decltype(&ncclGroupStart) group_start = nullptr;
    decltype(&ncclGroupEnd) group_end = nullptr;
};

// Loads the library; never unloads it, since it keeps threads.
Library load_library() {
    void* handle = nullptr;
    std::string why;
    for (const char* name : {"libnccl.so.2", "libnccl.so"}) {
        handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) break;
        if (why.empty()) why = dlerror();
    }
    if (handle == nullptr) throw Error(ErrorKind::comm, fmt::format("NCCL: {}", why));
    Library library;
    const auto find = [handle](auto& function, const char* name) {
        void* const symbol = dlsym(handle, name);
        if (symbol == nullptr) {
            throw Error(ErrorKind::comm, fmt::format("NCCL: the library has no {}", name));
        }
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(library.get_version, "ncclGetVersion");
    find(library.get_unique_id, "ncclGetUniqueId");
    find(library.init_rank, "ncclCommInitRank");
    find(library.destroy, "ncclCommDestroy");
    find(library.abort, "ncclCommAbort");
    find(library.async_error, "ncclCommGetAsyncError");
    find(library.error_text, "ncclGetErrorString");
    find(library.last_error, "ncclGetLastError");
    find(library.all_gather, "ncclAllGather");
    find(library.all_reduce, "ncclAllReduce");
    find(library.send, "ncclSend");
    find(library.receive, "ncclRecv");
    find(library.group_start, "ncclGroupStart");
    find(library.group_end, "ncclGroupEnd");
    return library;
}

const Library& nccl() {
    static const Library library = load_library();
    return library;
}

[[noreturn]] void fail(ncclResult_t result, const char* call, ncclComm_t comm,
                       std::source_location where = std::source_location::current()) {
    const char* const detail = nccl().last_error(comm);
    const std::string_view more = detail != nullptr ? detail : "";
    throw Error(
        ErrorKind::comm,
        fmt::format("{}: {}{}{}", call, nccl().error_text(result), more.empty() ? "" : ": ", more),
        where);
}

void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr,
           std::source_location where = std::source_location::current()) {
    if (result != ncclSuccess && result != ncclInProgress) fail(result, call, comm, where);
}

// ---- the communicator ---------------------------------------------------------------------------

// ncclCommInitRank waits for the other ranks, for ever: it waits in a thread of its own. One that
// never returns is left behind; the process ends with this rank's error.
ncclComm_t connect(const ncclUniqueId& id, int size, int rank, int device,
                   std::chrono::seconds patience) {
    std::promise<std::pair<ncclResult_t, ncclComm_t>> promise;
    auto future = promise.get_future();
    std::thread([promise = std::move(promise), id, size, rank, device]() mutable {
        ncclComm_t comm = nullptr;
        ncclResult_t result = ncclUnhandledCudaError;
        if (cudaSetDevice(device) == cudaSuccess) {
            result = nccl().init_rank(&comm, size, id, rank);
        }
        promise.set_value({result, comm});
    }).detach();
    if (future.wait_for(patience) != std::future_status::ready) {
        throw Error(ErrorKind::comm, fmt::format("NCCL: rank {} has not met the others within {} s",
                                                 rank, patience.count()));
    }
    const auto [result, comm] = future.get();
    check(result, "ncclCommInitRank");
    return comm;
}

class NcclComm final : public Communicator {
  public:
    NcclComm(Communicator& host, cuda::CudaBackend& backend, ncclComm_t comm)
        : host_(host),
          backend_(backend),
          comm_(comm),
          rank_(host.rank()),
          size_(host.size()),
          exceptions_(std::uncaught_exceptions()),
          watcher_([this] { watch(); }) {}

    ~NcclComm() override {
        leaving_.store(true);
        watcher_.join();
        // Others may be anywhere while an exception is on its way: nothing may wait for them.
        const bool failed = std::uncaught_exceptions() > exceptions_;
        if (aborted_.test_and_set()) return;
        static_cast<void>(failed ? nccl().abort(comm_) : nccl().destroy(comm_));
    }
    NcclComm(const NcclComm&) = delete;
    NcclComm& operator=(const NcclComm&) = delete;

    std::string name() const override { return "nccl"; }
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    bool recordable() const override { return true; }
    void abort() noexcept override {
        if (aborted_.test_and_set()) return;
        const std::lock_guard<std::mutex> lock(watching_);
        static_cast<void>(nccl().abort(comm_));
    }

    void all_gather(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "gather a non-negative number of bytes");
        if (bytes == 0) return;
        check(nccl().all_gather(in, out, static_cast<size_t>(bytes), ncclInt8, comm_, stream()),
              "ncclAllGather", comm_);
    }

    void all_to_all(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "exchange a non-negative number of bytes");
        require(bytes == 0 || out != in, "all_to_all has two buffers");
        if (bytes == 0) return;
        const auto count = static_cast<size_t>(bytes);
        char* const received = static_cast<char*>(out);
        const char* const sent = static_cast<const char*>(in);
        backend_.copy(received + rank_ * bytes, sent + rank_ * bytes, bytes);
        check(nccl().group_start(), "ncclGroupStart", comm_);
        for (int other = 0; other < size_; ++other) {
            if (other == rank_) continue;
            check(nccl().send(sent + other * bytes, count, ncclInt8, other, comm_, stream()),
                  "ncclSend", comm_);
            check(nccl().receive(received + other * bytes, count, ncclInt8, other, comm_, stream()),
                  "ncclRecv", comm_);
        }
        check(nccl().group_end(), "ncclGroupEnd", comm_);
    }

    void all_reduce(float* data, int64_t count) {
        check(nccl().all_reduce(data, data, static_cast<size_t>(count), ncclFloat32, ncclSum, comm_,
                                stream()),
              "ncclAllReduce", comm_);
    }

    void broadcast_host(void* data, int64_t bytes, int root) override {
        host_.broadcast_host(data, bytes, root);
    }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        host_.all_gather_host(out, in, bytes);
    }
    int64_t max_host(int64_t value) override { return host_.max_host(value); }
    void barrier() override { host_.barrier(); }

    // One of each collective: connections are made here, within `patience`, not in a step.
    void meet(std::chrono::seconds patience) {
        constexpr int64_t kBytes = 64;
        const Buffer from(backend_, kBytes * size_);
        const Buffer to(backend_, kBytes * size_);
        all_gather(to.data(), from.data(), kBytes);
        all_to_all(to.data(), from.data(), kBytes);
        const Clock::time_point end = Clock::now() + patience;
        while (true) {
            const cudaError_t state = cudaStreamQuery(stream());
            if (state == cudaSuccess) return;
            if (state != cudaErrorNotReady) {
                throw Error(ErrorKind::device,
                            fmt::format("the first collective: {}", cudaGetErrorString(state)));
            }
            if (Clock::now() > end) {
                abort();  // frees the stream
                throw Error(ErrorKind::comm,
                            fmt::format("NCCL: rank {}'s first collective was not done within {} s",
                                        rank_, patience.count()));
            }
            std::this_thread::sleep_for(100us);
        }
    }

  private:
    cudaStream_t stream() const { return backend_.stream().get(); }

    // Leaves through std::terminate, whose handler ends the job (runtime/ranks/fatal.h).
    void watch() noexcept {
        while (!leaving_.load()) {
            ncclResult_t state = ncclSuccess;
            {
                const std::lock_guard<std::mutex> lock(watching_);
                if (aborted_.test()) return;
                const ncclResult_t result = nccl().async_error(comm_, &state);
                if (result != ncclSuccess) state = result;
            }
            check(state, "NCCL", comm_);  // outside the lock: the way to die takes it
            std::this_thread::sleep_for(kWatchEvery);
        }
    }

    Communicator& host_;
    cuda::CudaBackend& backend_;
    ncclComm_t comm_;
    int rank_;
    int size_;
    int exceptions_;
    std::atomic<bool> leaving_{false};
    std::atomic_flag aborted_ = ATOMIC_FLAG_INIT;
    std::mutex watching_;  // while it is held, comm_ exists
    std::thread watcher_;
};

}  // namespace

NcclRank nccl_rank(const Backend& backend, const std::string& host) {
    NcclRank seat;
    const char* const id = std::getenv("NCCL_HOSTID");
    write_text(seat.host, id != nullptr ? std::string(id) : host);
    if (dynamic_cast<const cuda::CudaBackend*>(&backend) != nullptr) {
        int device = 0;
        CUDA_CHECK(cudaGetDevice(&device));
        CUDA_CHECK(
            cudaDeviceGetPCIBusId(seat.gpu.data(), static_cast<int>(seat.gpu.size()), device));
    }
    try {
        int version = 0;
        check(nccl().get_version(&version), "ncclGetVersion");
        seat.version = version;
    } catch (const Error& error) {
        write_text(seat.missing, std::string(error.what()));
    }
    return seat;
}

std::unique_ptr<Communicator> make_nccl_comm(Communicator& host, Backend& backend,
                                             std::chrono::seconds patience) {
    auto* const gpu = dynamic_cast<cuda::CudaBackend*>(&backend);
    require(gpu != nullptr, "NCCL works on the memory of the CUDA backend");
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    ncclUniqueId id{};
    agree(host, "NCCL's id", [&] {
        if (host.rank() == 0) check(nccl().get_unique_id(&id), "ncclGetUniqueId");
    });
    host.broadcast_host(&id, sizeof id, 0);
    return agree(host, "NCCL", [&] {
        auto comm = std::make_unique<NcclComm>(
            host, *gpu, connect(id, host.size(), host.rank(), device, patience));
        comm->meet(patience);
        return std::unique_ptr<Communicator>(std::move(comm));
    });
}

void nccl_all_reduce(Communicator& comm, float* data, int64_t count) {
    auto* const ranks = dynamic_cast<NcclComm*>(&comm);
    require(ranks != nullptr, "ranks on NCCL");
    ranks->all_reduce(data, count);
}

}  // namespace quadrille
