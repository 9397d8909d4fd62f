// SPDX-License-Identifier: Apache-2.0
// The ops with state, run on the inputs of tests/data/op_golden.h5, against the results of the
// numpy references (tools/reference/make_op_goldens.py).
#include "kernels/backend.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

// A dataset as a matrix: (first extent, the rest).
struct Table {
    GoldenArray<float> data;

    int64_t rows() const { return data.shape.front(); }
    int64_t cols() const { return data.size() / rows(); }
    View<const float> view() const { return {data.values.data(), rows(), cols()}; }
    const float* values() const { return data.values.data(); }
    Matrix matrix() const {
        Matrix m;
        m.n = rows();
        m.k = cols();
        m.weights = values();
        m.dtype = Dtype::f32;
        m.segment = {0, cols()};
        return m;
    }
};

class OpGolden : public testing::Test {
  protected:
    Table table(const std::string& path) const { return {golden_.read<float>(path)}; }
    std::vector<int32_t> ints(const std::string& path) const {
        return golden_.read<int32_t>(path).values;
    }

    Golden golden_{data_path("op_golden.h5")};
    std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

TEST_F(OpGolden, HyperConnections) {
    const Table streams = table("hyper/streams"), y = table("hyper/y"), fn = table("hyper/fn");
    const Table base = table("hyper/base"), scale = table("hyper/scale");
    const int64_t m = streams.rows(), h = y.cols();
    Guarded<float> state(m, 4 * h, streams.data.values), pre(m, 4), post(m, 4), mix(m, 16);
    Guarded<float> x(m, h), mean(m, h);
    backend_->hyper_weights(pre.view(), post.view(), mix.view(), state.view(), fn.matrix(),
                            base.values(), scale.values(), HyperParams{});
    backend_->hyper_in(x.view(), state.view(), pre.view());
    backend_->hyper_out(state.view(), y.view(), post.view(), mix.view());
    backend_->stream_mean(mean.view(), state.view(), 4);
    const auto terms = reduced(4 * h);
    EXPECT_TRUE(close(post.values(), table("hyper/post").data.values, terms));
    EXPECT_TRUE(close(mix.values(), table("hyper/mix").data.values, terms));
    EXPECT_TRUE(close(x.values(), table("hyper/x").data.values, terms));
    EXPECT_TRUE(close(state.values(), table("hyper/after").data.values, terms));
    EXPECT_TRUE(close(mean.values(), table("hyper/mean").data.values, terms));
}

// Prefill of `prompt` tokens, then decode steps of one token.
TEST_F(OpGolden, Kda) {
    const Table qkv = table("kda/qkv"), f = table("kda/f"), b = table("kda/b"), g = table("kda/g");
    const Table conv = table("kda/conv"), a_log = table("kda/a_log"), bias = table("kda/dt_bias");
    const Table o_norm = table("kda/o_norm");
    KdaParams params;
    params.heads = static_cast<int32_t>(b.cols());
    params.head_dim = static_cast<int32_t>(o_norm.data.size());
    const int64_t c = f.cols(), d = params.head_dim, m = f.rows();
    const KdaWeights weights{conv.values(), a_log.values(), bias.values(), o_norm.values()};
    for (const int64_t prompt : {int64_t{0}, int64_t{1}, int64_t{13}, m}) {
        Guarded<float> state(1, c * d), history(1, 3 * 3 * c), qkvs(1, 3 * c), decay(1, c);
        Guarded<float> beta(1, params.heads), out(m, c);
        const KdaState memory{state.view(), history.view(), qkvs.view(), decay.view(), beta.view()};
        const auto run = [&](int64_t first, int64_t count, bool commit, int32_t pending) {
            RowLayout layout(commit);
            layout.add(0, static_cast<int32_t>(first), static_cast<int32_t>(count), pending);
            backend_->kda({out.view().slice_rows(first, count), qkv.view().slice_rows(first, count),
                           f.view().slice_rows(first, count), b.view().slice_rows(first, count),
                           g.view().slice_rows(first, count)},
                          weights, memory, params, layout.rows());
        };
        if (prompt > 0) run(0, prompt, true, 0);
        for (int64_t t = prompt; t < m; ++t) run(t, 1, false, t > prompt ? 1 : 0);
        if (prompt < m) backend_->kda_flush(weights, memory, params, 0, 1, false);
        EXPECT_TRUE(close(out.values(), table("kda/result").data.values, reduced(m * d)));
        EXPECT_TRUE(close(state.values(), table("kda/state").data.values, reduced(m * d)));
    }
}

TEST_F(OpGolden, MlaWithIndexer) {
    const Table query = table("mla/query"), latent = table("mla/latent"), kv_b = table("mla/kv_b");
    const Table index_query = table("mla/index_query"), weight = table("mla/index_weight");
    const Table key = table("mla/key"), gate = table("mla/gate"), ape = table("mla/ape");
    const Table pools = table("mla/pools");
    const int32_t heads = 3;
    const IndexParams index{16, static_cast<int32_t>(key.cols()), 4, 16};
    const MlaParams params{heads, static_cast<int32_t>(query.cols() / heads), 16,
                           static_cast<int32_t>(latent.cols())};
    const int64_t m = query.rows();
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, m}) {
        Guarded<float> latents(1, m * latent.cols()), pooled(1, pools.data.size());
        Guarded<float> ring(1, 11 * 2 * key.cols()), out(m, heads * 16);
        Guarded<int32_t> selected(m, 19), count(1, m);
        const IndexCache cache{pooled.view(), ring.view(), 11};
        for (int64_t first = 0; first < m; first += chunk) {
            const int64_t n = std::min(chunk, m - first);
            RowLayout layout;
            layout.add(0, static_cast<int32_t>(first), static_cast<int32_t>(n));
            const auto rows = [&](const Table& part) { return part.view().slice_rows(first, n); };
            backend_->latent_append(latents.view(), rows(latent), layout.rows());
            backend_->index_pool(cache, rows(key), rows(gate), ape.values(), index, layout.rows());
            backend_->index_select(selected.view().slice_rows(first, n), count.data() + first,
                                   rows(index_query), rows(weight), cache, index, layout.rows());
            backend_->mla_attention(out.view().slice_rows(first, n), rows(query), kv_b.matrix(),
                                    latents.view(), selected.view().slice_rows(first, n),
                                    count.data() + first, params, layout.rows());
        }
        EXPECT_TRUE(same(count.values(), ints("mla/count")));
        EXPECT_TRUE(same(selected.values(), ints("mla/selected")));
        EXPECT_TRUE(close(pooled.values(), pools.data.values, rounded()));
        EXPECT_TRUE(close(out.values(), table("mla/result").data.values, reduced(m)));
    }
}

// A whole DFlash2 block of two layers, put together from the ops in the order of the specification.
class DrafterGolden : public OpGolden {
  protected:
    DrafterGolden() {
        params_.heads = 4;
        params_.kv_heads = 2;
        params_.head_dim = 16;
        params_.block = kBlock;
        params_.window = 11;
    }
    Table weight(const std::string& name) const { return table("drafter/weights/" + name); }
    Guarded<float> product(const Table& w, View<const float> in) {
        Guarded<float> out(in.rows, w.rows());
        backend_->linear(out.view(), in, w.matrix());
        return out;
    }
    Guarded<float> normed(const std::string& name, View<const float> in) {
        Guarded<float> out(in.rows, in.cols);
        backend_->rms_norm(out.view(), in, weight(name).values(), params_.norm_eps);
        return out;
    }
    // half 0: before the sublayer, 1: behind it. `dynamic` (rows, 2 taps groups).
    Guarded<float> mixed(const std::string& name, int64_t half, View<const float> in,
                         View<const float> dynamic) {
        Guarded<float> out(in.rows, in.cols);
        const Table base = weight(name + ".base_kernel");
        backend_->draft_conv(out.view(), in,
                             dynamic.slice_cols(half * dynamic.cols / 2, dynamic.cols / 2),
                             base.values() + half * 2 * in.cols, 2, 8, kBlock);
        return out;
    }
    void fill_context(int64_t layer, const DraftCache& cache) {
        const Table taps = table("drafter/taps");
        Guarded<float> fused = product(weight("fc.weight"), taps.view());
        const Guarded<float> context = normed("hidden_norm.weight", fused.view());
        const std::string p = "layers." + std::to_string(layer) + ".self_attn.";
        Guarded<float> key = product(weight(p + "k_proj.weight"), context.view());
        Guarded<float> value = product(weight(p + "v_proj.weight"), context.view());
        const std::vector<uint8_t> write(size(taps.rows()), 1);
        RowLayout layout;
        layout.add(0, 0, static_cast<int32_t>(taps.rows()));
        backend_->draft_append(cache, key.view(), value.view(),
                               weight(p + "k_norm.weight").values(), write.data(), params_,
                               layout.rows());
    }
    void attention(int64_t layer, View<float> h, const DraftCache& cache, int32_t position) {
        const std::string l = "layers." + std::to_string(layer) + ".", p = l + "self_attn.";
        const Guarded<float> x = normed(l + "input_layernorm.weight", h);
        const Guarded<float> dynamic =
            product(weight(l + "attention_conv.kernel_projection.weight"), x.view());
        const Guarded<float> y = mixed(l + "attention_conv", 0, x.view(), dynamic.view());
        const Guarded<float> q = product(weight(p + "q_proj.weight"), y.view());
        const Guarded<float> k = product(weight(p + "k_proj.weight"), y.view());
        const Guarded<float> v = product(weight(p + "v_proj.weight"), y.view());
        Guarded<float> a(h.rows, params_.heads * params_.head_dim);
        RowLayout layout;
        layout.add(0, position, kBlock);
        backend_->draft_attention(
            a.view(),
            {q.view(), k.view(), v.view(), weight(p + "q_norm.weight").values(),
             weight(p + "k_norm.weight").values()},
            cache, params_, layout.rows());
        const Guarded<float> s = product(weight(p + "o_proj.weight"), a.view());
        backend_->add(h, mixed(l + "attention_conv", 1, s.view(), dynamic.view()).view());
    }
    void feed_forward(int64_t layer, View<float> h) {
        const std::string l = "layers." + std::to_string(layer) + ".";
        const Guarded<float> x = normed(l + "post_attention_layernorm.weight", h);
        const Guarded<float> dynamic =
            product(weight(l + "mlp_conv.kernel_projection.weight"), x.view());
        const Guarded<float> y = mixed(l + "mlp_conv", 0, x.view(), dynamic.view());
        Guarded<float> gate = product(weight(l + "mlp.gate_proj.weight"), y.view());
        const Guarded<float> up = product(weight(l + "mlp.up_proj.weight"), y.view());
        backend_->swiglu(gate.view(), gate.view(), up.view(), 0.0f);
        const Guarded<float> s = product(weight(l + "mlp.down_proj.weight"), gate.view());
        backend_->add(h, mixed(l + "mlp_conv", 1, s.view(), dynamic.view()).view());
    }

    static constexpr int32_t kBlock = 5;
    DraftAttentionParams params_;
};

TEST_F(DrafterGolden, BlockAndPath) {
    const int32_t position = static_cast<int32_t>(table("drafter/taps").rows());
    const int32_t ring_size = 16;  // window 11 + block 5
    const Table embed = table("drafter/embed"), head = table("drafter/head");
    for (const int32_t anchor : {3, 17}) {
        const std::string group = "drafter/anchor_" + std::to_string(anchor);
        Guarded<float> h(kBlock, embed.cols());
        std::vector<int32_t> tokens(kBlock, 39);
        tokens[0] = anchor;
        backend_->embed(h.view(), tokens.data(), embed.matrix(), 1);
        for (int64_t layer = 0; layer < 2; ++layer) {
            Guarded<float> keys(1, ring_size * 32), values(1, ring_size * 32);
            const DraftCache cache{keys.view(), values.view(), ring_size};
            fill_context(layer, cache);
            attention(layer, h.view(), cache, position);
            feed_forward(layer, h.view());
        }
        const Guarded<float> hidden = normed("norm.weight", h.view());
        EXPECT_TRUE(close(hidden.values(), table(group + "/hidden").data.values,
                          reduced(16 * embed.cols())));
        // Slots 1.. of the block through the head and the selector.
        const View<const float> drafts = hidden.view().slice_rows(1, kBlock - 1);
        const Guarded<float> logits = product(head, drafts);
        const Guarded<float> projected =
            product(weight("candidate_selector.hidden_projection.weight"), drafts);
        Guarded<float> top(kBlock - 1, 6);
        Guarded<int32_t> ids(kBlock - 1, 6), path(1, kBlock - 1);
        backend_->top_k(top.view(), ids.view(), logits.view(), 0,
                        static_cast<int32_t>(head.rows()));
        backend_->walk_path(
            path.view(), {},
            {top.view(), ids.view(), projected.view(),
             weight("candidate_selector.predecessor_codebook").matrix(),
             weight("candidate_selector.successor_codebook").matrix(), &anchor, nullptr});
        EXPECT_TRUE(same(path.values(), ints(group + "/path")));
    }
}

}  // namespace
}  // namespace quadrille
