// SPDX-License-Identifier: Apache-2.0
#include "kernels/contract.h"

#include "kernels/error.h"
#include "kernels/exl3.h"

namespace quadrille::contract {

namespace {

template <class A, class B>
bool same_shape(const View<A>& a, const View<B>& b) {
    return a.rows == b.rows && a.cols == b.cols;
}

void kda_state(const KdaState& state, const KdaParams& params) {
    const int64_t c = int64_t{params.heads} * params.head_dim;
    require(params.heads > 0 && params.head_dim > 0, "kda: heads and head_dim are positive");
    require(params.taps > 0 && params.taps <= kMaxTaps, "kda: 1..8 convolution taps");
    const int64_t rows = state.pending_beta.cols / params.heads;  // max_pending
    require(state.state.cols == c * params.head_dim && state.conv.cols == (params.taps - 1) * 3 * c,
            "kda: state (slots, heads d d), conv (slots, (taps - 1) 3c)");
    require(state.pending_qkv.cols == rows * 3 * c && state.pending_decay.cols == rows * c &&
                state.pending_beta.cols == rows * params.heads,
            "kda: pending buffers hold the same number of rows");
}

void draft_cache(const DraftCache& cache, const DraftAttentionParams& params) {
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    require(params.heads > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0 &&
                params.head_dim > 0 && params.head_dim % 2 == 0,
            "draft attention: heads are a multiple of kv_heads, head_dim is even");
    require(cache.ring_size > 0 && cache.keys.cols == cache.ring_size * width &&
                cache.values.cols == cache.keys.cols && cache.values.rows == cache.keys.rows,
            "draft attention: keys and values (slots, ring_size kv_heads d)");
}

void columns(const SampleInput& in) {
    require(in.valid >= 0 && in.valid <= in.logits.cols && (in.valid == 0 || in.first_id % 2 == 0),
            "sampling: valid columns inside the row, the first id even");
}

}  // namespace

void matrix(const Matrix& w) {
    require(w.segments == 1 || w.segments == 2 || w.segments == 4, "matrix of 1, 2 or 4 segments");
    if (w.segments > 1) {
        require(w.segment[0] == 0 && w.segment[static_cast<size_t>(w.segments)] == w.k,
                "segments cover the inputs");
    }
    for (int32_t s = 0; s < w.segments && w.segments > 1; ++s) {
        const int64_t first = w.segment[static_cast<size_t>(s)];
        const int64_t last = w.segment[static_cast<size_t>(s) + 1];
        require(first <= last, "segments ascend");
        require(!w.is_exl3() || first == last ||
                    (first % exl3::kBlock == 0 && (last % exl3::kBlock == 0 || last == w.k)),
                "EXL3 segments cut at blocks of 128");
    }
    if (!w.is_exl3()) {
        require(w.dtype == Dtype::bf16 || w.dtype == Dtype::f16 || w.dtype == Dtype::f32,
                "native weights are bf16, f16 or f32");
        return;
    }
    require(w.bits >= 1 && w.bits <= 8, "EXL3 matrix of 1 to 8 bits");
    require(w.k_padded % exl3::kBlock == 0 && w.n_padded % exl3::kBlock == 0 && w.k_padded >= w.k &&
                w.n_padded >= w.n,
            "EXL3 matrix padded to blocks of 128");
}

void embed(View<float> out, const int32_t*, const Matrix& table, int32_t copies) {
    require(!table.is_exl3(), "embed: a native table");
    require(copies >= 1 && out.cols == copies * table.k, "embed: out is (m, copies * h)");
}
void rms_norm(View<float> out, View<const float> in, const float*, float) {
    require(same_shape(out, in), "rms_norm: out and in have one shape");
}
void layer_norm(View<float> out, View<const float> in, const float*, const float*, float) {
    require(same_shape(out, in), "layer_norm: out and in have one shape");
}
void linear(View<float> out, View<const float> in, const Matrix& weight) {
    matrix(weight);
    require(out.rows == in.rows && out.cols == weight.n && in.cols == weight.k,
            "linear: out (m, n), in (m, k)");
}
void linears(std::span<const Product> group) {
    for (const Product& product : group) linear(product.out, product.in, product.weight);
}
void swiglu(View<float> out, View<const float> gate, View<const float> up, float) {
    require(same_shape(out, gate), "swiglu: out and gate have one shape");
    require(same_shape(out, up), "swiglu: out and up have one shape");
}
void add(View<float> out, View<const float> in) {
    require(same_shape(out, in), "add: out and in have one shape");
}
void tree_sum(View<float>, const float*, int32_t count, int64_t) {
    require(count == 1 || count == 2 || count == 4, "tree_sum: 1, 2 or 4 parts");
}
void copy_rows(View<float> out, View<const float> in, const int32_t*) {
    require(out.cols == in.cols, "copy_rows: rows of one width");
}

void hyper_weights(View<float> pre, View<float> post, View<float> mix, View<const float> streams,
                   const Matrix& fn, const float*, const float*, const HyperParams& params) {
    const int64_t s = params.streams;
    require(s > 0 && s <= kMaxStreams, "hyper_weights: 1..8 streams");
    require(fn.weights != nullptr && fn.n == 2 * s + s * s && fn.k == streams.cols,
            "hyper_weights: fn is native (2s + s^2, s h)");
    require(pre.cols == s && post.cols == s && mix.cols == s * s && pre.rows == streams.rows &&
                post.rows == streams.rows && mix.rows == streams.rows,
            "hyper_weights: pre and post (m, s), mix (m, s^2)");
}
void hyper_in(View<float> out, View<const float> streams, View<const float> pre) {
    require(pre.cols > 0 && streams.cols == pre.cols * out.cols && streams.rows == out.rows &&
                pre.rows == out.rows,
            "hyper_in: streams (m, s h), pre (m, s)");
}
void hyper_out(View<float> streams, View<const float> y, View<const float> post,
               View<const float> mix) {
    const int64_t s = post.cols;
    require(s > 0 && s <= kMaxStreams && streams.cols == s * y.cols && mix.cols == s * s &&
                streams.rows == y.rows && post.rows == y.rows && mix.rows == y.rows,
            "hyper_out: streams (m, s h), post (m, s), mix (m, s^2)");
}
void stream_mean(View<float> out, View<const float> streams, int32_t streams_count) {
    require(
        streams_count > 0 && streams.cols == streams_count * out.cols && streams.rows == out.rows,
        "stream_mean: streams (m, s h)");
}

void kda(const KdaPass& pass, const KdaWeights&, const KdaState& state, const KdaParams& params,
         const Rows& rows) {
    kda_state(state, params);
    const int64_t c = int64_t{params.heads} * params.head_dim;
    const bool m = pass.out.rows == rows.m && pass.qkv.rows == rows.m && pass.f.rows == rows.m &&
                   pass.b.rows == rows.m && pass.g.rows == rows.m;
    require(m && pass.out.cols == c && pass.qkv.cols == 3 * c && pass.f.cols == c &&
                pass.b.cols == params.heads && pass.g.cols == c,
            "kda: out, f, g (m, c), qkv (m, 3c), b (m, heads)");
}
void kda_flush(const KdaWeights&, const KdaState& state, const KdaParams& params, int32_t slot,
               int32_t pending, bool) {
    kda_state(state, params);
    require(slot >= 0 && slot < state.state.rows, "kda: the slot exists");
    require(pending >= 0 && int64_t{pending} * params.heads <= state.pending_beta.cols,
            "kda: pending rows fit their buffer");
}

void latent_append(View<float>, View<const float> latent, const Rows& rows) {
    require(latent.rows == rows.m, "latent_append: latent (m, r)");
}
void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                const float*, const IndexParams& params, const Rows& rows) {
    const int64_t d = params.head_dim;
    require(params.pool > 0 && params.pool <= kMaxPool && cache.ring_size >= params.pool - 1,
            "index_pool: 1..64 tokens per pool, the ring holds an unfinished one");
    require(key.rows == rows.m && gate.rows == rows.m && key.cols == d && gate.cols == d &&
                cache.ring.cols == cache.ring_size * 2 * d,
            "index_pool: key and gate (m, d), ring (slots, ring_size 2 d)");
}
void index_select(View<int32_t> selected, int32_t*, View<const float> query,
                  View<const float> weight, const IndexCache&, const IndexParams& params,
                  const Rows& rows) {
    require(params.pool > 0 && params.topk >= params.pool && params.topk % params.pool == 0,
            "index_select: topk is a multiple of pool");
    require(selected.rows == rows.m && selected.cols == params.topk + params.pool - 1 &&
                query.rows == rows.m && query.cols == int64_t{params.heads} * params.head_dim &&
                weight.rows == rows.m && weight.cols == params.heads,
            "index_select: selected (m, topk + pool - 1), query (m, heads d), weight (m, heads)");
}
void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b, View<const float>,
                   View<const int32_t>, const int32_t*, const MlaParams& params, const Rows& rows) {
    const int64_t heads = params.heads;
    require(kv_b.weights != nullptr && kv_b.k == params.latent_dim &&
                kv_b.n == heads * (params.key_dim + params.value_dim),
            "mla_attention: kv_b is native (heads (key_dim + value_dim), latent_dim)");
    require(out.rows == rows.m && query.rows == rows.m && out.cols == heads * params.value_dim &&
                query.cols == heads * params.key_dim,
            "mla_attention: out (m, heads value_dim), query (m, heads key_dim)");
}

void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float*, float,
           const Rows& rows) {
    require(rows.m == 0 || rows.m == logits.rows, "route: the rows of the pass");
    require(ids.cols <= logits.cols, "route: at most as many slots as experts");
    require(ids.rows == logits.rows && weights.rows == logits.rows && weights.cols == ids.cols,
            "route: ids and weights are (m, topk)");
}
void moe(View<float> out, View<const float> in, View<const int32_t> ids, View<const float> weights,
         const MoeWeights& experts, View<const float> shared_gate, View<const float> shared_up) {
    require(shared_gate.rows == 0 ||
                (shared_gate.rows == in.rows && shared_gate.cols == experts.shared.gate.n),
            "moe: the shared expert's gate x is (m, width)");
    require(same_shape(shared_gate, shared_up), "moe: gate x and up x are as large");
    require(out.rows == in.rows && ids.rows == in.rows && weights.rows == in.rows &&
                weights.cols == ids.cols,
            "moe: out, in, ids and weights have m rows");
}

void argmax(float*, int32_t*, View<const float> logits, int32_t, int32_t valid) {
    require(valid >= 0 && valid <= logits.cols, "argmax: valid columns inside the row");
}
void top_k(View<float> values, View<int32_t> ids, View<const float> logits, int32_t,
           int32_t valid) {
    require(valid >= 0 && valid <= logits.cols, "top_k: valid columns inside the row");
    require(values.rows == logits.rows && ids.rows == logits.rows && values.cols == ids.cols,
            "top_k: values and ids are (m, k)");
}
void merge_top_k(View<float> values, View<int32_t> ids, const float*, const int32_t*, int32_t count,
                 int64_t) {
    require(same_shape(values, ids), "merge_top_k: values and ids are (m, k)");
    require(count >= 0, "merge_top_k: a number of lists");
}

void mark_seen(View<uint32_t>, const int32_t*, const int32_t*, int32_t) {}
void sample(double*, int32_t*, float*, const SampleInput& in, View<const int32_t> excluded) {
    columns(in);
    require(excluded.cols == 0 || excluded.rows >= in.count, "sample: excluded ids (count, n)");
}
void sample_filtered(int32_t*, const SampleInput& in) {
    columns(in);
}
void sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                       const SampleInput& in) {
    columns(in);
    require(values.rows >= in.count && raw.rows >= in.count && ids.rows >= in.count &&
                values.cols == ids.cols && raw.cols == ids.cols && ids.cols > 0,
            "sample_candidates: values, raw and ids are (count, k)");
}
void sample_sum(ExpSum*, const SampleInput& in) {
    columns(in);
}
void sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
               const SampleInput& in) {
    columns(in);
    require(values.rows >= in.count && raw.rows >= in.count && ids.rows >= in.count &&
                values.cols == ids.cols && raw.cols == ids.cols,
            "sample_at: values, raw and ids are (count, n)");
}

void block_tokens(int32_t*, const int32_t*, View<const int32_t>, const Rows&) {}
void mark_accepted(uint8_t*, const int32_t*, const int32_t*, const Rows&) {}
void merge_samples(int32_t*, const double*, const int32_t*, int32_t, int32_t, int64_t part_bytes) {
    require(part_bytes % 8 == 0, "merge_samples: parts of whole words of 8 bytes");
}

void draft_append(const DraftCache& cache, View<const float> key, View<const float> value,
                  const float*, const uint8_t*, const DraftAttentionParams& params,
                  const Rows& rows) {
    draft_cache(cache, params);
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    require(key.rows == rows.m && value.rows == rows.m && key.cols == width && value.cols == width,
            "draft_append: key and value (m, kv_heads d)");
}
void draft_attention(View<float> out, const DraftBlock& block, const DraftCache& cache,
                     const DraftAttentionParams& params, const Rows& rows) {
    draft_cache(cache, params);
    const int64_t d = params.head_dim;
    require(params.block > 0 && out.rows == int64_t{rows.sequences} * params.block &&
                block.query.rows == out.rows && block.key.rows == out.rows &&
                block.value.rows == out.rows && out.cols == params.heads * d &&
                block.query.cols == params.heads * d && block.key.cols == params.kv_heads * d &&
                block.value.cols == params.kv_heads * d,
            "draft_attention: out and query (sequences block, heads d), key and value (.., "
            "kv_heads d)");
}
void draft_conv(View<float> out, View<const float> in, View<const float> dynamic, const float*,
                int32_t taps, int32_t group, int32_t block) {
    const int64_t h = in.cols;
    require(taps > 0 && group > 0 && block > 0 && h % group == 0 && in.rows % block == 0 &&
                out.rows == in.rows && out.cols == h && dynamic.rows == in.rows &&
                dynamic.cols == taps * h / group,
            "draft_conv: in and out (blocks block, h), dynamic (.., taps h / group)");
    require(out.data != in.data, "draft_conv: out is not in");
}
void walk_path(View<int32_t> path, View<float> scores, const WalkInput& in) {
    const int64_t rank = in.projected.cols;
    const int64_t slots = path.rows * path.cols;
    require(in.values.rows == slots && in.ids.rows == slots && in.values.cols == in.ids.cols,
            "walk_path: values and ids (sequences k, top)");
    require(scores.rows == 0 || (scores.rows == slots && scores.cols == in.ids.cols),
            "walk_path: scores (sequences k, top)");
    require(rank == 0 || (in.projected.rows == slots && in.predecessor.weights != nullptr &&
                          in.successor.weights != nullptr && in.predecessor.k == rank &&
                          in.successor.k == rank),
            "walk_path: projected (sequences k, rank), codebooks native (vocab, rank)");
}

}  // namespace quadrille::contract
