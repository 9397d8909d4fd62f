// SPDX-License-Identifier: Apache-2.0
// The drafter's own ops on a GPU against the CPU.
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace quadrille::test {
namespace {

class CudaDraft : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{31};
};

std::vector<float> attention(Backend& backend, const DraftAttentionParams& params,
                             int32_t ring_size, uint64_t seed) {
    Random random(seed);
    const int64_t d = params.head_dim;
    const int64_t width = params.kv_heads * d;
    Uploads uploads(backend);
    OnDevice<float> keys(backend, 3, ring_size * width, random.normals(3 * ring_size * width), 3);
    OnDevice<float> values(backend, 3, ring_size * width, random.normals(3 * ring_size * width), 3);
    const DraftCache cache = {keys.view(), values.view(), ring_size};
    const auto q_norm = random.uniforms(d, 0.5f, 1.5f);
    const auto k_norm = random.uniforms(d, 0.5f, 1.5f);
    const auto pick = [&](int64_t m, int64_t cols) {
        return OnDevice<float>(backend, m, cols, random.normals(m * cols), 2);
    };
    std::vector<float> all;
    const auto add = [&](const std::vector<float>& more) {
        all.insert(all.end(), more.begin(), more.end());
    };
    // Context rows, some of which are not written.
    RowLayout context(true);
    context.add(0, 0, 30);  // longer than the smallest ring
    context.add(2, 300, 5);
    context.add(-1, 0, 2);
    std::vector<uint8_t> write(37, 1);
    write[3] = write[26] = write[32] = 0;
    backend.draft_append(cache, pick(37, width).view(), pick(37, width).view(),
                         uploads.array(k_norm), uploads.array(write), params,
                         uploads.rows(context.rows()));
    add(keys.fetch().values());
    add(values.fetch().values());
    RowLayout blocks;
    for (const auto& [slot, position] : {std::pair{0, 30}, {2, 305}, {-1, 4}, {1, 0}}) {
        blocks.add(slot, position, params.block);
    }
    const int64_t m = blocks.m();
    OnDevice<float> out(backend, m, params.heads * d, 1);
    backend.draft_attention(out.view(),
                            {pick(m, params.heads * d).view(), pick(m, width).view(),
                             pick(m, width).view(), uploads.array(q_norm), uploads.array(k_norm)},
                            cache, params, uploads.rows(blocks.rows()));
    add(out.result());
    return all;
}

TEST_F(CudaDraft, AttendsLikeTheCpu) {
    DraftAttentionParams params;
    for (const auto& [heads, kv_heads, d, block] :
         {std::array<int32_t, 4>{8, 4, 64, 8}, {4, 1, 128, 8}, {3, 3, 32, 5}}) {
        for (const int32_t window : {0, 256, 16}) {
            for (const bool causal : {false, true}) {
                params.heads = heads;
                params.kv_heads = kv_heads;
                params.head_dim = d;
                params.block = block;
                params.window = window;
                params.causal = causal;
                const int32_t ring = window == 0 ? 512 : window + block;
                EXPECT_TRUE(near_enough(attention(*gpu_, params, ring, 5),
                                        attention(*cpu_, params, ring, 5),
                                        10 * kGpuSequenceRelativeRms))
                    << "heads " << heads << " window " << window << " causal " << causal;
            }
        }
    }
}

TEST_F(CudaDraft, ConvolvesInsideBlocks) {
    for (const auto& [taps, group] : {std::pair{2, 16}, {3, 1}, {9, 48}}) {
        const int64_t h = 192;
        const auto in = random_.normals(24 * h);
        const auto dynamic = random_.normals(24 * taps * h / group);
        const auto base = random_.normals(taps * h);
        const auto run = [&](Backend& backend) {
            Uploads uploads(backend);
            OnDevice<float> x(backend, 24, h, in, 1);
            OnDevice<float> moving(backend, 24, taps * h / group, dynamic, 2);
            OnDevice<float> out(backend, 24, h, 3);
            backend.draft_conv(out.view(), x.view(), moving.view(), uploads.array(base), taps,
                               group, 8);
            return out.result();
        };
        EXPECT_TRUE(near_enough(run(*gpu_), run(*cpu_), kGpuSequenceRelativeRms));
    }
}

TEST_F(CudaDraft, WalksTheSamePath) {
    for (const int64_t rank : {0, 64, 33}) {
        const int64_t sequences = 5;
        const int64_t k = 4;
        const int64_t top = 16;
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < sequences * k * top; ++i) {
            ids.push_back(static_cast<int32_t>(random_.integer(0, 99)));
        }
        ids[3] = -1;
        for (int64_t b = 0; b < top; ++b) ids[static_cast<size_t>(2 * top + b)] = -1;
        const auto values = random_.normals(sequences * k * top);
        const auto projected = random_.normals(sequences * k * rank);
        const MatrixData predecessor =
            MatrixData::native(random_, 100, std::max<int64_t>(rank, 1), Dtype::bf16);
        const MatrixData successor =
            MatrixData::native(random_, 100, std::max<int64_t>(rank, 1), Dtype::bf16);
        const std::vector<int32_t> anchor = {0, 99, 5, 5, 17};
        for (const float temperature : {-1.0f, 0.0f, 0.7f}) {  // -1: no draws at all
            const auto run = [&](Backend& backend) {
                Uploads uploads(backend);
                const std::vector<uint32_t> seen(4, 0x0f0f00ffu);
                std::vector<SampleRow> draws(static_cast<size_t>(sequences));
                for (size_t i = 0; i < draws.size(); ++i) {
                    draws[i].seed = 100 + i;
                    draws[i].position = static_cast<int64_t>(7 * i);
                    draws[i].inverse_temperature =
                        temperature > 0 ? 1.0 / static_cast<double>(temperature) : 0.0;
                    draws[i].penalty = i % 2 == 0 ? 1.3f : 1.0f;
                    draws[i].seen = uploads.array(seen);
                }
                OnDevice<float> value(backend, sequences * k, top, values, 1);
                OnDevice<int32_t> id(backend, sequences * k, top, ids, 1);
                OnDevice<float> p(backend, sequences * k, rank, projected, 1);
                OnDevice<float> scores(backend, sequences * k, top, 1);
                OnDevice<int32_t> path(backend, sequences, k, 2);
                backend.walk_path(
                    path.view(), scores.view(),
                    {value.view(), id.view(), p.view(), uploads.matrix(predecessor.matrix()),
                     uploads.matrix(successor.matrix()), uploads.array(anchor),
                     temperature < 0 ? nullptr : uploads.array(draws)});
                return std::pair{path.result(), scores.result()};
            };
            const auto gpu = run(*gpu_);
            const auto cpu = run(*cpu_);
            EXPECT_TRUE(same(gpu.first, cpu.first)) << rank << " temperature " << temperature;
            EXPECT_TRUE(near_enough(gpu.second, cpu.second, kGpuSequenceRelativeRms));
        }
    }
}

// Rows greedy and drawn, with and without a penalty, behind 0 to 3 of the drafts.
std::vector<SampleRow> sample_rows(int64_t m, View<uint32_t> seen, const int32_t* drafts) {
    std::vector<SampleRow> rows(static_cast<size_t>(m));
    for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].seed = 5 * i;
        rows[i].position = static_cast<int64_t>(i) << 33;
        rows[i].inverse_temperature = i % 3 == 0 ? 0.0 : 0.5 * static_cast<double>(i);
        rows[i].penalty = i < 4 ? 1.5f : 1.0f;
        rows[i].seen = seen.row(static_cast<int64_t>(i % 2));
        rows[i].drafts = drafts;
        rows[i].draft_count = static_cast<int32_t>(i % 4);
        rows[i].row = static_cast<int32_t>((i + 2) % 6);
    }
    return rows;
}

TEST_F(CudaDraft, SamplesTheSameBits) {
    const int64_t m = 6;
    const int64_t n = 5001;
    std::vector<float> logits = random_.normals(m * n, 4.0f);
    logits[5] = NAN;
    for (int64_t c = 0; c < n; ++c) {
        logits[static_cast<size_t>(2 * n + c)] = -std::numeric_limits<float>::infinity();
    }
    const std::vector<int32_t> drafts = {3, 4990, 17};
    for (const int32_t valid : {5001, 2500, 1, 0}) {
        for (const int64_t excluded_count : {0, 3}) {
            const std::vector<int32_t> excluded(static_cast<size_t>(m * 3), 1004);
            const auto run = [&](Backend& backend) {
                Uploads uploads(backend);
                OnDevice<uint32_t> seen(backend, 2, 200, std::vector<uint32_t>(400, 0));
                const std::vector<int32_t> slots = {0, 1, 1};
                const std::vector<int32_t> tokens = {1010, 31, 6001};
                backend.mark_seen(seen.view(), uploads.array(slots), uploads.array(tokens), 3);
                const SampleRow* row =
                    uploads.array(sample_rows(m, seen.view(), uploads.array(drafts)));
                const auto count = static_cast<int32_t>(m);
                OnDevice<float> x(backend, m, n, logits, 3);
                OnDevice<int32_t> skip(backend, m, 3, excluded, 1);
                Array<double> score(backend, 1, m);
                OnDevice<int32_t> id(backend, 1, m);
                OnDevice<float> logit(backend, 1, m);
                OnDevice<float> values(backend, m, 20, 1);
                OnDevice<float> raw(backend, m, 20, 2);
                OnDevice<int32_t> ids(backend, m, 20, 1);
                OnDevice<float> at(backend, m, 20, 1);
                OnDevice<float> at_raw(backend, m, 20, 1);
                Array<ExpSum> sums(backend, 1, m);
                const SampleInput in{x.view(), row, count, 1000, valid};
                backend.sample(score.data(), id.data(), logit.data(), in,
                               skip.view().slice_cols(0, excluded_count));
                backend.sample_candidates(values.view(), raw.view(), ids.view(), in);
                backend.sample_sum(sums.data(), in);
                backend.sample_at(at.view(), at_raw.view(), ids.view(),
                                  {x.view(), row, count, 1000, valid / 2});
                std::vector<float> floats = logit.result();
                for (const auto& part :
                     {values.result(), raw.result(), at.result(), at_raw.result()}) {
                    floats.insert(floats.end(), part.begin(), part.end());
                }
                std::vector<int32_t> integers = id.result();
                for (const int32_t v : ids.result()) integers.push_back(v);
                std::vector<double> doubles = score.download();
                for (const ExpSum& sum : sums.download()) {
                    doubles.push_back(sum.empty() ? 0.0 : sum.log());
                }
                return std::tuple{floats, integers, doubles};
            };
            const auto [gpu_floats, gpu_integers, gpu_doubles] = run(*gpu_);
            const auto [cpu_floats, cpu_integers, cpu_doubles] = run(*cpu_);
            EXPECT_TRUE(near_enough(gpu_floats, cpu_floats, 1e-12)) << "valid " << valid;
            EXPECT_TRUE(same(gpu_integers, cpu_integers)) << "valid " << valid;
            EXPECT_EQ(gpu_doubles, cpu_doubles) << "valid " << valid;
        }
    }
}

}  // namespace
}  // namespace quadrille::test
