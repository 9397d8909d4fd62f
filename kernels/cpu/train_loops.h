// SPDX-License-Identifier: Apache-2.0
// CpuTrainOps: the judge of training's ops, compiled once for every instruction set (train_plain,
// train_avx2, train_avx512), with the same bits on all of them.
#pragma once

#include "kernels/cpu/train_attention.h"
#include "kernels/cpu/train_loss.h"
#include "kernels/cpu/train_product.h"
#include "kernels/cpu/train_rows.h"
#include "kernels/dtype.h"
#include "kernels/train_ops.h"

namespace quadrille::cpu {
namespace {

template <class T>
class CpuTrainOps final : public TrainOps<T> {
  public:
    void product(View<T> out, View<const T> a, View<const T> b, ProductForm form,
                 bool add) override {
        product_of(out, a, b, form, add, scratch_);
    }
    void widen(View<T> out, const uint16_t* bits) override {
        for (int64_t i = 0; i < out.rows; ++i) {
            for (int64_t c = 0; c < out.cols; ++c) {
                out.row(i)[c] = static_cast<T>(to_float(BF16{bits[i * out.cols + c]}));
            }
        }
    }
    void add(View<T> out, View<const T> in) override {
        for (int64_t i = 0; i < out.rows; ++i) add_scaled(out.row(i), in.row(i), T{1}, out.cols);
    }
    void take_rows(View<T> out, const int32_t* tokens, View<const T> table) override {
        for (int64_t i = 0; i < out.rows; ++i) copy(out.row(i), table.row(tokens[i]), out.cols);
    }
    void take_slots(View<T> out, View<const T> in, int64_t block) override {
        for (int64_t i = 0; i < out.rows; ++i) {
            copy(out.row(i), in.row(i / (block - 1) * block + i % (block - 1) + 1), out.cols);
        }
    }
    void give_slots(View<T> out, View<const T> in, int64_t block) override {
        clear_rows(out);
        for (int64_t i = 0; i < in.rows; ++i) {
            copy(out.row(i / (block - 1) * block + i % (block - 1) + 1), in.row(i), in.cols);
        }
    }
    void rms_norm(View<T> y, View<const T> x, const T* weight, T eps) override {
        rms_norm_rows(y, x, weight, eps);
    }
    void rms_norm_back(View<T> dx, T* dweight, View<const T> dy, View<const T> x, const T* weight,
                       T eps, bool add) override {
        rms_norm_back_rows(dx, dweight, dy, x, weight, eps, add);
    }
    void rope(View<T> x, const int32_t* positions, int64_t dim, double theta, bool back) override {
        rope_rows(x, positions, dim, theta, back);
    }
    void swiglu(View<T> y, View<const T> gate, View<const T> up) override {
        swiglu_rows(y, gate, up);
    }
    void swiglu_back(View<T> dgate, View<T> dup, View<const T> dy, View<const T> gate,
                     View<const T> up) override {
        swiglu_back_rows(dgate, dup, dy, gate, up);
    }
    void conv(View<T> y, View<const T> x, View<const T> dynamic, const T* base,
              const ConvShape& shape) override {
        conv_rows(y, x, dynamic, base, shape);
    }
    void conv_back(const typename TrainOps<T>::ConvGradients& out, View<const T> dy,
                   View<const T> x, View<const T> dynamic, const T* base,
                   const ConvShape& shape) override {
        conv_back_rows<T>(out, dy, x, dynamic, base, shape);
    }
    void attention(View<T> out, const AttentionInputs<T>& in, const AttentionShape& shape,
                   const BlockPlan& plan) override {
        attention_rows(out, in, shape, plan);
    }
    void attention_back(const AttentionGradients<T>& gradients, View<const T> dout,
                        const AttentionInputs<T>& in, const AttentionShape& shape,
                        const BlockPlan& plan) override {
        attention_back_rows(gradients, dout, in, shape, plan);
    }
    void top_k(View<T> values, View<int32_t> ids, View<const T> logits) override {
        top_k_rows(values, ids, logits);
    }
    void loss_rows(const RowLosses<T>& out, View<const T> logits, const int32_t* label,
                   const Teacher<T>& teacher, View<const T> reference) override {
        loss_rows_of(out, logits, label, teacher, reference);
    }
    void loss_back(View<T> logits, const RowLosses<T>& rows, const RowWeights<T>& weights,
                   const int32_t* label, const Teacher<T>& teacher,
                   View<const T> reference) override {
        loss_back_of(logits, rows, weights, label, teacher, reference);
    }
    void cosine(T* hidden, View<const T> x, View<const T> y) override { cosine_rows(hidden, x, y); }
    void cosine_back(View<T> dx, View<const T> x, View<const T> y, const T* weight) override {
        cosine_back_rows(dx, x, y, weight);
    }
    void selector(View<T> probabilities, T* loss, int32_t* best, const Selector16<T>& in) override {
        selector_rows(probabilities, loss, best, in);
    }
    void selector_back(View<T> dlogits, View<T> dprojected, View<T> errors,
                       View<const T> probabilities, const T* weight,
                       const Selector16<T>& in) override {
        selector_back_rows(dlogits, dprojected, errors, probabilities, weight, in);
    }
    void codebooks_back(View<T> dpredecessor, View<T> dsuccessor, View<const T> errors,
                        const Selector16<T>& in, const RowLists& before,
                        const RowLists& candidates) override {
        codebooks_back_rows(dpredecessor, dsuccessor, errors, in, before, candidates);
    }
    double sum_squares(const T* values, int64_t count) override {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) {
            sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        }
        return sum;
    }
    void adamw(T* w, const T* gradient, T* first, T* second, int64_t count,
               const AdamStep<T>& s) override {
        for (int64_t i = 0; i < count; ++i) {
            const T g = gradient[i] * s.scale;
            first[i] = s.beta1 * first[i] + (T{1} - s.beta1) * g;
            second[i] = s.beta2 * second[i] + (T{1} - s.beta2) * g * g;
            const T size = std::sqrt(second[i] / s.correction2) + s.epsilon;
            w[i] -= s.rate * (first[i] / s.correction1 / size + s.decay * w[i]);
        }
    }

  private:
    static void copy(T* to, const T* from, int64_t count) { std::copy(from, from + count, to); }

    ProductScratch<T> scratch_;
};

}  // namespace
}  // namespace quadrille::cpu
