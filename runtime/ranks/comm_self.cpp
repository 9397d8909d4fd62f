// SPDX-License-Identifier: Apache-2.0
// The communicator of a job with one rank: every collective is a copy to itself.
#include "kernels/error.h"
#include "runtime/ranks/comm.h"

#include <cstring>

namespace quadrille {
namespace {

class SelfComm final : public Communicator {
  public:
    std::string name() const override { return "self"; }
    int rank() const override { return 0; }
    int size() const override { return 1; }

    void all_gather(void* out, const void* in, int64_t bytes) override { copy(out, in, bytes); }
    void all_to_all(void* out, const void* in, int64_t bytes) override { copy(out, in, bytes); }
    void broadcast_host(void*, int64_t bytes, int root) override {
        require(bytes >= 0, "broadcast a non-negative number of bytes");
        require(root == 0, "the root of a broadcast is a rank");
    }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        copy(out, in, bytes);
    }
    int64_t max_host(int64_t value) override { return value; }
    void barrier() override {}

  private:
    static void copy(void* out, const void* in, int64_t bytes) {
        require(bytes >= 0, "exchange a non-negative number of bytes");
        if (bytes > 0 && out != in) std::memcpy(out, in, static_cast<size_t>(bytes));
    }
};

}  // namespace

std::unique_ptr<Communicator> make_self_comm() {
    return std::make_unique<SelfComm>();
}

}  // namespace quadrille
