// SPDX-License-Identifier: Apache-2.0
// Routing, and the mixture of experts against the same sums written with single products: bit for
// bit, for any company, any split over ranks, and experts of different kinds.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/matrices.h"
#include "tests/support/moe_pass.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quadrille::test {
namespace {

TEST(Route, ChoosesByBiasedScoreAndWeighsByScore) {
    cpu::CpuBackend backend;
    Random random(3);
    constexpr int64_t kRows = 33;
    constexpr int64_t kExperts = 19;
    constexpr int64_t kTopk = 8;
    const std::vector<float> logits = random.normals(kRows * kExperts, 2.0f);
    const std::vector<float> bias = random.normals(kExperts);
    Guarded<int32_t> ids(kRows, kTopk, 1);
    Guarded<float> weights(kRows, kTopk, 2);
    backend.route(ids.view(), weights.view(), {logits.data(), kRows, kExperts}, bias.data(), 2.5f,
                  Rows());
    EXPECT_TRUE(ids.written());
    EXPECT_TRUE(weights.written());
    std::vector<float> expected;
    for (int64_t r = 0; r < kRows; ++r) {
        std::vector<double> score;
        std::vector<int32_t> order(kExperts);
        std::iota(order.begin(), order.end(), 0);
        for (int64_t e = 0; e < kExperts; ++e) {
            const double x = double{logits[static_cast<size_t>(r * kExperts + e)]};
            score.push_back(1 / (1 + std::exp(-x)));
        }
        const auto biased = [&](int32_t e) {
            return score[static_cast<size_t>(e)] + double{bias[static_cast<size_t>(e)]};
        };
        std::sort(order.begin(), order.end(),
                  [&](int32_t a, int32_t b) { return biased(a) > biased(b); });
        double total = 0;
        for (size_t slot = 0; slot < kTopk; ++slot)
            total += score[static_cast<size_t>(order[slot])];
        for (size_t slot = 0; slot < kTopk; ++slot) {
            EXPECT_EQ(ids.view().row(r)[slot], order[slot]);
            expected.push_back(
                static_cast<float>(score[static_cast<size_t>(order[slot])] / total * 2.5));
        }
    }
    EXPECT_TRUE(close(weights.values(), expected, reduced(kTopk)));
}

TEST(Route, TiesGoToTheLowestIdAndNanIsChosenLast) {
    cpu::CpuBackend backend;
    const std::vector<float> bias(4, 0.0f);
    const std::vector<float> logits = {1, 2, 2, 1, 0, NAN, -3, NAN, NAN, NAN, NAN, NAN};
    Guarded<int32_t> ids(3, 3);
    Guarded<float> weights(3, 3);
    backend.route(ids.view(), weights.view(), {logits.data(), 3, 4}, bias.data(), 1.0f, Rows());
    EXPECT_TRUE(same(ids.values(), std::vector<int32_t>{1, 2, 0, 0, 2, 1, 0, 1, 2}));
}

// Experts 0.. of mixed kinds and a shared one, all of one intermediate width.
struct Experts {
    std::vector<std::array<MatrixData, 3>> data;  // the last is the shared one
    std::vector<Mlp> table;
    MoeWeights weights;

    Experts(Random& random, int64_t h, int64_t width, int count, int32_t segments) {
        for (int e = 0; e <= count; ++e) {
            const auto make = [&](int64_t n, int64_t k) {
                if (e % 4 == 3) return MatrixData::native(random, n, k, Dtype::bf16);
                return MatrixData::exl3(random, n, k, 2 + e % 3,
                                        e % 2 == 0 ? Codebook::mcg : Codebook::mul1);
            };
            data.push_back({make(width, h), make(width, h), make(h, width)});
            data.back()[2].cut_segments(segments);
        }
        fill();
    }

    void fill() {
        table.clear();
        for (const auto& [gate, up, down] : data) {
            table.push_back({gate.matrix(), up.matrix(), down.matrix()});
            weights.max_width = std::max(weights.max_width, gate.n());
        }
        weights.experts = table.data();
        weights.count = static_cast<int32_t>(table.size()) - 1;
        weights.shared = table.back();
    }

    // What a rank holding the channels of segments [first, first + count) has.
    Experts rank(int32_t first, int32_t count) const {
        Experts part = *this;
        for (auto& [gate, up, down] : part.data) {
            const Matrix whole = down.matrix();
            const int64_t from = whole.segment[static_cast<size_t>(first)];
            const int64_t width = whole.segment[static_cast<size_t>(first + count)] - from;
            gate = gate.outputs(from, width);
            up = up.outputs(from, width);
            down = down.inputs(from, width);
            down.cut_segments(count);
        }
        part.fill();
        return part;
    }
};

// The formula with one product per (row, slot, segment).
std::vector<float> reference(cpu::CpuBackend& backend, const Experts& experts,
                             std::span<const float> x, std::span<const int32_t> ids,
                             std::span<const float> weights, int64_t topk) {
    const int64_t h = experts.table[0].gate.k;
    const int32_t segments = experts.weights.shared.down.segments;
    const auto hidden_of = [&](const Mlp& mlp, const float* row) {
        std::vector<float> gate(static_cast<size_t>(mlp.gate.n));
        std::vector<float> up(gate.size());
        backend.linear({gate.data(), 1, mlp.gate.n}, {row, 1, h}, mlp.gate);
        backend.linear({up.data(), 1, mlp.gate.n}, {row, 1, h}, mlp.up);
        backend.swiglu({gate.data(), 1, mlp.gate.n}, {gate.data(), 1, mlp.gate.n},
                       {up.data(), 1, mlp.gate.n}, experts.weights.limit);
        return gate;
    };
    const auto down_of = [&](size_t e, int32_t s, const std::vector<float>& hidden) {
        const MatrixData& down = experts.data[e][2];
        const Matrix whole = down.matrix();
        const int64_t from = segments == 1 ? 0 : whole.segment[static_cast<size_t>(s)];
        const int64_t to = segments == 1 ? whole.k : whole.segment[static_cast<size_t>(s) + 1];
        std::vector<float> y(static_cast<size_t>(h));
        backend.linear({y.data(), 1, h}, {hidden.data() + from, 1, to - from},
                       down.inputs(from, to - from).matrix());
        return y;
    };
    std::vector<float> out;
    for (int64_t r = 0; r < std::ssize(x) / h; ++r) {
        std::vector<float> parts(static_cast<size_t>(segments * h), 0.0f);
        for (int64_t slot = 0; slot <= topk; ++slot) {
            const bool shared = slot == topk;
            const auto at = static_cast<size_t>(r * topk + slot);
            if (!shared && ids[at] < 0) continue;
            const size_t e = shared ? experts.data.size() - 1 : static_cast<size_t>(ids[at]);
            const std::vector<float> hidden = hidden_of(experts.table[e], x.data() + r * h);
            for (int32_t s = 0; s < segments; ++s) {
                const std::vector<float> y = down_of(e, s, hidden);
                for (int64_t c = 0; c < h; ++c) {
                    const float value = y[static_cast<size_t>(c)];
                    parts[static_cast<size_t>(s * h + c)] += shared ? value : weights[at] * value;
                }
            }
        }
        std::vector<float> row(static_cast<size_t>(h));
        backend.tree_sum({row.data(), 1, h}, parts.data(), segments, h);
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

std::vector<float> run(cpu::CpuBackend& backend, const Experts& experts, std::span<const float> x,
                       std::span<const int32_t> ids, std::span<const float> weights, int64_t topk,
                       int64_t gap = 0) {
    const int64_t h = experts.table[0].gate.k;
    const int64_t m = std::ssize(x) / h;
    const Guarded<float> in(m, h, x, gap);
    const Guarded<int32_t> id(m, topk, ids, gap);
    const Guarded<float> weight(m, topk, weights, gap);
    Guarded<float> out(m, h, gap);
    backend.moe(out.view(), in.view(), id.view(), weight.view(), experts.weights);
    EXPECT_TRUE(out.written());
    return out.values();
}

TEST(Moe, IsTheSumInSlotOrderPerSegment) {
    cpu::CpuBackend backend;
    Random random(5);
    for (const int32_t segments : {1, 2, 4}) {
        const Experts experts(random, 192, 448, 6, segments);
        Pass pass = random_pass(random, 9, 192, 6, 3);
        pass.ids[0] = -1;                              // a slot without an expert
        pass.ids[3] = pass.ids[4] = pass.ids[5] = -1;  // a row without any
        EXPECT_TRUE(same(run(backend, experts, pass.x, pass.ids, pass.weights, 3),
                         reference(backend, experts, pass.x, pass.ids, pass.weights, 3)))
            << segments;
    }
}

TEST(Moe, AllRowsToOneExpertAndMoreRowsThanOneGroup) {
    cpu::CpuBackend backend;
    Random random(6);
    const Experts experts(random, 128, 128, 2, 4);
    const Pass pass = random_pass(random, 300, 128, 2, 1);
    std::vector<int32_t> one(300, 1);
    EXPECT_TRUE(same(run(backend, experts, pass.x, one, pass.weights, 1),
                     reference(backend, experts, pass.x, one, pass.weights, 1)));
    EXPECT_TRUE(same(run(backend, experts, pass.x, pass.ids, pass.weights, 1),
                     reference(backend, experts, pass.x, pass.ids, pass.weights, 1)));
}

TEST(Moe, OneArithmeticPerRow) {
    cpu::CpuBackend backend;
    Random random(8);
    constexpr int64_t kPool = 11;
    const Experts experts(random, 192, 320, 5, 4);
    const Pass pool = random_pass(random, kPool, 192, 5, 2);
    expect_one_arithmetic_per_row(kPool, 192, [&](std::span<const int64_t> rows, int64_t gap) {
        return run(backend, experts, gather_rows<float>(pool.x, 192, rows),
                   gather_rows<int32_t>(pool.ids, 2, rows),
                   gather_rows<float>(pool.weights, 2, rows), 2, gap);
    });
}

// 2 and 4 ranks hold 2 and 1 of the segments; their sums meet in the tree.
TEST(Moe, RanksGiveTheBitsOfTheWhole) {
    cpu::CpuBackend backend;
    Random random(9);
    const Experts experts(random, 256, 640, 5, 4);
    const Pass pass = random_pass(random, 7, 256, 5, 2);
    const std::vector<float> whole = run(backend, experts, pass.x, pass.ids, pass.weights, 2);
    for (const int32_t ranks : {2, 4}) {
        std::vector<float> parts;
        for (int32_t rank = 0; rank < ranks; ++rank) {
            const Experts part = experts.rank(rank * 4 / ranks, 4 / ranks);
            const auto sums = run(backend, part, pass.x, pass.ids, pass.weights, 2);
            parts.insert(parts.end(), sums.begin(), sums.end());
        }
        std::vector<float> total(whole.size());
        backend.tree_sum({total.data(), 7, 256}, parts.data(), ranks, 7 * 256);
        EXPECT_TRUE(same(total, whole)) << ranks;
    }
}

TEST(Moe, WorksWithoutASharedExpertAndRefusesUnknownIds) {
    cpu::CpuBackend backend;
    Random random(10);
    Experts experts(random, 128, 128, 3, 1);
    const Pass pass = random_pass(random, 2, 128, 3, 2);
    const std::vector<float> with = run(backend, experts, pass.x, pass.ids, pass.weights, 2);
    std::vector<int32_t> none(4, -1);
    const std::vector<float> shared = run(backend, experts, pass.x, none, pass.weights, 2);
    experts.weights.shared = {};
    const std::vector<float> without = run(backend, experts, pass.x, pass.ids, pass.weights, 2);
    for (size_t i = 0; i < with.size(); ++i) EXPECT_EQ(with[i], without[i] + shared[i]);
    none[2] = 3;
    std::vector<float> y(2 * 128);
    EXPECT_THROW(backend.moe({y.data(), 2, 128}, {pass.x.data(), 2, 128}, {none.data(), 2, 2},
                             {pass.weights.data(), 2, 2}, experts.weights),
                 Error);
}

// What is known of the shared expert beforehand has the bits of what moe makes itself.
TEST(Moe, TakesTheSharedExpertsFirstProducts) {
    cpu::CpuBackend backend;
    Random random(11);
    const Experts experts(random, 128, 320, 3, 2);
    const Pass pass = random_pass(random, 70, 128, 3, 2);
    const View<const float> in(pass.x.data(), 70, 128);
    std::vector<float> gate(70 * 320);
    std::vector<float> up(70 * 320);
    backend.linear({gate.data(), 70, 320}, in, experts.weights.shared.gate);
    backend.linear({up.data(), 70, 320}, in, experts.weights.shared.up);
    std::vector<float> out(70 * 128);
    const auto known = [&](int64_t rows) {
        backend.moe({out.data(), 70, 128}, in, {pass.ids.data(), 70, 2},
                    {pass.weights.data(), 70, 2}, experts.weights, {gate.data(), rows, 320},
                    {up.data(), rows, 320});
    };
    known(70);
    EXPECT_TRUE(same(out, run(backend, experts, pass.x, pass.ids, pass.weights, 2)));
    EXPECT_THROW(known(69), Error);
}

}  // namespace
}  // namespace quadrille::test
