// SPDX-License-Identifier: Apache-2.0
// TrainOps: what training a drafter asks of a machine, forward and backward, beside Ops: inference
// never sees it. T is float; double serves tests on the CPU. Views are row-major in the memory of
// one device; ops run in the order of the calls. "+=" adds to what is there, "=" replaces it.
// Formulas: kernels/README.md. An op gives the same bits whenever it is given the same numbers.
#pragma once

#include "kernels/view.h"

#include <cstdint>
#include <span>

namespace quadrille {

// nt: a (m, k) b (n, k); nn: a (m, k) b (k, n); tn: a (k, m) b (k, n).
enum class ProductForm : uint8_t { nt, nn, tn };

struct ConvShape {
    int64_t taps = 0;   // rows back, the row itself included
    int64_t group = 0;  // channels that share a coefficient
    int64_t block = 0;  // rows of a block, whose start no tap crosses
    int64_t side = 0;   // 0: before the sublayer, 1: after it
};

struct AttentionShape {
    int64_t heads = 0;
    int64_t kv_heads = 0;
    int64_t dim = 0;
    int64_t window = 0;   // a row sees context less than so many positions back; 0: all of it
    bool causal = false;  // rows of a block see no later ones
};

// Context rows of one sequence, and the draft blocks that lie on it.
struct TrainSequence {
    int64_t context_begin = 0;
    int64_t context_rows = 0;
    int64_t block_begin = 0;
    int64_t blocks = 0;
};

struct BlockPlan {
    int64_t block = 0;                         // rows of a block
    std::span<const TrainSequence> sequences;  // host memory; blocks in order
    // (blocks) in device memory: a block sees the first `anchor` context rows of its sequence.
    const int32_t* anchor = nullptr;
};

template <class T>
struct AttentionInputs {
    View<const T> q, k, v;               // (block rows, heads * dim), (block rows, kv_heads * dim)
    View<const T> context_k, context_v;  // (context rows, kv_heads * dim)
};

template <class T>
struct AttentionGradients {
    View<T> q, k, v, context_k, context_v;
};

// A teacher's best tokens of each row.
template <class T>
struct Teacher {
    View<const T> logits;     // (m, best)
    View<const int32_t> ids;  // (m, best)
};

// What a row's losses are, before weights. Each (m).
template <class T>
struct RowLosses {
    T* lse = nullptr;     // log of the sum of exp over the vocabulary
    T* ce = nullptr;      // of the label
    T* kl = nullptr;      // from the teacher
    T* trust = nullptr;   // to the reference drafter
    T* hidden = nullptr;  // 1 - cosine
};

// Weight of each loss of each row, each (m).
template <class T>
struct RowWeights {
    const T* ce = nullptr;
    const T* kl = nullptr;
    const T* trust = nullptr;
    const T* hidden = nullptr;
    const T* selector = nullptr;
};

template <class T>
struct Selector16 {
    View<const int32_t> ids;          // (m, candidates)
    View<const T> scores;             // (m, candidates), unary
    View<const T> projected;          // (m, rank), P h
    View<const T> predecessor;        // (vocab, rank)
    View<const T> successor;          // (vocab, rank)
    const int32_t* before = nullptr;  // (m), predecessor token of each row
    const int32_t* label = nullptr;   // (m)
};

// Rows whose gradients go to one row of a table, in a fixed order: entry e of unique token u, with
// offsets[u] <= e < offsets[u + 1], is row * candidates + place of a candidate, or a row.
struct RowLists {
    int64_t count = 0;                 // unique tokens
    const int32_t* tokens = nullptr;   // (count)
    const int32_t* offsets = nullptr;  // (count + 1)
    const int32_t* entries = nullptr;
};

template <class T>
struct AdamStep {
    T rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, decay = 0;
    T correction1 = 1, correction2 = 1;  // 1 - beta^step
    T scale = 1;                         // of the gradient: clipping
};

template <class T>
class TrainOps {
  public:
    virtual ~TrainOps() = default;

    // out (m, n) = or += product of a and b.
    virtual void product(View<T> out, View<const T> a, View<const T> b, ProductForm form,
                         bool add) = 0;
    // out (m, cols) = bf16 bits.
    virtual void widen(View<T> out, const uint16_t* bits) = 0;
    virtual void add(View<T> out, View<const T> in) = 0;
    // out (m, h) = rows `tokens` of table.
    virtual void take_rows(View<T> out, const int32_t* tokens, View<const T> table) = 0;
    // The rows behind the first of each block: out (blocks * (block - 1), h) = in (blocks * block,
    // h), and the way back, where first rows become 0.
    virtual void take_slots(View<T> out, View<const T> in, int64_t block) = 0;
    virtual void give_slots(View<T> out, View<const T> in, int64_t block) = 0;

    virtual void rms_norm(View<T> y, View<const T> x, const T* weight, T eps) = 0;
    // dx = or += ; dweight += , nullptr: none.
    virtual void rms_norm_back(View<T> dx, T* dweight, View<const T> dy, View<const T> x,
                               const T* weight, T eps, bool add) = 0;
    // In place: x (m, heads * dim), rotate-half by positions (m); `back`: the other way.
    virtual void rope(View<T> x, const int32_t* positions, int64_t dim, double theta,
                      bool back) = 0;
    virtual void swiglu(View<T> y, View<const T> gate, View<const T> up) = 0;
    virtual void swiglu_back(View<T> dgate, View<T> dup, View<const T> dy, View<const T> gate,
                             View<const T> up) = 0;
    // y (m, h); dynamic (m, 2 * taps * groups); base (2, taps, h).
    virtual void conv(View<T> y, View<const T> x, View<const T> dynamic, const T* base,
                      const ConvShape& shape) = 0;
    // ddynamic: this side's columns = ; dbase += or nullptr. dx = or +=.
    struct ConvGradients {
        View<T> x, dynamic;
        T* base = nullptr;
        bool add = false;
    };
    virtual void conv_back(const ConvGradients& out, View<const T> dy, View<const T> x,
                           View<const T> dynamic, const T* base, const ConvShape& shape) = 0;
    virtual void attention(View<T> out, const AttentionInputs<T>& in, const AttentionShape& shape,
                           const BlockPlan& plan) = 0;
    // All of `gradients` =.
    virtual void attention_back(const AttentionGradients<T>& gradients, View<const T> dout,
                                const AttentionInputs<T>& in, const AttentionShape& shape,
                                const BlockPlan& plan) = 0;

    // values, ids (m, k): the k largest, descending, ties to the lowest id.
    virtual void top_k(View<T> values, View<int32_t> ids, View<const T> logits) = 0;
    // lse, ce, kl and, with `reference` logits (m, vocab), trust.
    virtual void loss_rows(const RowLosses<T>& out, View<const T> logits, const int32_t* label,
                           const Teacher<T>& teacher, View<const T> reference) = 0;
    // logits become the gradient of the weighted losses of logits; `out` holds the losses.
    virtual void loss_back(View<T> logits, const RowLosses<T>& rows, const RowWeights<T>& weights,
                           const int32_t* label, const Teacher<T>& teacher,
                           View<const T> reference) = 0;
    // hidden (m) = 1 - cosine of the rows; dx += its weighted gradient.
    virtual void cosine(T* hidden, View<const T> x, View<const T> y) = 0;
    virtual void cosine_back(View<T> dx, View<const T> x, View<const T> y, const T* weight) = 0;

    // probabilities (m, candidates) of the selector; loss (m): cross entropy, -1 where the label is
    // no candidate; best (m): place of the best candidate.
    virtual void selector(View<T> probabilities, T* loss, int32_t* best,
                          const Selector16<T>& in) = 0;
    // Errors e are weight (p - onehot): dlogits[id] += e; dprojected =; e_out (m, candidates) = e.
    virtual void selector_back(View<T> dlogits, View<T> dprojected, View<T> errors,
                               View<const T> probabilities, const T* weight,
                               const Selector16<T>& in) = 0;
    // dpredecessor, dsuccessor (vocab, rank) +=. `before`: rows by predecessor; `candidates`.
    virtual void codebooks_back(View<T> dpredecessor, View<T> dsuccessor, View<const T> errors,
                                const Selector16<T>& in, const RowLists& before,
                                const RowLists& candidates) = 0;

    // The sum of squares, in a fixed order; waits for it.
    virtual double sum_squares(const T* values, int64_t count) = 0;
    // weights, first and second moments (count); decoupled weight decay.
    virtual void adamw(T* weights, const T* gradient, T* first, T* second, int64_t count,
                       const AdamStep<T>& step) = 0;
};

}  // namespace quadrille
