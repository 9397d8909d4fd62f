// SPDX-License-Identifier: Apache-2.0
// The check backend judged by its verdicts: sound backends pass, also one that is only nearly
// equal; each planted fault is found in the op that makes it, and named.
#include "kernels/buffer.h"
#include "kernels/check/check_backend.h"
#include "kernels/forward_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace quadrille::test {
namespace {

// A CPU whose ops can be spoilt. `far`: it says that its memory is its own, so that it is held to
// tolerances only.
class Spoilt final : public ForwardBackend {
  public:
    explicit Spoilt(bool far) : ForwardBackend(make_backend("cpu")), far_(far) {}
    std::string name() const override { return "spoilt"; }
    bool on_host() const override { return !far_; }

    void linear(View<float> out, View<const float> in, const Matrix& weight) override {
        inner().linear(out, in, weight);
        if (spoil) spoil(out);
    }
    void rms_norm(View<float> out, View<const float> in, const float* weight, float eps) override {
        inner().rms_norm(out, in, weight, eps);
        if (spoil) spoil(out);
    }
    void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
               float scale, const Rows& rows) override {
        inner().route(ids, weights, logits, bias, scale, rows);
        if (swap) std::swap(ids.row(0)[0], ids.row(0)[1]);
    }
    void kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
             const KdaParams& params, const Rows& rows) override {
        inner().kda(pass, weights, state, params, rows);
        if (spoil_state) spoil_state(state);
    }

    std::function<void(View<float>)> spoil;
    std::function<void(const KdaState&)> spoil_state;
    bool swap = false;

  private:
    bool far_;
};

struct Checked {
    explicit Checked(bool far = false) {
        auto owned = std::make_unique<Spoilt>(far);
        work = owned.get();
        backend =
            std::make_unique<check::CheckBackend>(std::move(owned), make_backend("cpu-plain"));
    }
    Spoilt* work;
    std::unique_ptr<check::CheckBackend> backend;
};

constexpr int64_t kM = 5;
constexpr int64_t kN = 48;
constexpr int64_t kK = 64;

// out (5, 48) with 16 floats between the rows = in (5, 64) W^T.
struct Product {
    explicit Product(Backend& backend)
        : out(backend, kM, kN + 16), in(backend, kM, kK), weights(backend, kN, kK) {
        Random random(4);
        in.upload(random.normals(kM * kK));
        weights.upload(random.normals(kN * kK));
        matrix.n = kN;
        matrix.k = kK;
        matrix.weights = weights.data();
    }
    View<float> rows() { return out.view().slice_cols(0, kN); }

    Array<float> out;
    Array<float> in;
    Array<float> weights;
    Matrix matrix;
};

TEST(CheckBackend, PassesEveryCpuPathBitForBit) {
    for (const char* name : {"cpu", "cpu-plain"}) {
        check::CheckBackend backend(make_backend(name), make_backend("cpu-plain"));
        Product product(backend);
        for (int run = 0; run < 2; ++run) {
            backend.linear(product.rows(), product.in.view(), product.matrix);
            backend.rms_norm(product.rows(), product.rows(), product.weights.data(), 1e-5f);
            backend.add(product.rows(), product.rows());
        }
        for (const float value : product.out.download()) EXPECT_TRUE(std::isfinite(value));
        EXPECT_EQ(backend.name(), "check");
        EXPECT_FALSE(backend.on_host());
    }
}

TEST(CheckBackend, NamesOpElementValuesAndAllowance) {
    Checked checked;
    Product product(*checked.backend);
    float right = 0;
    checked.work->spoil = [&right](View<float> out) {
        right = out.row(3)[17];
        out.row(3)[17] = 1234.5f;
    };
    expect_error(
        ErrorKind::internal,
        {"check: linear: out[3, 17] of (5, 48)", "1234.5 on spoilt", "on cpu", "none"},
        [&] { checked.backend->linear(product.rows(), product.in.view(), product.matrix); });
    EXPECT_NE(right, 1234.5f);
}

TEST(CheckBackend, FindsEachKindOfFaultInFarAndNearMemory) {
    struct Fault {
        const char* expected;
        std::function<void(View<float>)> spoil;
    };
    const Fault faults[] = {
        {"out[0, 47]", [](View<float> out) { out.row(0)[47] *= 1.01f; }},
        {"out[4, 0] of (5, 48): nan",
         [](View<float> out) { out.row(4)[0] = std::numeric_limits<float>::quiet_NaN(); }},
        {"out[2, 5] of (5, 48): inf",
         [](View<float> out) { out.row(2)[5] = std::numeric_limits<float>::infinity(); }},
        {"left untouched",
         [](View<float> out) { out.row(1)[9] = std::bit_cast<float>(0x7fc3c3c3u); }},
        {"between the rows", [](View<float> out) { out.row(1)[kN + 2] = 1; }},
    };
    for (const bool far : {false, true}) {
        for (const Fault& fault : faults) {
            Checked checked(far);
            Product product(*checked.backend);
            checked.work->spoil = fault.spoil;
            expect_error(ErrorKind::internal, {"check: linear", fault.expected}, [&] {
                checked.backend->linear(product.rows(), product.in.view(), product.matrix);
            });
        }
    }
}

// An op that writes nothing leaves what the last one wrote, which may even be right.
TEST(CheckBackend, FindsAnOpThatLeavesTheLastResult) {
    Checked checked;
    Product product(*checked.backend);
    checked.backend->linear(product.rows(), product.in.view(), product.matrix);
    checked.work->spoil = [](View<float> out) {
        std::fill_n(out.row(2), out.cols, std::bit_cast<float>(0x7fc3c3c3u));
    };
    expect_error(ErrorKind::internal, {"check: linear: out[2, 0]", "left untouched"}, [&] {
        checked.backend->linear(product.rows(), product.in.view(), product.matrix);
    });
}

TEST(CheckBackend, HoldsNearMemoryToTheBitAndFarMemoryToATolerance) {
    const auto last_bit = [](View<float> out) {
        for (int64_t c = 0; c < out.cols; ++c) out.row(1)[c] *= 1.0f + 0x1p-22f;
    };
    for (const bool far : {false, true}) {
        Checked checked(far);
        Product product(*checked.backend);
        checked.work->spoil = last_bit;
        const auto run = [&] {
            checked.backend->linear(product.rows(), product.in.view(), product.matrix);
            checked.backend->rms_norm(product.rows(), product.rows(), product.weights.data(),
                                      1e-5f);
        };
        if (far) {
            EXPECT_NO_THROW(run());
        } else {
            expect_error(ErrorKind::internal, {"check: linear: out[1, "}, run);
        }
    }
}

// The next op starts from what the working backend wrote, so that small errors never add up.
TEST(CheckBackend, GoesOnFromTheWorkingBackendsBits) {
    Checked checked(true);
    Product product(*checked.backend);
    checked.work->spoil = [](View<float> out) { out.row(0)[0] *= 1.0f + 0x1p-21f; };
    for (int run = 0; run < 100; ++run) {
        checked.backend->rms_norm(product.rows(), product.rows(), product.weights.data(), 1e-5f);
    }
}

TEST(CheckBackend, FindsMemoryThatNoOpWasToWrite) {
    Checked checked;
    Product product(*checked.backend);
    float* const elsewhere = product.in.data() + 7;
    checked.work->spoil = [elsewhere](View<float>) { *elsewhere += 1; };
    checked.backend->linear(product.rows(), product.in.view(), product.matrix);
    expect_error(ErrorKind::internal, {"something other than an op's outputs"},
                 [&] { product.in.download(); });
}

TEST(CheckBackend, RefusesMemoryOfNobody) {
    Checked checked;
    Product product(*checked.backend);
    std::vector<float> host(kM * kK);
    expect_error(ErrorKind::internal, {"inside one allocation"}, [&] {
        checked.backend->linear(product.rows(), {host.data(), kM, kK}, product.matrix);
    });
    expect_error(ErrorKind::internal, {"inside one allocation"}, [&] {
        checked.backend->linear(product.rows(), {product.in.data(), kM + 1, kK}, product.matrix);
    });
}

TEST(CheckBackend, ForgivesExpertsOfEqualScoreOnFarMemoryOnly) {
    for (const bool far : {false, true}) {
        for (const float apart : {0.0f, 0.1f}) {
            Checked checked(far);
            Backend& backend = *checked.backend;
            const Array<float> logits(backend, std::vector<float>{1.0f, 1.0f + apart, -2, 0});
            const Array<float> bias(backend, std::vector<float>(4, 0.0f));
            const Array<int32_t> ids(backend, 1, 2);
            const Array<float> weights(backend, 1, 2);
            checked.work->swap = true;
            const auto run = [&] {
                backend.route(ids.view(), weights.view(), logits.view(), bias.data(), 1.0f);
            };
            if (far && apart == 0.0f) {
                EXPECT_NO_THROW(run());
            } else {
                expect_error(ErrorKind::internal, {"check: route: ids[0, 0] of (1, 2)"}, run);
            }
        }
    }
}

// The rows of a pass of slot 1. `table`: begin [2], slot, position, pending, then zeros.
Rows rows_of_slot_1(const Array<int32_t>& table, int32_t count) {
    return {.m = count,
            .sequences = 1,
            .begin = table.data(),
            .slot = table.data() + 2,
            .position = table.data() + 3,
            .pending = table.data() + 4,
            .row_sequence = table.data() + 5};
}

void spoil(const std::string& what, const KdaState& of) {
    if (what == "state") of.state.row(1)[5] += 0.5f;
    if (what == "conv") of.conv.row(1)[5] += 0.5f;
    if (what == "pending_qkv") of.pending_qkv.row(1)[2] += 0.5f;
    if (what == "another slot") of.state.row(0)[2] += 0.5f;
}

// A pass of 3 rows of slot 1, of which 2 are accepted, and one behind it.
TEST(CheckBackend, JudgesTheStateOfASequence) {
    constexpr int32_t kHeads = 2;
    constexpr int32_t kDim = 8;
    constexpr int64_t kWidth = kHeads * kDim;
    constexpr int64_t kPending = 4;
    for (const char* fault : {"", "state", "conv", "pending_qkv", "another slot"}) {
        Checked checked(true);
        Backend& backend = *checked.backend;
        Random random(8);
        const auto normals = [&](int64_t rows, int64_t cols) {
            Array<float> array(backend, rows, cols);
            array.upload(random.normals(rows * cols));
            return array;
        };
        const Array<float> qkv = normals(3, 3 * kWidth);
        const Array<float> f = normals(3, kWidth);
        const Array<float> b = normals(3, kHeads);
        const Array<float> g = normals(3, kWidth);
        const Array<float> conv = normals(3 * kWidth, 4);
        const Array<float> a_log = normals(1, kHeads);
        const Array<float> dt_bias = normals(1, kWidth);
        const Array<float> o_norm = normals(1, kDim);
        const Array<float> out(backend, 3, kWidth);
        const Array<float> states(backend, 2, kWidth * kDim);
        const Array<float> history(backend, 2, 3 * 3 * kWidth);
        const Array<float> waiting(backend, 2, kPending * 3 * kWidth);
        const Array<float> decay(backend, 2, kPending * kWidth);
        const Array<float> beta(backend, 2, kPending * kHeads);
        const KdaState state{states.view(), history.view(), waiting.view(), decay.view(),
                             beta.view()};
        const KdaWeights weights{conv.data(), a_log.data(), dt_bias.data(), o_norm.data()};
        const KdaParams params{.heads = kHeads, .head_dim = kDim};
        int passes = 0;
        const auto pass = [&](int32_t position, int32_t pending, int32_t count) {
            const Array<int32_t> table(
                backend, std::vector<int32_t>{0, count, 1, position, pending, 0, 0, 0});
            backend.kda({out.first(count), qkv.first(count), f.first(count), b.first(count),
                         g.first(count)},
                        weights, state, params, rows_of_slot_1(table, count));
            ++passes;
        };
        const std::string name = fault;
        pass(0, 0, 3);
        checked.work->spoil_state = [&name](const KdaState& of) { spoil(name, of); };
        const auto next = [&] { pass(2, 2, 1); };
        if (name.empty()) {
            EXPECT_NO_THROW(next());
            backend.kda_flush(weights, state, params, 1, 1, false);
            EXPECT_EQ(passes, 2);
        } else if (name == "another slot") {
            expect_error(ErrorKind::internal, {"check: kda: state[0, 2]"}, next);
        } else {
            expect_error(ErrorKind::internal, {"check: kda: " + name + "[1, "}, next);
        }
    }
}

}  // namespace
}  // namespace quadrille::test
