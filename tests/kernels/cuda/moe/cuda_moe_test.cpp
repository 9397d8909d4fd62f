// SPDX-License-Identifier: Apache-2.0
// The mixture of experts on a GPU: any routing against the CPU, and the same bits for a row in any
// company and for any split over ranks.
#include "tests/support/moe_pass.h"
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <array>

namespace quadrille::test {
namespace {

enum class Pack { exl3, native, mixed, kinds };  // kinds: EXL3 of several widths and codebooks

// Experts 0.. and a shared one (the last), all of one intermediate width.
struct Experts {
    std::vector<std::array<MatrixData, 3>> data;
    int64_t width = 0;

    Experts(Random& random, int64_t h, int64_t w, int count, int32_t segments, Pack pack)
        : width(w) {
        for (int e = 0; e <= count; ++e) {
            const auto make = [&](int64_t n, int64_t k) {
                if (pack == Pack::native || (pack == Pack::mixed && e % 4 == 3)) {
                    return MatrixData::native(random, n, k, Dtype::bf16);
                }
                if (pack == Pack::exl3 && e < count) {
                    return MatrixData::exl3(random, n, k, 2, Codebook::mcg);
                }
                return MatrixData::exl3(random, n, k, 2 + e % 3,
                                        e % 2 == 0 ? Codebook::mcg : Codebook::mul1);
            };
            data.push_back({make(width, h), make(width, h), make(h, width)});
            data.back()[2].cut_segments(segments);
        }
    }
    // What a rank holding the channels of segments [first, first + count) has.
    Experts rank(int32_t first, int32_t count) const {
        Experts part = *this;
        for (auto& [gate, up, down] : part.data) {
            const Matrix whole = down.matrix();
            const int64_t from = whole.segment[static_cast<size_t>(first)];
            part.width = whole.segment[static_cast<size_t>(first + count)] - from;
            gate = gate.outputs(from, part.width);
            up = up.outputs(from, part.width);
            down = down.inputs(from, part.width);
            down.cut_segments(count);
        }
        return part;
    }
};

struct Loading {
    bool host_table = true;
    bool shared = true;
    int64_t max_width = 0;    // of intermediate rows; 0: the experts' width
    bool odd_scales = false;  // input scales at odd halves of memory
};

// Experts in a backend's memory.
class Loaded {
  public:
    Loaded(Backend& backend, const Experts& experts, const Loading& how = {})
        : backend_(&backend), uploads_(backend) {
        for (const auto& [gate, up, down] : experts.data) {
            table_.push_back({uploads_.matrix(gate.matrix()), uploads_.matrix(up.matrix()),
                              uploads_.matrix(down.matrix())});
            if (!how.odd_scales) continue;
            for (auto [to, from] : {std::pair{&table_.back().gate, gate.matrix()},
                                    {&table_.back().up, up.matrix()},
                                    {&table_.back().down, down.matrix()}}) {
                if (!from.is_exl3()) continue;
                std::vector<F16> scales(from.suh, from.suh + from.k_padded);
                scales.insert(scales.begin(), F16{});
                to->suh = uploads_.array(scales) + 1;
            }
        }
        weights_.experts = uploads_.array(table_);
        if (how.host_table) weights_.host_experts = table_.data();
        weights_.count = static_cast<int32_t>(table_.size()) - 1;
        weights_.max_width = how.max_width > 0 ? how.max_width : experts.width;
        if (how.shared) weights_.shared = table_.back();
    }

    // known: the shared expert's first products are made before.
    std::vector<float> run(const Pass& pass, int64_t topk, int64_t gap = 0, bool known = false) {
        const int64_t h = table_[0].gate.k;
        const int64_t m = std::ssize(pass.x) / h;
        OnDevice<float> in(*backend_, m, h, pass.x, gap);
        OnDevice<int32_t> ids(*backend_, m, topk, pass.ids, gap);
        OnDevice<float> weights(*backend_, m, topk, pass.weights, gap);
        OnDevice<float> out(*backend_, m, h, gap);
        if (!known) {
            backend_->moe(out.view(), in.view(), ids.view(), weights.view(), weights_);
            return out.result();
        }
        const Mlp& shared = weights_.shared;
        OnDevice<float> gate(*backend_, m, shared.gate.n, gap);
        OnDevice<float> up(*backend_, m, shared.gate.n, gap);
        const std::array<Product, 2> first = {
            {{gate.view(), in.view(), shared.gate}, {up.view(), in.view(), shared.up}}};
        backend_->linears(first);
        backend_->moe(out.view(), in.view(), ids.view(), weights.view(), weights_, gate.view(),
                      up.view());
        return out.result();
    }

  private:
    Backend* backend_;
    Uploads uploads_;
    std::vector<Mlp> table_;
    MoeWeights weights_;
};

// Two products and a gate: twice the error of a product, and a little.
constexpr double kAllowed = 3 * kGpuExl3RelativeRms;

class CudaMoe : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{7};
};

TEST_F(CudaMoe, MatchesTheCpuForAnyRouting) {
    for (const Pack pack : {Pack::exl3, Pack::native, Pack::mixed}) {
        for (const int32_t segments : {1, 2, 4}) {
            const Experts experts(random_, 256, 640, 6, segments, pack);
            Loaded cpu(*cpu_, experts);
            Loaded gpu(*gpu_, experts);
            for (const int64_t m : {1, 3, 9, 40, 150}) {
                Pass pass = random_pass(random_, m, 256, 6, 3);
                pass.ids[0] = -1;  // a slot without an expert
                if (m > 2) pass.ids[3] = pass.ids[4] = pass.ids[5] = -1;  // a row without any
                EXPECT_TRUE(near_enough(gpu.run(pass, 3, 5), cpu.run(pass, 3), kAllowed))
                    << "pack " << static_cast<int>(pack) << " segments " << segments << " m " << m;
            }
        }
    }
}

TEST_F(CudaMoe, AllRowsOnOneExpertAndHundredsOfRows) {
    for (const Pack pack : {Pack::exl3, Pack::native}) {
        const Experts experts(random_, 128, 256, 5, 4, pack);
        Loaded cpu(*cpu_, experts);
        Loaded gpu(*gpu_, experts);
        Pass pass = random_pass(random_, 600, 128, 5, 1);
        EXPECT_TRUE(near_enough(gpu.run(pass, 1), cpu.run(pass, 1), kAllowed));
        std::fill(pass.ids.begin(), pass.ids.end(), 4);
        EXPECT_TRUE(near_enough(gpu.run(pass, 1), cpu.run(pass, 1), kAllowed));
    }
}

TEST_F(CudaMoe, ManyExpertsMostOfThemEmpty) {
    const Experts experts(random_, 256, 128, 70, 1, Pack::exl3);
    Loaded cpu(*cpu_, experts);
    Loaded gpu(*gpu_, experts);
    for (const int64_t m : {1, 3, 20}) {
        const Pass pass = random_pass(random_, m, 256, 70, 8);
        EXPECT_TRUE(near_enough(gpu.run(pass, 8), cpu.run(pass, 8), kAllowed));
    }
}

// Several experts to a thread of the kernel that groups rows, and several rows.
TEST_F(CudaMoe, MoreExpertsThanThreadsOfABlock) {
    const Experts experts(random_, 128, 128, 2100, 1, Pack::exl3);
    Loaded cpu(*cpu_, experts);
    Loaded gpu(*gpu_, experts);
    for (const int64_t m : {5, 300, 400}) {
        Pass pass = random_pass(random_, m, 128, 2100, 4);
        pass.ids[1] = 2099;
        pass.ids[6] = -1;
        EXPECT_TRUE(near_enough(gpu.run(pass, 4), cpu.run(pass, 4), kAllowed));
    }
}

TEST_F(CudaMoe, OneArithmeticPerRow) {
    constexpr int64_t kPool = 200;
    for (const Pack pack : {Pack::exl3, Pack::native, Pack::mixed}) {
        const Experts experts(random_, 256, 640, 5, 4, pack);
        Loaded gpu(*gpu_, experts);
        const Pass pool = random_pass(random_, kPool, 256, 5, 2);
        const std::vector<float> whole = gpu.run(pool, 2);
        for (const int64_t m : {1, 2, 7, 8, 16, 17, 33, 64, 145}) {
            std::vector<int64_t> rows = random_.permutation(kPool);
            rows.resize(static_cast<size_t>(m));
            const Pass part = {gather_rows<float>(pool.x, 256, rows),
                               gather_rows<int32_t>(pool.ids, 2, rows),
                               gather_rows<float>(pool.weights, 2, rows)};
            EXPECT_TRUE(same(gpu.run(part, 2, 3), gather_rows<float>(whole, 256, rows)))
                << "pack " << static_cast<int>(pack) << " m " << m;
        }
    }
}

// Products of few rows rotate their inputs where those and their scales lie as they load them, a
// kernel before does it elsewhere: with the same bits. Channels end within a lane's four, behind
// which lie sentinels; one and two row groups to a tile.
TEST_F(CudaMoe, InputsRotateInsideOrBefore) {
    constexpr int64_t kHidden = 201;
    for (const Pack pack : {Pack::exl3, Pack::mixed, Pack::kinds}) {
        const Experts experts(random_, kHidden, 213, 5, 2, pack);
        Loaded inside(*gpu_, experts, {.max_width = 216});
        Loaded wide_rows(*gpu_, experts, {.max_width = 217});
        Loaded odd_scales(*gpu_, experts, {.max_width = 216, .odd_scales = true});
        Loaded cpu(*cpu_, experts);
        for (const int64_t m : {1, 4, 13, 20}) {
            Pass pass = random_pass(random_, m, kHidden, 5, 3);
            pass.ids[2] = -1;
            const std::vector<float> found = inside.run(pass, 3, 3);  // rows of 204
            const std::string what =
                "pack " + std::to_string(static_cast<int>(pack)) + " m " + std::to_string(m);
            EXPECT_TRUE(near_enough(found, cpu.run(pass, 3), kAllowed)) << what;
            EXPECT_TRUE(same(inside.run(pass, 3, 2), found)) << what;
            EXPECT_TRUE(same(wide_rows.run(pass, 3, 3), found)) << what;
            EXPECT_TRUE(same(odd_scales.run(pass, 3, 3), found)) << what;
        }
    }
}

// Hundreds of rows an expert, and about 14: tiles of 128 and of 16 rows, and short ones, of experts
// and of ranks (Exl3Plan.ShapesOfTestsTakeLargeTiles).
TEST_F(CudaMoe, ManyRowsHaveTheBitsOfFew) {
    struct Case {
        int64_t hidden;
        int64_t width;
        int32_t experts;
        int64_t rows;
        int64_t slots;
        int64_t few;
    };
    for (const Case& one : {Case{384, 1152, 3, 700, 2, 28}, Case{640, 640, 24, 336, 1, 7}}) {
        for (const int32_t segments : {1, 4}) {
            const Experts experts(random_, one.hidden, one.width, one.experts, segments,
                                  Pack::exl3);
            Loaded gpu(*gpu_, experts);
            Pass pass = random_pass(random_, one.rows, one.hidden, one.experts, one.slots);
            // The first expert has few rows, some slots none.
            for (size_t pair = 40; pair < pass.ids.size(); ++pair) {
                if (pass.ids[pair] == 0) pass.ids[pair] = pair % 3 == 0 ? -1 : 1;
            }
            const std::vector<float> whole = gpu.run(pass, one.slots);
            for (int64_t first = 0; first < one.rows; first += one.few) {
                std::vector<int64_t> rows;
                for (int64_t r = first; r < first + one.few; ++r) rows.push_back(r);
                const Pass part = {gather_rows<float>(pass.x, one.hidden, rows),
                                   gather_rows<int32_t>(pass.ids, one.slots, rows),
                                   gather_rows<float>(pass.weights, one.slots, rows)};
                EXPECT_TRUE(
                    same(gpu.run(part, one.slots), gather_rows<float>(whole, one.hidden, rows)))
                    << "experts " << one.experts << " segments " << segments << " from " << first;
            }
            Loaded cpu(*cpu_, experts);
            EXPECT_TRUE(near_enough(whole, cpu.run(pass, one.slots), kAllowed));
        }
    }
}

// So many outputs that a thread sums four columns, where those lie as it loads them; more slots
// than it loads at once, some of them without an expert.
TEST_F(CudaMoe, ManyOutputsHaveTheBitsOfFew) {
    constexpr int64_t kRows = 2056;
    constexpr int64_t kSlots = 9;
    for (const int32_t segments : {1, 2, 4}) {
        const Experts experts(random_, 128, 128, 10, segments, Pack::exl3);
        Loaded gpu(*gpu_, experts);
        Pass pass = random_pass(random_, kRows, 128, 10, kSlots);
        for (size_t pair = 0; pair < pass.ids.size(); ++pair) {
            if (pair % 5 == 0 || pair / kSlots == 3) pass.ids[pair] = pair % 2 == 0 ? -1 : 10;
        }
        const std::vector<float> whole = gpu.run(pass, kSlots);
        EXPECT_TRUE(same(gpu.run(pass, kSlots, 3), whole)) << segments;
        const std::vector<int64_t> rows = {0, 3, 4, 1000, kRows - 1};
        const Pass part = {gather_rows<float>(pass.x, 128, rows),
                           gather_rows<int32_t>(pass.ids, kSlots, rows),
                           gather_rows<float>(pass.weights, kSlots, rows)};
        EXPECT_TRUE(same(gpu.run(part, kSlots), gather_rows<float>(whole, 128, rows))) << segments;
    }
}

// More than eight blocks of inputs and of intermediate channels, and no multiple of eight: of tiles
// of every size, with up to all of their rows.
TEST_F(CudaMoe, ManyBlocksOfInputs) {
    const Experts experts(random_, 1300, 1152, 3, 1, Pack::kinds);
    Loaded inside(*gpu_, experts);
    Loaded before(*gpu_, experts, {.odd_scales = true});
    Loaded cpu(*cpu_, experts);
    for (const int64_t m : {2, 9, 20, 45, 100}) {
        Pass pass = random_pass(random_, m, 1300, 3, 1);
        for (size_t pair = 0; pair < pass.ids.size(); pair += 3) pass.ids[pair] = 1;
        const std::vector<float> found = before.run(pass, 1);
        EXPECT_TRUE(near_enough(found, cpu.run(pass, 1), kAllowed)) << m;
        EXPECT_TRUE(same(inside.run(pass, 1, 4), found)) << m;
    }
}

TEST_F(CudaMoe, RanksGiveTheBitsOfTheWhole) {
    for (const Pack pack : {Pack::exl3, Pack::native}) {
        const Experts experts(random_, 256, 1280, 5, 4, pack);
        for (const int64_t m : {3, 70}) {
            const Pass pass = random_pass(random_, m, 256, 5, 2);
            const std::vector<float> whole = Loaded(*gpu_, experts).run(pass, 2);
            for (const int32_t ranks : {2, 4}) {
                std::vector<float> parts;
                for (int32_t rank = 0; rank < ranks; ++rank) {
                    Loaded part(*gpu_, experts.rank(rank * 4 / ranks, 4 / ranks));
                    const auto sums = part.run(pass, 2);
                    parts.insert(parts.end(), sums.begin(), sums.end());
                }
                Uploads uploads(*gpu_);
                OnDevice<float> total(*gpu_, m, 256);
                gpu_->tree_sum(total.view(), uploads.array(parts), ranks, m * 256);
                EXPECT_TRUE(same(total.result(), whole)) << ranks;
            }
        }
    }
}

TEST_F(CudaMoe, WorksWithoutAHostTableAndWithoutASharedExpert) {
    const Experts experts(random_, 128, 128, 3, 1, Pack::exl3);
    const Pass pass = random_pass(random_, 5, 128, 3, 2);
    const auto with = Loaded(*gpu_, experts).run(pass, 2);
    EXPECT_TRUE(same(Loaded(*gpu_, experts, {.host_table = false}).run(pass, 2), with));
    Loaded cpu(*cpu_, experts, {.shared = false});
    EXPECT_TRUE(near_enough(Loaded(*gpu_, experts, {.shared = false}).run(pass, 2),
                            cpu.run(pass, 2), kAllowed));
}

// Several slabs of rows too.
TEST_F(CudaMoe, TakesTheSharedExpertsFirstProducts) {
    for (const Pack pack : {Pack::exl3, Pack::native, Pack::mixed}) {
        const Experts experts(random_, 128, 384, 5, 2, pack);
        Loaded gpu(*gpu_, experts);
        for (const int64_t m : {1, 3, 20, 150, 1500}) {
            const Pass pass = random_pass(random_, m, 128, 5, 3);
            EXPECT_TRUE(same(gpu.run(pass, 3, 4, true), gpu.run(pass, 3)))
                << "pack " << static_cast<int>(pack) << " m " << m;
        }
    }
}

}  // namespace
}  // namespace quadrille::test
