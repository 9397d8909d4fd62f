// SPDX-License-Identifier: Apache-2.0
// What ops are given beside views: rows of a pass, parameters, weights, states and caches. Pointers
// and views are memory of the backend that executes the op unless said otherwise.
#pragma once

#include "kernels/exp_sum.h"
#include "kernels/matrix.h"
#include "kernels/sample_row.h"
#include "kernels/view.h"

#include <cstdint>
#include <span>

namespace quadrille {

inline constexpr int32_t kMaxStreams = 8;  // of mHC
inline constexpr int32_t kMaxTaps = 8;     // of KDA's convolution
inline constexpr int32_t kMaxPool = 64;    // tokens of an indexer's pool

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

// One product of a group: out (m, n) = in (m, k) W^T (+ bias).
struct Product {
    View<float> out;
    View<const float> in;
    Matrix weight;
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

// What kda reads and writes of each row. c = heads * head_dim.
struct KdaPass {
    View<float> out;        // (m, c): gated, normed output
    View<const float> qkv;  // (m, 3c) raw convolution inputs
    View<const float> f;    // (m, c) forget gate before bias and sigmoid
    View<const float> b;    // (m, heads) beta before its sigmoid
    View<const float> g;    // (m, c) output gate before its sigmoid
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
};

// The blocks that draft_attention runs, rows side by side; norms (d) are per head.
struct DraftBlock {
    View<const float> query;  // (m, heads * d)
    View<const float> key;    // (m, kv_heads * d)
    View<const float> value;  // (m, kv_heads * d)
    const float* q_norm = nullptr;
    const float* k_norm = nullptr;
};

// What walk_path chooses from: candidates of each slot, and the selector's codebooks.
struct WalkInput {
    View<const float> values;          // (sequences * k, top) unary scores
    View<const int32_t> ids;           // (sequences * k, top); -1: none
    View<const float> projected;       // (sequences * k, rank); rank 0: no selector
    Matrix predecessor;                // native (vocab, rank)
    Matrix successor;                  // native (vocab, rank)
    const int32_t* anchor = nullptr;   // (sequences)
    const SampleRow* draws = nullptr;  // (sequences); nullptr: greedy
};

// Rows to draw from: `count` SampleRow whose row index names a row of `logits`. Only the first
// `valid` columns count; column c is id first_id + c, first_id is even.
struct SampleInput {
    View<const float> logits;
    const SampleRow* rows = nullptr;
    int32_t count = 0;
    int32_t first_id = 0;
    int32_t valid = 0;
};

}  // namespace quadrille
