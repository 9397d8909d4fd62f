// SPDX-License-Identifier: Apache-2.0
// parallel_for: independent pieces of host work over some threads. Pieces are taken in order by
// whoever is free, so a piece must not depend on who does it.
#pragma once

#include "kernels/error.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace quadrille {

// work(piece) for pieces 0 .. count - 1. The first exception is thrown again here when all threads
// have ended; pieces nobody has begun are left out then.
template <class Work>
void parallel_for(int32_t threads, int64_t count, const Work& work) {
    require(threads > 0, "parallel_for has threads");
    std::atomic<int64_t> next = 0;
    std::exception_ptr failure;
    std::mutex failing;
    const auto run = [&] {
        try {
            for (int64_t piece = next++; piece < count; piece = next++) work(piece);
        } catch (...) {
            next = count;
            const std::lock_guard lock(failing);
            if (failure == nullptr) failure = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> others;
        for (int64_t i = 1; i < threads && i < count; ++i) others.emplace_back(run);
        run();
    }
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace quadrille
