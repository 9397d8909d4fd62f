// SPDX-License-Identifier: Apache-2.0
// TimedComm: another communicator, with a stopwatch on its collectives and a count of those on
// backend memory by size. Where they only enqueue work, the time is that of the host.
#pragma once

#include "runtime/ranks/comm.h"

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace quadrille {

// A collective on backend memory: all_gather or all_to_all of so many bytes a rank.
struct Collective {
    bool all_to_all = false;
    int64_t bytes = 0;
    friend auto operator<=>(const Collective&, const Collective&) = default;
};
using CollectiveCounts = std::map<Collective, int64_t>;

class TimedComm final : public Communicator {
  public:
    explicit TimedComm(Communicator& comm) : comm_(comm) {}

    double seconds() const { return seconds_; }
    // Since the last call.
    CollectiveCounts take_counts() { return std::exchange(counts_, {}); }

    std::string name() const override { return comm_.name(); }
    int rank() const override { return comm_.rank(); }
    int size() const override { return comm_.size(); }

    void all_gather(void* out, const void* in, int64_t bytes) override {
        ++counts_[{.all_to_all = false, .bytes = bytes}];
        timed([&] { comm_.all_gather(out, in, bytes); });
    }
    void all_to_all(void* out, const void* in, int64_t bytes) override {
        ++counts_[{.all_to_all = true, .bytes = bytes}];
        timed([&] { comm_.all_to_all(out, in, bytes); });
    }
    void broadcast_host(void* data, int64_t bytes, int root) override {
        timed([&] { comm_.broadcast_host(data, bytes, root); });
    }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        timed([&] { comm_.all_gather_host(out, in, bytes); });
    }
    int64_t max_host(int64_t value) override {
        int64_t largest = 0;
        timed([&] { largest = comm_.max_host(value); });
        return largest;
    }
    void barrier() override {
        timed([&] { comm_.barrier(); });
    }
    bool recordable() const override { return comm_.recordable(); }
    void abort() noexcept override { comm_.abort(); }

  private:
    template <class Call>
    void timed(const Call& call) {
        const auto start = std::chrono::steady_clock::now();
        call();
        seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    Communicator& comm_;
    double seconds_ = 0;
    CollectiveCounts counts_;
};

}  // namespace quadrille
