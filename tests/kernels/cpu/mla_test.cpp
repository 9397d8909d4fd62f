// SPDX-License-Identifier: Apache-2.0
// latent_append and mla_attention. The reference is the plain form of section 3.4: keys and values
// of every position are expanded, nothing is absorbed. Latents nobody may see are NaN.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

constexpr int64_t kCapacity = 160;

struct Attention {
    MlaParams params;
    Dtype dtype;
    std::vector<float> kv_b;  // what the stored weights are as fp32
    std::vector<uint16_t> stored;

    Attention(int32_t heads, int32_t key, int32_t value, int32_t r, Dtype type, uint64_t seed)
        : params{heads, key, value, r}, dtype(type) {
        Random random(seed);
        kv_b = random.normals(int64_t{heads} * (key + value) * r, 1.0f / std::sqrt(float(r)));
        for (float& weight : kv_b) {
            if (type == Dtype::bf16) {
                stored.push_back(to_bf16(weight).bits);
                weight = to_float(BF16{stored.back()});
            } else if (type == Dtype::f16) {
                stored.push_back(to_f16(weight).bits);
                weight = to_float(F16{stored.back()});
            }
        }
    }
    Matrix matrix() const {
        Matrix m;
        m.n = int64_t{params.heads} * (params.key_dim + params.value_dim);
        m.k = params.latent_dim;
        m.dtype = dtype;
        m.weights = dtype == Dtype::f32 ? static_cast<const void*>(kv_b.data()) : stored.data();
        return m;
    }
};

std::vector<float> expected_row(const Attention& of, const float* query, const float* latents,
                                const std::vector<int32_t>& positions) {
    const auto& p = of.params;
    std::vector<float> out;
    for (int64_t h = 0; h < p.heads; ++h) {
        const float* head = of.kv_b.data() + h * (p.key_dim + p.value_dim) * p.latent_dim;
        const auto expand = [&](int64_t row, int32_t at) {
            double sum = 0;
            for (int64_t c = 0; c < p.latent_dim; ++c) {
                sum +=
                    double(head[row * p.latent_dim + c]) * double(latents[at * p.latent_dim + c]);
            }
            return sum;
        };
        std::vector<double> weight;
        double total = 0;
        for (const int32_t at : positions) {
            double score = 0;
            for (int64_t j = 0; j < p.key_dim; ++j) {
                score += double(query[h * p.key_dim + j]) * expand(j, at);
            }
            weight.push_back(std::exp(score / std::sqrt(double(p.key_dim))));
            total += weight.back();
        }
        for (int64_t j = 0; j < p.value_dim; ++j) {
            double sum = 0;
            for (size_t i = 0; i < positions.size(); ++i) {
                sum += weight[i] / total * expand(p.key_dim + j, positions[i]);
            }
            out.push_back(float(sum));
        }
    }
    return out;
}

// A row: its slot's latents, its position, and the positions it attends to (empty: all).
struct Query {
    int32_t slot;
    int32_t position;
    std::vector<int32_t> list;
};

constexpr int64_t kListed = 70;

class Pass {
  public:
    Pass(const Attention& of, int64_t slots, uint64_t seed) : of_(of) {
        Random random(seed);
        latents_ = random.normals(slots * kCapacity * of.params.latent_dim);
    }
    const float* slot(int64_t index) const {
        return latents_.data() + index * kCapacity * of_.params.latent_dim;
    }
    // One sequence of one row for every query; `values` (m, heads key_dim).
    std::vector<float> run(const std::vector<Query>& queries, const std::vector<float>& values,
                           int64_t gap = 0) {
        const int64_t m = std::ssize(queries);
        const int64_t r = of_.params.latent_dim;
        Guarded<float> latents(std::ssize(latents_) / (kCapacity * r), kCapacity * r, latents_,
                               gap);
        Guarded<int32_t> selected(m, kListed, gap);
        std::vector<int32_t> count;
        RowLayout layout;
        for (int64_t i = 0; i < m; ++i) {
            const Query& query = queries[size(i)];
            layout.add(query.slot, query.position, 1);
            std::fill_n(selected.view().row(i), kListed, -1);
            std::copy(query.list.begin(), query.list.end(), selected.view().row(i));
            count.push_back(query.list.empty() ? -1 : static_cast<int32_t>(query.list.size()));
        }
        Guarded<float> out(m, of_.params.heads * of_.params.value_dim, gap);
        Guarded<float> query(m, of_.params.heads * of_.params.key_dim, values, gap);
        backend_.mla_attention(out.view(), query.view(), of_.matrix(), latents.view(),
                               selected.view(), count.data(), of_.params, layout.rows());
        EXPECT_TRUE(out.written() && latents.intact() && selected.intact());
        return out.values();
    }

    cpu::CpuBackend backend_;

  private:
    const Attention& of_;
    std::vector<float> latents_;
};

std::vector<int32_t> up_to(int32_t position) {
    std::vector<int32_t> all(size(position) + 1);
    std::iota(all.begin(), all.end(), 0);
    return all;
}

TEST(MlaAttention, FollowsTheUnabsorbedForm) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
        const Attention of(3, 32, 24, 40, dtype, 1);
        Pass pass(of, 3, 2);
        Random random(3);
        std::vector<Query> queries;
        for (const int32_t at : {0, 1, 5, 62, 63, 64, 65, 127, 128, 158}) {
            queries.push_back({at % 3, at, {}});
        }
        queries.push_back({1, 150, {0, 3, 4, 9, 77, 150}});
        queries.push_back({2, 90, {90}});
        const std::vector<float> values = random.normals(std::ssize(queries) * 3 * 32, 2.0f);
        std::vector<float> expected;
        for (size_t i = 0; i < queries.size(); ++i) {
            const auto& list = queries[i].list;
            const std::vector<float> row =
                expected_row(of, values.data() + i * 96, pass.slot(queries[i].slot),
                             list.empty() ? up_to(queries[i].position) : list);
            expected.insert(expected.end(), row.begin(), row.end());
        }
        EXPECT_TRUE(close(pass.run(queries, values, 3), expected, reduced(160)));
    }
}

TEST(MlaAttention, AListOfEveryPositionIsTheSameAsNone) {
    const Attention of(2, 16, 16, 33, Dtype::bf16, 4);
    Pass pass(of, 1, 5);
    Random random(6);
    const std::vector<float> values = random.normals(32);
    for (const int32_t at : {0, 31, 63, 64, 68}) {
        EXPECT_TRUE(same(pass.run({{0, at, up_to(at)}}, values), pass.run({{0, at, {}}}, values)));
    }
}

TEST(MlaAttention, ChunksSeeOnlyWhatLiesBeforeThem) {
    // A whole prompt in one pass, appended first: row i must not see the rows behind it.
    const Attention of(2, 16, 8, 24, Dtype::f32, 7);
    cpu::CpuBackend backend;
    Random random(8);
    const int32_t tokens = 40;
    Guarded<float> latent(tokens, 24, random.normals(tokens * 24), 2);
    Guarded<float> query(tokens, 32, random.normals(tokens * 32), 2);
    const std::vector<float> garbage(2 * kCapacity * 24, std::nanf(""));
    const auto run = [&](const std::vector<int32_t>& cuts) {
        Guarded<float> latents(2, kCapacity * 24, garbage, 1);
        std::vector<float> result;
        int32_t done = 0;
        for (const int32_t rows : cuts) {
            RowLayout layout;
            layout.add(1, done, rows);
            Guarded<float> out(rows, 16);
            Guarded<int32_t> selected(rows, kListed);
            const std::vector<int32_t> count(size(rows), -1);
            backend.latent_append(latents.view(), latent.view().slice_rows(done, rows),
                                  layout.rows());
            backend.mla_attention(out.view(), query.view().slice_rows(done, rows), of.matrix(),
                                  latents.view(), selected.view(), count.data(), of.params,
                                  layout.rows());
            const std::vector<float> values = out.values();
            result.insert(result.end(), values.begin(), values.end());
            done += rows;
        }
        EXPECT_TRUE(latents.intact());
        for (const float value : {latents.view().row(0)[0], latents.view().row(1)[tokens * 24]}) {
            EXPECT_TRUE(std::isnan(value));
        }
        return result;
    };
    const std::vector<float> whole = run({40});
    for (const float value : whole) EXPECT_TRUE(std::isfinite(value));
    EXPECT_TRUE(same(run(std::vector<int32_t>(40, 1)), whole));
    EXPECT_TRUE(same(run({17, 3, 20}), whole));
}

TEST(MlaAttention, OneArithmeticPerRow) {
    const Attention of(2, 16, 8, 24, Dtype::bf16, 9);
    Pass pass(of, 4, 10);
    Random random(11);
    constexpr int64_t kPool = 14;
    const std::vector<float> values = random.normals(kPool * 32);
    std::vector<Query> pool;
    for (int32_t i = 0; i < kPool; ++i) {
        pool.push_back({i % 4, 11 * i,
                        i % 3 == 0 && i > 0 ? std::vector<int32_t>{2, 3 * i, 11 * i}
                                            : std::vector<int32_t>{}});
    }
    expect_one_arithmetic_per_row(kPool, 16, [&](auto rows, int64_t gap) {
        std::vector<Query> queries;
        for (const int64_t row : rows) queries.push_back(pool[size(row)]);
        return pass.run(queries, gather_rows<float>(values, 32, rows), gap);
    });
}

TEST(MlaAttention, PaddingRowsAreZero) {
    const Attention of(2, 16, 8, 24, Dtype::bf16, 12);
    Pass pass(of, 1, 13);
    Random random(14);
    const std::vector<float> values = random.normals(3 * 32);
    const std::vector<float> out = pass.run({{-1, 0, {}}, {0, 9, {}}, {-1, 500, {}}}, values);
    const std::vector<float> alone =
        pass.run({{0, 9, {}}}, {values.begin() + 32, values.begin() + 64});
    const std::vector<float> zeros(16);
    EXPECT_TRUE(same({out.data(), 16}, zeros));
    EXPECT_TRUE(same({out.data() + 16, 16}, alone));
    EXPECT_TRUE(same({out.data() + 32, 16}, zeros));
}

TEST(MlaAttention, RefusesPositionsBeyondTheRow) {
    const Attention of(2, 16, 8, 24, Dtype::bf16, 12);
    Pass pass(of, 1, 13);
    const std::vector<float> values(32);
    expect_error(ErrorKind::internal, {"up to its own"}, [&] {
        pass.run({{0, 9, {1, 10}}}, values);
    });
    expect_error(ErrorKind::internal, {"fit their slot"}, [&] {
        pass.run({{0, kCapacity, {}}}, values);
    });
    cpu::CpuBackend backend;
    Guarded<float> latents(1, 10 * 24), latent(2, 24);
    RowLayout layout;
    layout.add(0, 9, 2);
    expect_error(ErrorKind::internal, {"latent_append"},
                 [&] { backend.latent_append(latents.view(), latent.view(), layout.rows()); });
}

}  // namespace
}  // namespace quadrille
