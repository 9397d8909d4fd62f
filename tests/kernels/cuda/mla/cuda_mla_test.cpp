// SPDX-License-Identifier: Apache-2.0
// Indexer and latent attention on a GPU against the CPU, over prefill and decode, and their
// promise: a row attends and chooses the same in any company.
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

namespace quadrille::test {
namespace {

// A small indexer and attention over slots of `capacity` positions.
struct MlaCase {
    IndexParams index;
    MlaParams mla;
    int64_t capacity = 640;
    int32_t ring = 16;
    MatrixData kv_b;
    std::vector<uint16_t> picks;  // bf16, instead of kv_b
    std::vector<float> ape;

    MlaCase(Random& random, int32_t heads, int32_t latent)
        : MlaCase(random, {heads, 64, 96, latent}, Dtype::bf16) {}
    MlaCase(Random& random, const MlaParams& params, Dtype dtype)
        : mla(params),
          kv_b(MatrixData::native(random, params.heads * (params.key_dim + params.value_dim),
                                  params.latent_dim, dtype)) {
        index.heads = 8;
        index.head_dim = 64;
        index.topk = 128;
        ape = random.normals(index.pool * index.head_dim);
    }
    Matrix weights() const {
        Matrix matrix = kv_b.matrix();
        if (!picks.empty()) matrix.weights = picks.data();
        return matrix;
    }
};

struct MlaTokens {
    std::vector<float> key, gate, latent, query, weight, attention;

    MlaTokens(const MlaCase& of, int64_t count, Random& random)
        : key(random.normals(count * of.index.head_dim)),
          gate(random.normals(count * of.index.head_dim)),
          latent(random.normals(count * of.mla.latent_dim)),
          query(random.normals(count * of.index.heads * of.index.head_dim)),
          weight(random.normals(count * of.index.heads)),
          attention(random.normals(count * of.mla.heads * of.mla.key_dim, 2.0f)) {}
};

struct MlaResult {
    std::vector<int32_t> selected;
    std::vector<float> out;
};

class MlaRun {
  public:
    MlaRun(Backend& backend, const MlaCase& of, int64_t slots)
        : backend_(backend),
          of_(of),
          pools_(backend, slots, of.capacity / of.index.pool * of.index.head_dim, 5),
          ring_(backend, slots, of.ring * 2 * of.index.head_dim, 5),
          latents_(backend, slots, of.capacity * of.mla.latent_dim, 5) {}

    MlaResult pass(const RowLayout& layout, const MlaTokens& tokens,
                   const std::vector<int64_t>& at) {
        Uploads uploads(backend_);
        const int64_t m = layout.m();
        const auto pick = [&](const std::vector<float>& from, int64_t cols) {
            return OnDevice<float>(backend_, m, cols, gather_rows<float>(from, cols, at), 4);
        };
        const Rows rows = uploads.rows(layout.rows());
        const IndexCache cache = {pools_.view(), ring_.view(), of_.ring};
        const int64_t width = of_.index.topk + of_.index.pool - 1;
        OnDevice<int32_t> selected(backend_, m, width, 2);
        OnDevice<int32_t> count(backend_, 1, m);
        OnDevice<float> out(backend_, m, of_.mla.heads * of_.mla.value_dim, 3);
        const int64_t d = of_.index.head_dim;
        backend_.latent_append(latents_.view(), pick(tokens.latent, of_.mla.latent_dim).view(),
                               rows);
        backend_.index_pool(cache, pick(tokens.key, d).view(), pick(tokens.gate, d).view(),
                            uploads.array(of_.ape), of_.index, rows);
        backend_.index_select(selected.view(), count.data(),
                              pick(tokens.query, of_.index.heads * d).view(),
                              pick(tokens.weight, of_.index.heads).view(), cache, of_.index, rows);
        backend_.mla_attention(out.view(),
                               pick(tokens.attention, of_.mla.heads * of_.mla.key_dim).view(),
                               uploads.matrix(of_.weights()), latents_.view(), selected.view(),
                               count.data(), of_.mla, rows);
        MlaResult result{selected.result(), out.result()};
        for (const int32_t n : count.result()) result.selected.push_back(n);
        return result;
    }
    std::vector<float> pools() { return pools_.fetch().values(); }

  private:
    Backend& backend_;
    const MlaCase& of_;
    OnDevice<float> pools_, ring_, latents_;
};

class CudaMla : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{23};
};

TEST_F(CudaMla, AttentionAndIndexerMatchTheCpu) {
    for (const auto& [heads, latent] : {std::array<int32_t, 2>{3, 128}, {16, 512}}) {
        const MlaCase of(random_, heads, latent);
        const MlaTokens tokens(of, 600, random_);
        MlaRun cpu(*cpu_, of, 3);
        MlaRun gpu(*gpu_, of, 3);
        const auto both = [&](const RowLayout& layout, const std::vector<int64_t>& at) {
            const MlaResult a = cpu.pass(layout, tokens, at);
            const MlaResult b = gpu.pass(layout, tokens, at);
            EXPECT_TRUE(same(b.selected, a.selected));
            EXPECT_TRUE(near_enough(b.out, a.out, kGpuSequenceRelativeRms));
        };
        RowLayout prefill(true);
        prefill.add(1, 0, 330);
        prefill.add(-1, 0, 3);
        prefill.add(2, 0, 6);
        auto at = range(0, 330);
        for (const int64_t t : {0, 0, 0, 500, 501, 502, 503, 504, 505}) at.push_back(t);
        both(prefill, at);
        int32_t position = 330;
        for (const int32_t kept : {4, 1, 3, 2}) {  // of 4 rows
            RowLayout decode;
            decode.add(2, 6, 1);
            decode.add(1, position, 4);
            at = {506};
            for (const int64_t t : range(position, 4)) at.push_back(t);
            both(decode, at);
            position += kept;
        }
    }
}

TEST_F(CudaMla, RowsHaveTheSameBitsInAnyCompany) {
    const MlaCase of(random_, 4, 256);
    const MlaTokens tokens(of, 300, random_);
    MlaRun whole(*gpu_, of, 1);
    RowLayout once(true);
    once.add(0, 0, 300);
    const MlaResult expected = whole.pass(once, tokens, range(0, 300));
    for (const int64_t step : {1, 7, 64}) {
        MlaRun run(*gpu_, of, 1);
        std::vector<float> out;
        for (int64_t position = 0; position < 300; position += step) {
            const auto count = static_cast<int32_t>(std::min(step, 300 - position));
            RowLayout layout;
            layout.add(0, static_cast<int32_t>(position), count);
            if (step == 64 || (step == 1 && position > 40)) {
                // One pass for the rest, to keep the test short.
                RowLayout rest(true);
                rest.add(0, static_cast<int32_t>(position), static_cast<int32_t>(300 - position));
                const auto part = run.pass(rest, tokens, range(position, 300 - position));
                out.insert(out.end(), part.out.begin(), part.out.end());
                break;
            }
            const auto part = run.pass(layout, tokens, range(position, count));
            out.insert(out.end(), part.out.begin(), part.out.end());
        }
        EXPECT_TRUE(same(out, expected.out)) << "step " << step;
    }
}

// Weights of every type, on tensor cores or not; whole spans of inputs and odd ends of everything.
TEST_F(CudaMla, AnyShapeHasTheSameBitsForAnyNumberOfRows) {
    const std::pair<MlaParams, Dtype> cases[] = {
        {{2, 256, 256, 512}, Dtype::bf16}, {{3, 50, 37, 132}, Dtype::bf16},
        {{1, 192, 130, 64}, Dtype::bf16},  {{1, 520, 64, 256}, Dtype::bf16},
        {{3, 64, 96, 128}, Dtype::f16},    {{2, 33, 30, 36}, Dtype::f32}};
    for (const auto& [params, dtype] : cases) {
        const MlaCase of(random_, params, dtype);
        const MlaTokens tokens(of, 200, random_);
        const auto first = [&](Backend& backend, int32_t rows) {
            MlaRun run(backend, of, 1);
            RowLayout layout(true);
            layout.add(0, 0, rows);
            return run.pass(layout, tokens, range(0, rows)).out;
        };
        const std::vector<float> all = first(*gpu_, 200);
        EXPECT_TRUE(near_enough(all, first(*cpu_, 200), kGpuSequenceRelativeRms));
        for (const int32_t rows : {1, 8, 9, 40}) {
            const auto end = all.begin() + int64_t{rows} * params.heads * params.value_dim;
            EXPECT_TRUE(same(first(*gpu_, rows), std::vector<float>(all.begin(), end)))
                << rows << " rows, latents of " << params.latent_dim;
        }
    }
}

// A row that sees itself alone has its latents as sums, and kv_b picks some of them: all 22 bits
// that attention keeps must arrive.
TEST_F(CudaMla, KeepsEveryBitOfASum) {
    MlaCase of(random_, 2, 64);
    MlaTokens tokens(of, 20, random_);
    for (float& x : tokens.latent) x = static_cast<float>(random_.integer(1 << 20, (1 << 22) - 1));
    of.picks.resize(2 * (64 + 96) * 64);
    std::vector<float> expected(20 * 2 * 96);
    for (size_t i = 0; i < 2 * 96; ++i) {  // output i % 96 of head i / 96
        const size_t pick = i * 37 % 64;
        of.picks[((i / 96 + 1) * 64 + i) * 64 + pick] = to_bf16(-4.0f).bits;
        for (size_t m = 0; m < 20; ++m) {
            expected[m * 2 * 96 + i] = -4.0f * tokens.latent[m * 64 + pick];
        }
    }
    RowLayout layout;
    for (int32_t slot = 0; slot < 20; ++slot) layout.add(slot, 0, 1);
    MlaRun run(*gpu_, of, 20);
    EXPECT_TRUE(same(run.pass(layout, tokens, range(0, 20)).out, expected));
}

}  // namespace
}  // namespace quadrille::test
