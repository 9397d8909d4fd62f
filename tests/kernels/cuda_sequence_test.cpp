// SPDX-License-Identifier: Apache-2.0
// KDA, indexer and latent attention on a GPU against the CPU, over prefill and decode, and the
// promises: however tokens are cut into passes, the outputs and states of KDA have the same bits;
// a row attends and chooses the same in any company.
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

namespace quadrille::test {
namespace {

constexpr int64_t kMaxPending = 8;

struct KdaCase {
    KdaParams params;
    int64_t c;
    std::vector<float> conv, a_log, dt_bias, o_norm;

    KdaCase(int32_t heads, int32_t d, int32_t taps, Random& random) : c(int64_t{heads} * d) {
        params.heads = heads;
        params.head_dim = d;
        params.taps = taps;
        conv = random.normals(3 * c * taps, 0.5f);
        a_log = random.normals(heads, 0.5f);
        dt_bias = random.normals(c);
        for (float& value : dt_bias) value -= 2.0f;
        o_norm = random.uniforms(d, 0.5f, 1.5f);
    }
};

struct Tokens {
    std::vector<float> qkv, f, b, g;

    Tokens(const KdaCase& of, int64_t count, Random& random)
        : qkv(random.normals(count * 3 * of.c)),
          f(random.normals(count * of.c)),
          b(random.normals(count * of.params.heads)),
          g(random.normals(count * of.c)) {}
};

// The caches of a few slots, full of NaN, and passes over them.
class KdaRun {
  public:
    KdaRun(Backend& backend, const KdaCase& of, int64_t slots)
        : backend_(backend),
          of_(of),
          uploads_(backend),
          state_(garbage(slots, of.c * of.params.head_dim)),
          conv_(garbage(slots, (of.params.taps - 1) * 3 * of.c)),
          qkv_(garbage(slots, kMaxPending * 3 * of.c)),
          decay_(garbage(slots, kMaxPending * of.c)),
          beta_(garbage(slots, kMaxPending * of.params.heads)),
          weights_{uploads_.array(of.conv), uploads_.array(of.a_log), uploads_.array(of.dt_bias),
                   uploads_.array(of.o_norm)} {}

    // Row i of the layout is token `tokens_at[i]`.
    std::vector<float> pass(const RowLayout& layout, const Tokens& tokens,
                            const std::vector<int64_t>& tokens_at) {
        Uploads uploads(backend_);
        const int64_t m = layout.m();
        const auto pick = [&](const std::vector<float>& from, int64_t cols) {
            return OnDevice<float>(backend_, m, cols, gather_rows<float>(from, cols, tokens_at), 3);
        };
        OnDevice<float> out(backend_, m, of_.c, 1);
        backend_.kda(out.view(), pick(tokens.qkv, 3 * of_.c).view(), pick(tokens.f, of_.c).view(),
                     pick(tokens.b, of_.params.heads).view(), pick(tokens.g, of_.c).view(),
                     weights_, kda(), of_.params, uploads.rows(layout.rows()));
        return out.result();
    }
    void flush(int32_t slot, int32_t pending, bool fresh = false) {
        backend_.kda_flush(weights_, kda(), of_.params, slot, pending, fresh);
    }
    std::vector<float> committed(int64_t slot) {
        std::vector<float> all;
        for (OnDevice<float>* part : {&state_, &conv_}) {
            const View<const float> view = part->fetch().view();
            all.insert(all.end(), view.row(slot), view.row(slot) + view.cols);
        }
        return all;
    }

  private:
    OnDevice<float> garbage(int64_t slots, int64_t cols) {
        const std::vector<float> nan(static_cast<size_t>(slots * cols),
                                     std::numeric_limits<float>::quiet_NaN());
        return {backend_, slots, cols, nan, 3};
    }
    KdaState kda() const {
        return {state_.view(), conv_.view(), qkv_.view(), decay_.view(), beta_.view()};
    }

    Backend& backend_;
    const KdaCase& of_;
    Uploads uploads_;
    OnDevice<float> state_, conv_, qkv_, decay_, beta_;
    KdaWeights weights_;
};

std::vector<int64_t> range(int64_t first, int64_t count) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(first + i);
    return all;
}

class CudaSequence : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{23};
};

TEST_F(CudaSequence, KdaMatchesTheCpuOverPrefillDecodeAndFlush) {
    for (const auto& [heads, d, taps] :
         {std::array<int32_t, 3>{3, 128, 4}, {2, 64, 4}, {5, 16, 2}, {70, 16, 4}}) {
        const KdaCase of(heads, d, taps, random_);
        const Tokens tokens(of, 80, random_);
        std::vector<float> all[2];
        for (Backend* backend : {cpu_.get(), gpu_.get()}) {
            std::vector<float>& results = all[backend == gpu_.get() ? 1 : 0];
            KdaRun run(*backend, of, 3);
            const auto add = [&](const std::vector<float>& more) {
                results.insert(results.end(), more.begin(), more.end());
            };
            RowLayout prefill(true);
            prefill.add(2, 0, 37);
            prefill.add(0, 0, 5);
            prefill.add(-1, 0, 2);
            auto at = range(0, 37);
            for (const int64_t t : range(50, 5)) at.push_back(t);
            at.insert(at.end(), {0, 0});
            add(run.pass(prefill, tokens, at));
            RowLayout decode;  // 4 rows each, of which 3 and 1 are accepted
            decode.add(0, 5, 4);
            decode.add(2, 37, 4);
            at = range(55, 4);
            for (const int64_t t : range(37, 4)) at.push_back(t);
            add(run.pass(decode, tokens, at));
            RowLayout next;
            next.add(2, 40, 2, 3);
            next.add(0, 6, 1, 1);
            add(run.pass(next, tokens, {40, 41, 56}));
            run.flush(2, 2);
            run.flush(0, 1);
            run.flush(1, 0, true);
            for (int64_t slot = 0; slot < 3; ++slot) add(run.committed(slot));
        }
        EXPECT_TRUE(near_enough(all[1], all[0], 10 * kGpuSequenceRelativeRms));
    }
}

TEST_F(CudaSequence, KdaHasTheSameBitsHoweverTokensAreCut) {
    const KdaCase of(2, 128, 4, random_);
    const Tokens tokens(of, 40, random_);
    KdaRun whole(*gpu_, of, 1);
    RowLayout once(true);
    once.add(0, 0, 40);
    const std::vector<float> expected = whole.pass(once, tokens, range(0, 40));
    const std::vector<float> state = whole.committed(0);
    for (int variant = 0; variant < 6; ++variant) {
        KdaRun run(*gpu_, of, 2);
        RowLayout prefill(true);
        const int32_t first = 7 + 3 * variant;
        prefill.add(1, 0, first);
        std::vector<float> found = run.pass(prefill, tokens, range(0, first));
        int32_t position = first;
        int32_t pending = 0;
        while (position < 40) {
            if (variant % 2 == 1 && position >= 18) {  // the rest as a prefill
                RowLayout rest(true);
                rest.add(1, position, 40 - position, pending);
                const auto out = run.pass(rest, tokens, range(position, 40 - position));
                found.insert(found.end(), out.begin(), out.end());
                position = 40;
                pending = 0;
                break;
            }
            // Up to 1 + variant rows, the last of which are rejected now and then.
            const int32_t count = std::min(1 + variant, 40 - position);
            const int32_t kept = std::min<int32_t>(1 + (position + variant) % 3, count);
            RowLayout decode;
            decode.add(1, position, count, pending);
            const auto out = run.pass(decode, tokens, range(position, count));
            found.insert(found.end(), out.begin(), out.begin() + kept * of.c);
            position += kept;
            pending = kept;
        }
        run.flush(1, pending);
        EXPECT_TRUE(same(found, expected)) << "variant " << variant;
        EXPECT_TRUE(same(run.committed(1), state)) << "variant " << variant;
    }
}

// Rows of a slot from `position` to `end`, at most five a pass and all of them accepted.
std::vector<float> decoded(KdaRun& run, const Tokens& tokens, int32_t slot, int32_t position,
                           int32_t end, int32_t pending) {
    std::vector<float> found;
    while (position < end) {
        const int32_t count = std::min(5, end - position);
        RowLayout rows;
        rows.add(slot, position, count, pending);
        const auto out = run.pass(rows, tokens, range(position, count));
        found.insert(found.end(), out.begin(), out.end());
        position += count;
        pending = count;
    }
    run.flush(slot, pending);
    return found;
}

TEST_F(CudaSequence, KdaHasTheSameBitsInPrefillsOfAnyLength) {
    for (const int32_t taps : {4, 2, 5}) {
        const KdaCase of(2, 128, taps, random_);
        const Tokens tokens(of, 104, random_);
        for (const auto& [rows, others] :
             {std::array<int32_t, 2>{15, 17}, {16, 16}, {13, 31}, {33, 5}, {100, 32}}) {
            RowLayout first;  // 4 rows, of which 3 are accepted
            first.add(1, 0, 4);
            KdaRun whole(*gpu_, of, 2);
            KdaRun cut(*gpu_, of, 2);
            whole.pass(first, tokens, range(0, 4));
            cut.pass(first, tokens, range(0, 4));
            RowLayout prefill(true);
            prefill.add(0, 0, others);
            prefill.add(1, 3, rows, 3);
            auto at = range(0, others);
            for (const int64_t t : range(3, rows)) at.push_back(t);
            std::vector<float> expected = decoded(cut, tokens, 0, 0, others, 0);
            const auto more = decoded(cut, tokens, 1, 3, 3 + rows, 3);
            expected.insert(expected.end(), more.begin(), more.end());
            EXPECT_TRUE(same(whole.pass(prefill, tokens, at), expected)) << rows << ", " << taps;
            for (int64_t slot = 0; slot < 2; ++slot) {
                EXPECT_TRUE(same(whole.committed(slot), cut.committed(slot)))
                    << rows << ", " << taps;
            }
        }
    }
}

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

TEST_F(CudaSequence, MlaAndIndexerMatchTheCpu) {
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

TEST_F(CudaSequence, MlaRowsHaveTheSameBitsInAnyCompany) {
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
TEST_F(CudaSequence, MlaOfAnyShapeHasTheSameBitsForAnyNumberOfRows) {
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
TEST_F(CudaSequence, MlaKeepsEveryBitOfASum) {
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
