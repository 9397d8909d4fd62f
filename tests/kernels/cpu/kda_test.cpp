// SPDX-License-Identifier: Apache-2.0
// kda and kda_flush against the recurrence in double precision, and the promise of deferred commit:
// however 40 tokens are cut into prefill chunks, decode steps with rejected rows and flushes, every
// output and the final state have the same bits. Unused memory is NaN throughout: reading it shows.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/kda_recurrence.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

constexpr float kGarbage = std::numeric_limits<float>::quiet_NaN();

class Memory {
  public:
    Memory(const KdaCase& of, int64_t slots, int64_t max_pending)
        : state_(filled(slots, of.c * of.params.head_dim)),
          conv_(filled(slots, (of.params.taps - 1) * 3 * of.c)),
          qkv_(filled(slots, max_pending * 3 * of.c)),
          decay_(filled(slots, max_pending * of.c)),
          beta_(filled(slots, max_pending * of.params.heads)) {}

    KdaState kda() {
        return {state_.view(), conv_.view(), qkv_.view(), decay_.view(), beta_.view()};
    }
    std::vector<float> committed(int64_t slot) const {
        std::vector<float> all;
        for (const auto* part : {&state_, &conv_}) {
            const View<const float> view = part->view();
            all.insert(all.end(), view.row(slot), view.row(slot) + view.cols);
        }
        return all;
    }
    testing::AssertionResult intact() const {
        for (const auto* part : {&state_, &conv_, &qkv_, &decay_, &beta_}) {
            if (!part->intact()) return part->intact();
        }
        return testing::AssertionSuccess();
    }

  private:
    static Guarded<float> filled(int64_t slots, int64_t cols) {
        const std::vector<float> garbage(static_cast<size_t>(slots * cols), kGarbage);
        return {slots, cols, garbage, 3};
    }
    Guarded<float> state_, conv_, qkv_, decay_, beta_;
};

// The rows of a pass come from here.
struct Source {
    const KdaInputs* inputs;
    int64_t first;
};

// Runs one pass; each row of the layout takes its values from sources[row].
std::vector<float> run(cpu::CpuBackend& backend, const KdaCase& of, Memory& memory,
                       const RowLayout& layout, const std::vector<Source>& sources,
                       int64_t gap = 0) {
    const auto pick = [&](const std::vector<float> KdaInputs::*part, int64_t cols) {
        std::vector<float> values;
        for (const Source& source : sources) {
            const float* row = (source.inputs->*part).data() + source.first * cols;
            values.insert(values.end(), row, row + cols);
        }
        return Guarded<float>(layout.m(), cols, values, gap);
    };
    Guarded<float> out(layout.m(), of.c, gap);
    backend.kda(
        {out.view(), pick(&KdaInputs::qkv, 3 * of.c).view(), pick(&KdaInputs::f, of.c).view(),
         pick(&KdaInputs::b, of.params.heads).view(), pick(&KdaInputs::g, of.c).view()},
        of.weights(), memory.kda(), of.params, layout.rows());
    EXPECT_TRUE(out.written());
    EXPECT_TRUE(memory.intact());
    return out.values();
}

std::vector<Source> consecutive(const KdaInputs& inputs, int64_t first, int64_t count) {
    std::vector<Source> sources;
    for (int64_t i = 0; i < count; ++i) sources.push_back({&inputs, first + i});
    return sources;
}

struct Result {
    std::vector<float> outputs;
    std::vector<float> committed;
};

Result prefilled(const KdaCase& of, const KdaInputs& inputs, int32_t count) {
    cpu::CpuBackend backend;
    Memory memory(of, 1, 1);
    RowLayout layout(true);
    layout.add(0, 0, count);
    Result result;
    result.outputs = run(backend, of, memory, layout, consecutive(inputs, 0, count));
    result.committed = memory.committed(0);
    return result;
}

TEST(Kda, FollowsTheRecurrence) {
    for (const auto& [heads, d, taps] :
         {std::array{4, 128, 4}, {3, 16, 4}, {2, 21, 3}, {1, 8, 1}}) {
        const KdaCase of(heads, d, taps, 1);
        const KdaInputs inputs = of.tokens(20, 2);
        const Result found = prefilled(of, inputs, 20);
        KdaRecurrence recurrence(of);
        std::vector<float> outputs;
        for (int64_t t = 0; t < 20; ++t) {
            const std::vector<float> row = recurrence.step(inputs, t);
            outputs.insert(outputs.end(), row.begin(), row.end());
        }
        EXPECT_TRUE(close(found.outputs, outputs, reduced(20 * d))) << heads << " x " << d;
        const std::vector<float> state = recurrence.state();
        EXPECT_TRUE(close({found.committed.data(), state.size()}, state, reduced(20 * d)));
        // The history: the last raw inputs, oldest first.
        const std::vector<float> history(inputs.qkv.end() - (taps - 1) * 3 * of.c,
                                         inputs.qkv.end());
        EXPECT_TRUE(same({found.committed.data() + state.size(), history.size()}, history));
    }
}

// One sequence as the engine drives it: chunks, decode steps with some rows rejected, flushes.
class Driven {
  public:
    Driven(const KdaCase& of, const KdaInputs& inputs, int32_t slot, uint64_t seed)
        : of_(of), inputs_(inputs), random_(seed), slot_(slot) {}

    int32_t position() const { return position_; }
    int32_t slot() const { return slot_; }
    int32_t pending() const { return pending_; }

    // Adds rows to a pass; `accept` of them are the true tokens, the others are noise.
    void add(RowLayout& layout, std::vector<Source>& sources, int32_t rows, int32_t accept,
             const KdaInputs& noise) {
        layout.add(slot_, position_, rows, pending_);
        for (int32_t i = 0; i < rows; ++i) {
            if (i < accept) {
                sources.push_back({&inputs_, position_ + i});
            } else {
                sources.push_back({&noise, random_.integer(0, 15)});
            }
        }
        added_ = accept;
    }
    void take(const float* outputs, bool commit) {
        result.outputs.insert(result.outputs.end(), outputs, outputs + added_ * of_.c);
        position_ += added_;
        pending_ = commit ? 0 : added_;
    }
    void flush(cpu::CpuBackend& backend, Memory& memory) {
        backend.kda_flush(of_.weights(), memory.kda(), of_.params, slot_, pending_,
                          position_ == pending_);
        pending_ = 0;
    }
    Random& random() { return random_; }

    Result result;

  private:
    const KdaCase& of_;
    const KdaInputs& inputs_;
    Random random_;
    int32_t slot_;
    int32_t position_ = 0;
    int32_t pending_ = 0;
    int32_t added_ = 0;
};

TEST(Kda, AnySplitOfASequenceGivesTheSameBits) {
    constexpr int32_t kTokens = 40;
    constexpr int32_t kMaxRows = 8;
    const KdaCase of(2, 24, 4, 3);
    const KdaInputs noise = of.tokens(16, 9);
    std::vector<KdaInputs> inputs;
    std::vector<Result> expected;
    for (uint64_t s = 0; s < 3; ++s) {
        inputs.push_back(of.tokens(kTokens, 10 + s));
        expected.push_back(prefilled(of, inputs.back(), kTokens));
    }
    for (uint64_t trial = 0; trial < 60; ++trial) {
        cpu::CpuBackend backend;
        Memory memory(of, 5, kMaxRows);
        Random random(trial);
        std::vector<Driven> driven;
        const std::vector<int64_t> slots = random.permutation(5);
        for (size_t s = 0; s < inputs.size(); ++s) {
            driven.emplace_back(of, inputs[s], static_cast<int32_t>(slots[s]), 100 * trial + s);
        }
        for (bool busy = true; busy;) {
            const bool commit = random.integer(0, 3) == 0;
            RowLayout layout(commit);
            std::vector<Source> sources;
            std::vector<std::pair<Driven*, int32_t>> in_pass;
            for (Driven& one : driven) {
                const int32_t left = kTokens - one.position();
                if (left == 0 || random.integer(0, 3) == 0) continue;
                const auto rows = static_cast<int32_t>(random.integer(1, commit ? 20 : kMaxRows));
                const int32_t most = std::min(rows, left);
                const int32_t accept =
                    commit ? most : static_cast<int32_t>(random.integer(1, most));
                in_pass.emplace_back(&one, layout.m());
                one.add(layout, sources, commit ? accept : rows, accept, noise);
            }
            const std::vector<float> out = run(backend, of, memory, layout, sources);
            for (const auto& [one, row] : in_pass) one->take(out.data() + row * of.c, commit);
            busy = false;
            for (Driven& one : driven) {
                if (random.integer(0, 5) == 0 && one.position() > 0) one.flush(backend, memory);
                busy = busy || one.position() < kTokens;
            }
        }
        for (size_t s = 0; s < driven.size(); ++s) {
            driven[s].flush(backend, memory);
            EXPECT_TRUE(same(driven[s].result.outputs, expected[s].outputs)) << "trial " << trial;
            EXPECT_TRUE(same(memory.committed(driven[s].slot()), expected[s].committed))
                << "trial " << trial;
        }
    }
}

TEST(Kda, PlainDecodingIsOnePendingRow) {
    const KdaCase of(1, 128, 4, 5);
    const KdaInputs inputs = of.tokens(12, 6);
    const Result expected = prefilled(of, inputs, 12);
    cpu::CpuBackend backend;
    Memory memory(of, 1, 1);
    std::vector<float> outputs;
    for (int32_t t = 0; t < 12; ++t) {
        RowLayout layout;
        layout.add(0, t, 1, t == 0 ? 0 : 1);
        const std::vector<float> row = run(backend, of, memory, layout, consecutive(inputs, t, 1));
        outputs.insert(outputs.end(), row.begin(), row.end());
    }
    backend.kda_flush(of.weights(), memory.kda(), of.params, 0, 1, false);
    EXPECT_TRUE(same(outputs, expected.outputs));
    EXPECT_TRUE(same(memory.committed(0), expected.committed));
}

TEST(Kda, AReusedSlotStartsFromZero) {
    const KdaCase of(2, 16, 4, 7);
    const KdaInputs inputs = of.tokens(8, 8);
    const Result expected = prefilled(of, inputs, 8);
    for (const bool commit : {true, false}) {
        cpu::CpuBackend backend;
        Memory memory(of, 1, 8);
        for (int32_t record = 0; record < 2; ++record) {
            RowLayout layout(commit);
            layout.add(0, 0, 8);
            EXPECT_TRUE(same(run(backend, of, memory, layout, consecutive(inputs, 0, 8)),
                             expected.outputs));
            backend.kda_flush(of.weights(), memory.kda(), of.params, 0, commit ? 0 : 8, !commit);
            EXPECT_TRUE(same(memory.committed(0), expected.committed)) << commit;
        }
    }
}

TEST(Kda, PaddingRowsAreZeroAndTouchNothing) {
    const KdaCase of(2, 16, 4, 7);
    const KdaInputs inputs = of.tokens(8, 8);
    cpu::CpuBackend backend;
    Memory memory(of, 2, 4);
    Memory alone(of, 2, 4);
    RowLayout layout;
    layout.add(-1, 3, 3, 2);
    layout.add(1, 0, 2);
    layout.add(-1, 0, 1);
    std::vector<Source> sources = consecutive(inputs, 0, 3);
    for (const Source& source : consecutive(inputs, 4, 2)) sources.push_back(source);
    sources.push_back({&inputs, 7});
    const std::vector<float> out = run(backend, of, memory, layout, sources, 5);
    RowLayout one;
    one.add(1, 0, 2);
    const std::vector<float> expected = run(backend, of, alone, one, consecutive(inputs, 4, 2));
    const std::vector<float> zeros(static_cast<size_t>(3 * of.c));
    EXPECT_TRUE(same({out.data(), zeros.size()}, zeros));
    EXPECT_TRUE(same({out.data() + 3 * of.c, expected.size()}, expected));
    EXPECT_TRUE(same({out.data() + 5 * of.c, size_t(of.c)}, {zeros.data(), size_t(of.c)}));
    for (const float value : memory.committed(0)) EXPECT_TRUE(std::isnan(value));
}

TEST(Kda, RefusesMoreDecodedRowsThanCanWait) {
    const KdaCase of(1, 8, 4, 1);
    const KdaInputs inputs = of.tokens(8, 1);
    cpu::CpuBackend backend;
    Memory memory(of, 1, 3);
    RowLayout layout;
    layout.add(0, 0, 4);
    Guarded<float> out(4, of.c);
    Guarded<float> qkv(4, 3 * of.c, {inputs.qkv.data(), size_t(4 * 3 * of.c)});
    Guarded<float> b(4, 1, {inputs.b.data(), 4});
    Guarded<float> f(4, of.c, {inputs.f.data(), size_t(4 * of.c)});
    const auto step = [&](const RowLayout& rows) {
        backend.kda({out.view(), qkv.view(), f.view(), b.view(), f.view()}, of.weights(),
                    memory.kda(), of.params, rows.rows());
    };
    expect_error(ErrorKind::internal, {"pending"}, [&] { step(layout); });
    RowLayout pending(true);
    pending.add(0, 1, 4, 2);  // more pending rows than cached tokens
    expect_error(ErrorKind::internal, {"pending"}, [&] { step(pending); });
    RowLayout slot(true);
    slot.add(1, 0, 4);
    expect_error(ErrorKind::internal, {"slot"}, [&] { step(slot); });
}

}  // namespace
}  // namespace quadrille
