// SPDX-License-Identifier: Apache-2.0
#include "jobs/roofline/machine_rates.h"

#include "kernels/buffer.h"
#include "runtime/seconds.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <vector>

namespace quadrille {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCold = int64_t{256} << 20;  // bytes that no cache holds
constexpr double kLongEnough = 2e-3;           // seconds of one timing
constexpr double kPatience = 0.1;              // seconds of all timings of one kind
constexpr int kTimings = 5;
constexpr int64_t kLargestMessage = int64_t{64} << 20;  // larger ones count in proportion

double read_rate(Backend& backend) {
    constexpr int64_t kInputs = 4096;
    constexpr int64_t kOutputs = kCold / (kInputs * int64_t{sizeof(float)});
    const Array<float> weights(backend, kOutputs, kInputs);
    const Array<float> in(backend, 1, kInputs);
    const Array<float> out(backend, 1, kOutputs);
    const Matrix matrix{
        .n = kOutputs, .k = kInputs, .weights = weights.data(), .dtype = Dtype::f32};
    const double product =
        best_seconds(backend, [&] { backend.linear(out.view(), in.view(), matrix); });
    float* const half = weights.data() + kOutputs / 2 * kInputs;
    const double copy =
        best_seconds(backend, [&] { backend.copy(half, weights.data(), kCold / 2); });
    return static_cast<double>(kCold) / std::min(product, copy);
}

// Weights/s of one product of n outputs and k inputs.
double product_rate(Backend& backend, const Storage& form, int64_t n, int64_t k) {
    std::vector<uint16_t> words(static_cast<size_t>(n * k * form.bits / 16));
    uint64_t state = 1;
    for (uint16_t& word : words) {  // any bits are a valid trellis
        state = state * 6364136223846793005u + 1442695040888963407u;
        word = static_cast<uint16_t>(state >> 48);
    }
    const std::vector<F16> ones(static_cast<size_t>(std::max(n, k)), F16{0x3c00});
    const Array<uint16_t> trellis(backend, words);
    const Array<F16> scales(backend, ones);
    const Array<float> in(backend, 1, k);
    const Array<float> out(backend, 1, n);
    const Matrix matrix{.n = n,
                        .k = k,
                        .trellis = trellis.data(),
                        .suh = scales.data(),
                        .svh = scales.data(),
                        .k_padded = k,
                        .n_padded = n,
                        .bits = form.bits,
                        .codebook = form.codebook};
    const double seconds =
        best_seconds(backend, [&] { backend.linear(out.view(), in.view(), matrix); });
    return static_cast<double>(n * k) / seconds;
}

// The smallest of all ranks.
double slowest(Communicator& comm, double rate) {
    return -static_cast<double>(comm.max_host(-std::llround(rate)));
}

}  // namespace

double best_seconds(Backend& backend, const std::function<void()>& work) {
    work();  // scratch grows, caches fill
    backend.synchronize();
    int64_t calls = 1;
    double best = 0;
    const Clock::time_point begin = Clock::now();
    for (int timing = 0; timing < kTimings || seconds_since(begin) < kPatience;) {
        const Clock::time_point start = Clock::now();
        for (int64_t call = 0; call < calls; ++call) work();
        backend.synchronize();
        const double seconds = seconds_since(start);
        if (seconds < kLongEnough && calls < 1 << 20) {
            calls *= 2;
            continue;
        }
        const double each = seconds / static_cast<double>(calls);
        best = best == 0 ? each : std::min(best, each);
        ++timing;
    }
    return best;
}

MachineRates measure_rates(Backend& backend, Communicator& comm, const std::set<Storage>& forms) {
    MachineRates rates;
    comm.barrier();
    rates.read = slowest(comm, std::max(read_rate(backend), backend.best_read()));
    comm.barrier();
    rates.multiply = slowest(comm, backend.best_multiply());
    for (const Storage& form : forms) {
        comm.barrier();
        const double best = std::max({backend.best_decode(form.bits, form.codebook),
                                      product_rate(backend, form, 1024, 1024),
                                      product_rate(backend, form, 8192, 4096)});
        rates.decode[form] = slowest(comm, best);
    }
    return rates;
}

double CollectiveTimes::seconds(const CollectiveCounts& counts) {
    double total = 0;
    for (const auto& [collective, count] : counts) {
        const auto [entry, is_new] = known_.try_emplace(collective, 0.0);
        if (is_new) entry->second = measure(collective);
        total += static_cast<double>(count) * entry->second;
    }
    return total;
}

// As many calls on every rank, whatever their clocks say.
double CollectiveTimes::measure(const Collective& collective) {
    constexpr int kCalls = 10;
    const int64_t bytes = std::min(collective.bytes, kLargestMessage);
    const int64_t sent = collective.all_to_all ? bytes * comm_.size() : bytes;
    const Buffer in(backend_, sent);
    const Buffer out(backend_, bytes * comm_.size());
    double best = 0;
    for (int timing = 0; timing <= kTimings; ++timing) {  // the first warms up
        backend_.synchronize();
        comm_.barrier();
        const Clock::time_point start = Clock::now();
        for (int call = 0; call < kCalls; ++call) {
            if (collective.all_to_all) {
                comm_.all_to_all(out.data(), in.data(), bytes);
            } else {
                comm_.all_gather(out.data(), in.data(), bytes);
            }
        }
        backend_.synchronize();
        const double each = seconds_since(start) / kCalls;
        if (timing > 0) best = timing == 1 ? each : std::min(best, each);
    }
    const double nanoseconds = static_cast<double>(comm_.max_host(std::llround(1e9 * best)));
    const double scale =
        bytes > 0 ? static_cast<double>(collective.bytes) / static_cast<double>(bytes) : 1.0;
    return 1e-9 * nanoseconds * scale;
}

std::set<Storage> exl3_forms(std::span<const OpWork> ops) {
    std::set<Storage> forms;
    for (const OpWork& op : ops) {
        if (op.storage.is_exl3()) forms.insert(op.storage);
    }
    return forms;
}

}  // namespace quadrille
