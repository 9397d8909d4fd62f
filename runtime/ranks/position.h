// SPDX-License-Identifier: Apache-2.0
// Position: where a rank is in its work. Start-up and step loop write it, the watchdog and the
// fatal error line read it from other threads; in the step loop writing is a relaxed store, cheap
// enough for every op.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace quadrille {

// "step 118, layer 3, op moe"; a negative step is the start-up, a negative layer none.
std::string position_text(int64_t step, int32_t layer, const char* op);

class Position {
  public:
    // `op` must be a string literal, or live as long as the program.
    void enter(int64_t step, const char* op) {
        wait();
        step_.store(step, std::memory_order_relaxed);
        layer_.store(-1, std::memory_order_relaxed);
        this->op(op);
    }
    void layer(int32_t layer) { layer_.store(layer, std::memory_order_relaxed); }
    void op(const char* op) {
        op_.store(op, std::memory_order_relaxed);
        marks_.store(marks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // Work of one rank only (writing on rank 0): named, but no mark, so that marks stay comparable.
    void aside(const char* op) {
        wait();
        op_.store(op, std::memory_order_relaxed);
    }

    // Start-up: from begin to wait this rank works by itself, on what about last named (a file, a
    // tensor). Every one of these calls is a sign of life.
    void begin(const char* phase);
    void about(std::string subject);
    void wait() { busy_.store(false, std::memory_order_relaxed); }
    bool busy() const { return busy_.load(std::memory_order_relaxed); }
    int64_t signs() const { return signs_.load(std::memory_order_relaxed); }

    int64_t step() const { return step_.load(std::memory_order_relaxed); }    // -1: start-up
    int32_t layer() const { return layer_.load(std::memory_order_relaxed); }  // -1: none
    const char* op() const { return op_.load(std::memory_order_relaxed); }
    // Rises with every op, on all ranks alike: the rank with the fewest is the one the others wait
    // for.
    int64_t marks() const { return marks_.load(std::memory_order_relaxed); }

    // "start-up, op weights, model.safetensors: tensor lm_head.weight" and the like.
    std::string text() const;

  private:
    std::atomic<int64_t> step_{-1};
    std::atomic<int32_t> layer_{-1};
    std::atomic<const char*> op_{"start"};
    std::atomic<int64_t> marks_{0};
    std::atomic<bool> busy_{false};
    std::atomic<int64_t> signs_{0};
    mutable std::mutex mutex_;
    std::string subject_;
};

}  // namespace quadrille
