// SPDX-License-Identifier: Apache-2.0
// Backend: memory, ordering and every op of the model. The only compute header the layers above
// include. Ops run in stream order (CPU: done on return), outputs first, then inputs, then sizes.
// Pointers and views are memory of the backend that executes the op unless said otherwise; no op
// allocates once its scratch has grown to the largest pass, and none reads another record's rows:
// what a row computes never depends on the company it has (docs/design.md §6). Formulas and the
// letters m k n h d e: kernels/README.md.
#pragma once

#include "kernels/error.h"
#include "kernels/matrix.h"
#include "kernels/sample_row.h"
#include "kernels/view.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace quadrille {

// The rows of one pass, grouped by sequence: rows [begin[i], begin[i+1]) are consecutive tokens of
// sequence i, the first at `position[i]` (= tokens already in its caches, pending rows included).
struct Rows {
    int32_t m = 0;                          // rows
    int32_t sequences = 0;                  // sequences
    const int32_t* begin = nullptr;         // (sequences + 1)
    const int32_t* slot = nullptr;          // (sequences) state slot; -1: padding, rows are ignored
    const int32_t* position = nullptr;      // (sequences)
    const int32_t* pending = nullptr;       // (sequences) accepted rows of the last step, see kda
    const int32_t* row_sequence = nullptr;  // (m) sequence of a row
    // true (prefill): KDA state after these rows is stored and nothing stays pending.
    // false (decode): the rows become the pending ones.
    bool commit = false;
};

struct HyperParams {
    int32_t streams = 4;
    int32_t sinkhorn_iterations = 20;
    float sinkhorn_eps = 1e-6f;
    float norm_eps = 1e-5f;
};

struct KdaParams {
    int32_t heads = 0;  // of this rank
    int32_t head_dim = 0;
    int32_t taps = 4;           // convolution kernel
    float lower_bound = -5.0f;  // log decay = lower_bound * sigmoid(...)
    float norm_eps = 1e-5f;     // of the output norm
};

struct KdaWeights {
    const float* conv = nullptr;     // (3 * heads * head_dim, taps), q | k | v; the last tap is now
    const float* a_log = nullptr;    // (heads)
    const float* dt_bias = nullptr;  // (heads * head_dim)
    const float* o_norm = nullptr;   // (head_dim)
};

// Deferred commit: `state` and `conv` are those *before* the rows accepted in the last step; those
// rows wait as raw convolution inputs, decay and beta. c = heads * head_dim.
struct KdaState {
    View<float> state;          // (slots, heads * head_dim * head_dim), [head][key][value]
    View<float> conv;           // (slots, (taps - 1) * 3c) raw inputs, oldest first
    View<float> pending_qkv;    // (slots, max_pending * 3c)
    View<float> pending_decay;  // (slots, max_pending * c)
    View<float> pending_beta;   // (slots, max_pending * heads)
};

struct IndexParams {
    int32_t heads = 0;
    int32_t head_dim = 0;
    int32_t pool = 4;  // tokens per pool (index_kpool)
    int32_t topk = 0;  // tokens selected, a multiple of pool
};

// Pools of the indexer of one layer. `ring` holds key | gate of the last tokens by position modulo
// `ring_size`, which must be >= pool - 1 + the longest decode block.
struct IndexCache {
    View<float> pools;  // (slots, capacity / pool * head_dim)
    View<float> ring;   // (slots, ring_size * 2 * head_dim)
    int32_t ring_size = 0;
};

struct MlaParams {
    int32_t heads = 0;       // of this rank
    int32_t key_dim = 0;     // qk_nope_head_dim
    int32_t value_dim = 0;   // v_head_dim
    int32_t latent_dim = 0;  // kv_lora_rank
};

// Routed experts and the shared one. `experts` is a table of `count` Mlp in backend memory.
struct MoeWeights {
    const Mlp* experts = nullptr;
    // The same table in host memory. A backend with memory of its own plans its launches from it;
    // without it (nullptr) it reads the table back, which waits for the device.
    const Mlp* host_experts = nullptr;
    int32_t count = 0;
    Mlp shared;
    float limit = 10.0f;    // swiglu clamp
    int64_t max_width = 0;  // widest intermediate (padded) of any expert or the shared one
};

struct DraftAttentionParams {
    int32_t heads = 0;     // of this rank
    int32_t kv_heads = 0;  // of this rank
    int32_t head_dim = 0;
    int32_t block = 8;   // rows of a draft block
    int32_t window = 0;  // key visible iff query position - key position < window; 0: all
    float rope_theta = 10000.0f;
    float norm_eps = 1e-5f;
    bool causal = false;  // inside the block
};

// Keys (normed and rotated) and values of the drafter's context, one layer, by position modulo
// `ring_size` (>= window + block, or the whole context where window is 0).
struct DraftCache {
    View<float> keys;    // (slots, ring_size * kv_heads * head_dim)
    View<float> values;  // (slots, ring_size * kv_heads * head_dim)
    int32_t ring_size = 0;

    void check(const DraftAttentionParams& params) const {
        const int64_t width = int64_t{params.kv_heads} * params.head_dim;
        require(params.heads > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0 &&
                    params.head_dim > 0 && params.head_dim % 2 == 0,
                "draft attention: heads are a multiple of kv_heads, head_dim is even");
        require(ring_size > 0 && keys.cols == ring_size * width && values.cols == keys.cols &&
                    values.rows == keys.rows,
                "draft attention: keys and values (slots, ring_size kv_heads d)");
    }
};

// Work of a backend that was recorded; replayed, in stream order, as often as wanted. It must not
// outlive its backend or the memory it works on.
class Recording {
  public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;

    virtual std::string name() const = 0;
    virtual std::string device() const = 0;  // for provenance: processor or GPU name
    // Libraries and drivers it runs on, with versions, for provenance.
    virtual std::vector<std::string> libraries() const { return {}; }
    // Whether its memory is the host's, so that anyone may read and write it.
    virtual bool on_host() const { return false; }

    // ---- memory and ordering ------------------------------------------------------------------
    // 64-byte aligned, zero-filled. nullptr for 0 bytes. Throws Error{device} when there is none.
    virtual void* allocate(int64_t bytes) = 0;
    virtual void release(void* pointer) noexcept = 0;
    virtual void* allocate_host(int64_t bytes) = 0;  // pinned where that means something
    virtual void release_host(void* pointer) noexcept = 0;
    virtual void upload(void* to, const void* host, int64_t bytes) = 0;
    virtual void download(void* host, const void* from, int64_t bytes) = 0;
    virtual void copy(void* to, const void* from, int64_t bytes) = 0;
    virtual void fill_zero(void* to, int64_t bytes) = 0;
    virtual void synchronize() = 0;
    // A download that nobody waits for: done with the next synchronize(). host: of allocate_host.
    virtual void fetch(void* host, const void* from, int64_t bytes) { download(host, from, bytes); }

    // Whether record() works.
    virtual bool records() const { return false; }
    // What `work` asks of this backend, recorded and not done. `work` has run before with the same
    // shapes, uploads from memory of allocate_host only, and neither downloads nor allocates.
    virtual std::unique_ptr<Recording> record(const std::function<void()>& work);

    // ---- rows -----------------------------------------------------------------------------------
    // out (m, copies * h) f32: `copies` times row tokens[i] of table (vocab, h); token -1: zeros.
    virtual void embed(View<float> out, const int32_t* tokens, const Matrix& table,
                       int32_t copies) = 0;
    // out, in (m, h): weight[c] * x[c] / sqrt(mean(x^2) + eps); out may be in.
    virtual void rms_norm(View<float> out, View<const float> in, const float* weight,
                          float eps) = 0;
    // out, in (m, d): (x - mean) / sqrt(var + eps) * weight + bias, biased variance.
    virtual void layer_norm(View<float> out, View<const float> in, const float* weight,
                            const float* bias, float eps) = 0;
    // out (m, n) = in (m, k) W^T (+ bias), summed per segment of W.
    virtual void linear(View<float> out, View<const float> in, const Matrix& weight) = 0;
    // out (m, n) = silu(min(gate, limit)) * clamp(up, -limit, limit); limit 0: no clamps.
    virtual void swiglu(View<float> out, View<const float> gate, View<const float> up,
                        float limit) = 0;
    // out (m, n) += in (m, n).
    virtual void add(View<float> out, View<const float> in) = 0;
    // out (m, n) = balanced tree over `count` (2 or 4) parts, part p at parts + p * part_stride,
    // each gapless (m, n).
    virtual void tree_sum(View<float> out, const float* parts, int32_t count,
                          int64_t part_stride) = 0;
    // out[i] = in[index[i]] (rows); index -1: row i of out is left as it is.
    virtual void copy_rows(View<float> out, View<const float> in, const int32_t* index) = 0;

    // ---- hyper-connections (mHC); streams is (m, s * h), stream-major
    // ----------------------------- pre, post (m, s), mix (m, s * s): row a, column b; fn (2s +
    // s^2, s * h), base (2s + s^2), scale (3).
    virtual void hyper_weights(View<float> pre, View<float> post, View<float> mix,
                               View<const float> streams, const Matrix& fn, const float* base,
                               const float* scale, const HyperParams& params) = 0;
    // out (m, h) = sum_i pre[i] * stream[i].
    virtual void hyper_in(View<float> out, View<const float> streams, View<const float> pre) = 0;
    // stream'[j] = post[j] * y + sum_i mix[i][j] * stream[i], in place; y (m, h).
    virtual void hyper_out(View<float> streams, View<const float> y, View<const float> post,
                           View<const float> mix) = 0;
    // out (m, h) = mean of the `streams_count` streams.
    virtual void stream_mean(View<float> out, View<const float> streams, int32_t streams_count) = 0;

    // ---- KDA
    // ---------------------------------------------------------------------------------------- out
    // (m, c): gated, normed output of each row; qkv (m, 3c) raw convolution inputs; f (m, c) forget
    // gate before bias and sigmoid; b (m, heads) beta before its sigmoid; g (m, c) output gate
    // before its sigmoid. First applies the sequence's pending rows to the stored state, then runs
    // its own rows (see Rows::commit). The stored state counts as zero, whatever the memory holds,
    // while nothing was committed to it: position == pending. Decode passes hold at most
    // max_pending rows of a sequence. Rows of slot -1 are zero.
    virtual void kda(View<float> out, View<const float> qkv, View<const float> f,
                     View<const float> b, View<const float> g, const KdaWeights& weights,
                     const KdaState& state, const KdaParams& params, const Rows& rows) = 0;
    // Applies the first `pending` pending rows of `slot` to its stored state. `fresh`: the stored
    // state counts as zero.
    virtual void kda_flush(const KdaWeights& weights, const KdaState& state,
                           const KdaParams& params, int32_t slot, int32_t pending, bool fresh) = 0;

    // ---- MLA
    // ------------------------------------------------------------------------------------------
    // latents (slots, capacity * r): row i of latent (m, r) goes to its slot and position.
    virtual void latent_append(View<float> latents, View<const float> latent, const Rows& rows) = 0;
    // key (m, d) normed, gate (m, d), ape (pool, d): writes every pool whose last token is among
    // these rows, and the ring.
    virtual void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                            const float* ape, const IndexParams& params, const Rows& rows) = 0;
    // selected (m, topk + pool - 1) int32: positions a row attends to, ascending, -1 behind them;
    // count (m): how many, or -1 for "all positions up to its own". query (m, heads * d),
    // weight (m, heads) as projected (the op scales by 1/sqrt(heads) and 1/sqrt(d)). Ties between
    // pools: the lowest. Rows of slot -1: count 0.
    virtual void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                              View<const float> weight, const IndexCache& cache,
                              const IndexParams& params, const Rows& rows) = 0;
    // out (m, heads * value_dim), query (m, heads * key_dim); kv_b native
    // (heads * (key_dim + value_dim), r), per head keys first; latents as latent_append.
    // No row attends to more positions than `selected` has columns.
    virtual void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                               View<const float> latents, View<const int32_t> selected,
                               const int32_t* count, const MlaParams& params, const Rows& rows) = 0;

    // ---- experts
    // ---------------------------------------------------------------------------------------- ids
    // (m, topk), weights (m, topk): the topk largest of sigmoid(logits) + bias, ties to the lowest
    // id, descending; weight = sigmoid / (sum of the selected + 1e-20) * scale. Rows of slot -1 go
    // nowhere: ids -1, weights 0. `rows` without rows: all are real.
    virtual void route(View<int32_t> ids, View<float> weights, View<const float> logits,
                       const float* bias, float scale, const Rows& rows = {}) = 0;
    // out (m, n): per segment, the sum in slot order of weight * down(swiglu(gate x, up x)), then
    // + the shared expert; then the tree over segments. An id of -1 contributes nothing.
    virtual void moe(View<float> out, View<const float> in, View<const int32_t> ids,
                     View<const float> weights, const MoeWeights& experts) = 0;

    // ---- vocabulary
    // --------------------------------------------------------------------------------------- value
    // (m), id (m): largest of the first `valid` columns, ties to the lowest; id = first_id +
    // column. valid == 0: -inf and -1.
    virtual void argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                        int32_t valid) = 0;
    // values, ids (m, k): the k largest, descending, ties to the lowest id; missing: -inf and -1.
    virtual void top_k(View<float> values, View<int32_t> ids, View<const float> logits,
                       int32_t first_id, int32_t valid) = 0;
    // values, ids (m, k): the k best of `count` lists that top_k made, descending, ties to the
    // lowest id; missing: -inf and -1. Part p holds gapless (m, k) values at part_values + p *
    // part_stride and ids at part_ids + p * part_stride.
    virtual void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                             const int32_t* part_ids, int32_t count, int64_t part_stride) = 0;

    // ---- sampling: rows described by SampleRow (kernels/sample_row.h), whose row index names a
    // row of `logits`; results are (count), in the order of `rows`. As above only the first `valid`
    // columns count, and column c is id first_id + c. l' is the logit after the repetition penalty;
    // a NaN or -inf is never drawn in a row with a temperature. Everything but logits is the same
    // bits on every backend: noise.h and exp_sum.h are shared.
    // Sets the bit of tokens[i] in row slots[i] of seen (slots, words).
    virtual void mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                           int32_t count) = 0;
    // The id with the largest l' / T + Gumbel noise (greedy: the largest l'), ties to the lowest;
    // that score, and its raw logit. The ids of excluded.row(i) are passed over (-1: none; a view
    // of no columns: no row has any). Nothing to draw: -inf, -1, -inf.
    virtual void sample(double* score, int32_t* id, float* logit, View<const float> logits,
                        const SampleRow* rows, int32_t count, View<const int32_t> excluded,
                        int32_t first_id, int32_t valid) = 0;
    // values, raw, ids (count, k): the k largest l', descending, ties to the lowest id; never NaN
    // or -inf; missing: -inf, -inf and -1. raw: the logits themselves.
    virtual void sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                                   View<const float> logits, const SampleRow* rows, int32_t count,
                                   int32_t first_id, int32_t valid) = 0;
    // Sum of exp(l' / T), exact (kernels/exp_sum.h). Greedy: T = 1.
    virtual void sample_sum(ExpSum* sums, View<const float> logits, const SampleRow* rows,
                            int32_t count, int32_t first_id, int32_t valid) = 0;
    // values, raw (count, n): l' and logit of ids (count, n); NaN for ids outside these columns.
    virtual void sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                           View<const float> logits, const SampleRow* rows, int32_t count,
                           int32_t first_id, int32_t valid) = 0;

    // ---- between the parts of a decode step ----------------------------------------------------
    // tokens (m) of blocks that begin with an anchor and go on with drafts: row j of sequence i is
    // anchor[i], then path(i, j - 1); -1 where the slot is -1. anchor (sequences), path (sequences
    // that have a slot, k), no block longer than k + 1.
    virtual void block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                              const Rows& rows) = 0;
    // write (m, room for a multiple of 4, zero behind m): 1 for the rows of a sequence as long as
    // each token equals the target that follows the row before; the first row always; 0 where the
    // slot is -1. tokens, target (m).
    virtual void mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                               const Rows& rows) = 0;
    // id (m): of `count` results of `sample` for the same rows, the one with the largest score, the
    // first of equals; ids of -1 are none. Part p: scores and ids part_bytes (of 8) apart.
    virtual void merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                               int32_t count, int64_t part_bytes) = 0;

    // ---- drafter (DFlash2); blocks of `block` rows, one per sequence
    // ------------------------------------- Context rows i of key, value (m, kv_heads * d) of one
    // layer: key is normed per head with k_norm (d), rotated at its position, and both are written
    // to the ring. write[i] == 0: skip. A pass may be longer than the ring: the last row that is
    // written to a place stays.
    virtual void draft_append(const DraftCache& cache, View<const float> key,
                              View<const float> value, const float* k_norm, const uint8_t* write,
                              const DraftAttentionParams& params, const Rows& rows) = 0;
    // out (m, heads * d). Block row j sits at position[i] + j; it sees the context positions
    // [0, position[i]) inside the window and the whole block (unless causal).
    virtual void draft_attention(View<float> out, View<const float> query, View<const float> key,
                                 View<const float> value, const float* q_norm, const float* k_norm,
                                 const DraftCache& cache, const DraftAttentionParams& params,
                                 const Rows& rows) = 0;
    // out (m, h): out_t[c] = sum_tap (base[tap][c] + dynamic[tap][c / group]) * in_{t - tap}[c];
    // taps never cross a block. base (taps, h); dynamic (m, taps * h / group). out is not in.
    virtual void draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                            const float* base, int32_t taps, int32_t group, int32_t block) = 0;
    // path (sequences, k): slot t takes the best of its candidates by unary + pair score
    // sum_r predecessor[a][r] * projected[r] * successor[b][r], a = token before it (anchor first).
    // values, ids (sequences * k, top); projected (sequences * k, rank); codebooks (vocab, rank).
    // rank 0: no selector, the best unary candidate. Ties: the first candidate.
    // draws (sequences), or nullptr (greedy): slot t is drawn as `sample` would, from its
    // candidates with these scores for logits, at draws[i].position + t; penalized are the ids in
    // draws[i].seen and those of the path before it. scores (sequences * k, top), or a view of no
    // rows: the scores walked by, penalized, before temperature and noise; -inf for an id of -1.
    virtual void walk_path(View<int32_t> path, View<float> scores, View<const float> values,
                           View<const int32_t> ids, View<const float> projected,
                           const Matrix& predecessor, const Matrix& successor,
                           const int32_t* anchor, const SampleRow* draws) = 0;
};

// "cpu", "cuda" or "check" (kernels/check: the GPU judged by the CPU; without one, the CPU's best
// path by its plain one); "cpu-plain", "cpu-avx2" and "cpu-avx512" force the CPU's path (all give
// the same bits). Throws Error{usage} for other names and Error{device} for one this
// build or machine cannot provide. device: which of the visible GPUs.
std::unique_ptr<Backend> make_backend(const std::string& name, int32_t device = 0);

// Usable GPUs; 0 without a driver or in a build without CUDA.
int32_t gpu_count();
// Whether this build has the CUDA backend.
bool has_cuda();

}  // namespace quadrille
