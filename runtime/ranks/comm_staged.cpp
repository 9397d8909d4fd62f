// SPDX-License-Identifier: Apache-2.0
// Collectives over the memory of a backend that MPI cannot reach: down to host memory the backend
// provides (pinned on a GPU), across, and up again. One rank needs no host: its collectives are
// copies. The exact bytes travel, so results are those of any other communicator.
#include "kernels/backend.h"
#include "kernels/error.h"
#include "runtime/ranks/comm.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace quadrille {
namespace {

// Host memory of a backend that only grows: after the largest pass nothing is allocated.
class HostBuffer {
  public:
    explicit HostBuffer(Backend& backend) : backend_(backend) {}
    ~HostBuffer() { backend_.release_host(data_); }
    HostBuffer(const HostBuffer&) = delete;
    HostBuffer& operator=(const HostBuffer&) = delete;

    void* at_least(int64_t bytes) {
        if (bytes > bytes_) {
            backend_.synchronize();  // an upload may still read the old one
            backend_.release_host(std::exchange(data_, nullptr));
            bytes_ = 0;
            data_ = backend_.allocate_host(bytes);
            bytes_ = bytes;
        }
        return data_;
    }

  private:
    Backend& backend_;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

class StagedComm final : public Communicator {
  public:
    StagedComm(Communicator& host, Backend& backend)
        : host_(host), backend_(backend), sent_(backend), received_(backend) {}

    std::string name() const override { return host_.name(); }
    int rank() const override { return host_.rank(); }
    int size() const override { return host_.size(); }

    void all_gather(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "gather a non-negative number of bytes");
        if (stays_here(out, in, bytes)) return;
        void* const sent = sent_.at_least(bytes);
        void* const received = received_.at_least(bytes * size());
        // A download waits for all that was asked of the backend before, the upload of the last
        // collective from `received` included.
        backend_.download(sent, in, bytes);
        host_.all_gather_host(received, sent, bytes);
        backend_.upload(out, received, bytes * size());
    }

    void all_to_all(void* out, const void* in, int64_t bytes) override {
        require(bytes >= 0, "exchange a non-negative number of bytes");
        require(bytes == 0 || out != in, "all_to_all has two buffers");
        if (stays_here(out, in, bytes)) return;
        void* const sent = sent_.at_least(bytes * size());
        void* const received = received_.at_least(bytes * size());
        backend_.download(sent, in, bytes * size());
        host_.all_to_all(received, sent, bytes);
        backend_.upload(out, received, bytes * size());
    }

    void broadcast_host(void* data, int64_t bytes, int root) override {
        host_.broadcast_host(data, bytes, root);
    }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        host_.all_gather_host(out, in, bytes);
    }
    int64_t max_host(int64_t value) override { return host_.max_host(value); }
    void barrier() override { host_.barrier(); }
    bool recordable() const override { return size() == 1; }

  private:
    // True: there was nothing to exchange with others.
    bool stays_here(void* out, const void* in, int64_t bytes) {
        if (bytes > 0 && size() > 1) return false;
        if (bytes > 0 && out != in) backend_.copy(out, in, bytes);
        return true;
    }

    Communicator& host_;
    Backend& backend_;
    HostBuffer sent_;
    HostBuffer received_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_comm(Communicator& host, Backend& backend) {
    return std::make_unique<StagedComm>(host, backend);
}

}  // namespace quadrille
