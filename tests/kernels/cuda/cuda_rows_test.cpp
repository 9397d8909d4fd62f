// SPDX-License-Identifier: Apache-2.0
// Ops on a GPU that work row by row: against the CPU between sentinels, and each row the same bits
// alone and in company.
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace quadrille::test {
namespace {

class CudaRows : public testing::Test {
  protected:
    // Runs an op on both backends and compares; then 1..m rows alone against the whole.
    void check(int64_t m, int64_t n,
               const std::function<std::vector<float>(Backend&, std::span<const int64_t>)>& run,
               double allowed = kGpuSequenceRelativeRms) {
        std::vector<int64_t> all(static_cast<size_t>(m));
        for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
        const auto whole = run(*gpu_, all);
        EXPECT_TRUE(near_enough(whole, run(*cpu_, all), allowed));
        for (const int64_t r : {int64_t{0}, m / 2, m - 1}) {
            const std::vector<int64_t> one = {r};
            EXPECT_TRUE(same(run(*gpu_, one), gather_rows<float>(whole, n, one)));
        }
    }

    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{11};
};

TEST_F(CudaRows, EmbedsRowsAndZerosForNoToken) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
        const MatrixData table = MatrixData::native(random_, 37, 300, dtype);
        const std::vector<int32_t> tokens = {0, 36, -1, 5, 5};
        for (const int32_t copies : {1, 4}) {
            const auto run = [&](Backend& backend) {
                Uploads uploads(backend);
                OnDevice<float> out(backend, 5, 300 * copies, 3);
                backend.embed(out.view(), uploads.array(tokens), uploads.matrix(table.matrix()),
                              copies);
                return out.result();
            };
            EXPECT_TRUE(same(run(*gpu_), run(*cpu_)));
        }
    }
}

TEST_F(CudaRows, Norms) {
    for (const int64_t n : {1, 64, 513, 4096}) {
        const int64_t m = 9;
        const auto x = random_.normals(m * n, 3.0f);
        const auto weight = random_.uniforms(n, 0.5f, 1.5f);
        const auto bias = random_.normals(n);
        check(m, n, [&](Backend& backend, std::span<const int64_t> rows) {
            Uploads uploads(backend);
            const auto count = std::ssize(rows);
            OnDevice<float> in(backend, count, n, gather_rows<float>(x, n, rows), 1);
            OnDevice<float> out(backend, count, n, 2);
            backend.rms_norm(out.view(), in.view(), uploads.array(weight), 1e-5f);
            return out.result();
        });
        check(m, n, [&](Backend& backend, std::span<const int64_t> rows) {
            Uploads uploads(backend);
            const auto count = std::ssize(rows);
            OnDevice<float> in(backend, count, n, gather_rows<float>(x, n, rows), 1);
            // In place.
            backend.layer_norm(in.view(), in.view(), uploads.array(weight), uploads.array(bias),
                               1e-6f);
            return in.result();
        });
    }
}

TEST_F(CudaRows, GateSumsAndCopies) {
    const int64_t m = 7;
    const int64_t n = 257;
    const auto gate = random_.normals(m * n, 8.0f);
    const auto up = random_.normals(m * n, 8.0f);
    for (const float limit : {0.0f, 10.0f, 0.75f}) {
        check(m, n, [&](Backend& backend, std::span<const int64_t> rows) {
            const auto count = std::ssize(rows);
            OnDevice<float> a(backend, count, n, gather_rows<float>(gate, n, rows), 1);
            OnDevice<float> b(backend, count, n, gather_rows<float>(up, n, rows), 2);
            backend.swiglu(a.view(), a.view(), b.view(), limit);
            return a.result();
        });
    }
    const auto exactly = [&](const auto& run) { EXPECT_TRUE(same(run(*gpu_), run(*cpu_))); };
    exactly([&](Backend& backend) {
        OnDevice<float> a(backend, m, n, gate, 1);
        OnDevice<float> b(backend, m, n, up, 2);
        backend.add(a.view(), b.view());
        return a.result();
    });
    for (const int32_t parts : {1, 2, 4}) {
        exactly([&](Backend& backend) {
            Uploads uploads(backend);
            OnDevice<float> out(backend, 1, 300, 0);
            backend.tree_sum(out.view(), uploads.array(gate), parts, 400);
            return out.result();
        });
    }
    exactly([&](Backend& backend) {
        Uploads uploads(backend);
        const std::vector<int32_t> index = {6, -1, 0, 3};
        OnDevice<float> in(backend, m, n, gate, 1);
        OnDevice<float> out(backend, 4, n, std::span<const float>(up).first(4 * n), 3);
        backend.copy_rows(out.view(), in.view(), uploads.array(index));
        return out.result();
    });
}

TEST_F(CudaRows, HyperConnections) {
    for (const int32_t s : {4, 2, 3}) {
        for (const int64_t h : {64, 1000}) {
            const int64_t m = 19;
            const int64_t n = 2 * s + s * s;
            const auto streams = random_.normals(m * s * h);
            const auto y = random_.normals(m * h);
            const MatrixData fn =
                MatrixData::native(random_, n, s * h, h == 64 ? Dtype::f32 : Dtype::bf16);
            const auto base = random_.normals(n);
            const auto scale = random_.uniforms(3, 0.5f, 1.5f);
            HyperParams params;
            params.streams = s;
            // pre | post | mix | in | out | mean of each row.
            const int64_t width = n + h + s * h + h;
            check(m, width, [&](Backend& backend, std::span<const int64_t> rows) {
                Uploads uploads(backend);
                const auto count = std::ssize(rows);
                OnDevice<float> x(backend, count, s * h, gather_rows<float>(streams, s * h, rows),
                                  3);
                OnDevice<float> in(backend, count, h, gather_rows<float>(y, h, rows), 1);
                OnDevice<float> pre(backend, count, s, 1);
                OnDevice<float> post(backend, count, s, 2);
                OnDevice<float> mix(backend, count, int64_t{s} * s, 1);
                OnDevice<float> out(backend, count, h, 1);
                OnDevice<float> mean(backend, count, h, 1);
                backend.hyper_weights(pre.view(), post.view(), mix.view(), x.view(),
                                      uploads.matrix(fn.matrix()), uploads.array(base),
                                      uploads.array(scale), params);
                backend.hyper_in(out.view(), x.view(), pre.view());
                backend.stream_mean(mean.view(), x.view(), s);
                backend.hyper_out(x.view(), in.view(), post.view(), mix.view());
                std::vector<float> all;
                const std::vector<std::vector<float>> parts = {pre.result(), post.result(),
                                                               mix.result(), out.result(),
                                                               x.result(),   mean.result()};
                for (int64_t r = 0; r < count; ++r) {
                    for (const auto& part : parts) {
                        const int64_t cols = std::ssize(part) / count;
                        all.insert(all.end(), part.begin() + r * cols,
                                   part.begin() + (r + 1) * cols);
                    }
                }
                return all;
            });
        }
    }
}

TEST_F(CudaRows, RoutesLikeTheCpu) {
    for (const int64_t experts : {8, 19, 288, 512, 600}) {
        const int64_t m = 33;
        const int64_t topk = 8;
        const auto logits = random_.normals(m * experts, 2.0f);
        const auto bias = random_.normals(experts, 0.3f);
        std::vector<int32_t> ids[2];
        std::vector<float> weights[2];
        for (Backend* backend : {cpu_.get(), gpu_.get()}) {
            const size_t at = backend == gpu_.get() ? 1 : 0;
            Uploads uploads(*backend);
            OnDevice<float> x(*backend, m, experts, logits, 3);
            OnDevice<int32_t> id(*backend, m, topk, 1);
            OnDevice<float> weight(*backend, m, topk, 2);
            backend->route(id.view(), weight.view(), x.view(), uploads.array(bias), 2.5f);
            ids[at] = id.result();
            weights[at] = weight.result();
        }
        EXPECT_TRUE(same(ids[1], ids[0]));
        EXPECT_TRUE(near_enough(weights[1], weights[0], kGpuSequenceRelativeRms));
    }
    const std::vector<float> bias(4, 0.0f);
    const std::vector<float> logits = {1, 2, 2, 1, 0, NAN, -3, NAN, NAN, NAN, NAN, NAN};
    Uploads uploads(*gpu_);
    OnDevice<float> x(*gpu_, 3, 4, logits);
    OnDevice<int32_t> id(*gpu_, 3, 3);
    OnDevice<float> weight(*gpu_, 3, 3);
    gpu_->route(id.view(), weight.view(), x.view(), uploads.array(bias), 1.0f);
    EXPECT_TRUE(same(id.result(), std::vector<int32_t>{1, 2, 0, 0, 2, 1, 0, 1, 2}));
}

TEST_F(CudaRows, ChoosesAmongColumnsLikeTheCpu) {
    for (const int64_t n : {1, 100, 5000, 20000, 270000}) {
        const int64_t m = 5;
        std::vector<float> x = random_.normals(m * n);
        // Ties, NaNs, a row of nothing but NaN and one of -inf.
        for (float& value : x) value = std::round(value * 8) / 8;
        for (int64_t c = 0; c < n; ++c) {
            x[static_cast<size_t>(n + c)] = NAN;
            x[static_cast<size_t>(2 * n + c)] = -std::numeric_limits<float>::infinity();
        }
        if (n > 7) x[7] = NAN;
        for (const auto valid : {static_cast<int32_t>(n), static_cast<int32_t>(n / 2), 0}) {
            for (const int64_t k : {1, 16, 17, 256, 2048}) {
                if (k == 2048 && n == 270000) continue;  // the CPU takes its time
                std::vector<float> values[2];
                std::vector<int32_t> ids[2];
                for (Backend* backend : {cpu_.get(), gpu_.get()}) {
                    const size_t at = backend == gpu_.get() ? 1 : 0;
                    OnDevice<float> logits(*backend, m, n, x, 3);
                    OnDevice<float> value(*backend, m, k, 1);
                    OnDevice<int32_t> id(*backend, m, k, 1);
                    OnDevice<float> best(*backend, 1, m);
                    OnDevice<int32_t> best_id(*backend, 1, m);
                    backend->top_k(value.view(), id.view(), logits.view(), 1000, valid);
                    backend->argmax(best.data(), best_id.data(), logits.view(), 1000, valid);
                    values[at] = value.result();
                    ids[at] = id.result();
                    for (const float v : best.result()) values[at].push_back(v);
                    for (const int32_t v : best_id.result()) ids[at].push_back(v);
                }
                EXPECT_TRUE(same(ids[1], ids[0])) << "n " << n << " valid " << valid << " k " << k;
                EXPECT_TRUE(same(values[1], values[0]));
            }
        }
    }
}

TEST_F(CudaRows, MemoryIsZeroedCopiedAndRefusedWhenTooLarge) {
    Array<float> a(*gpu_, 1, 1000);
    EXPECT_TRUE(same(a.download(), std::vector<float>(1000, 0.0f)));
    const auto values = random_.normals(1000);
    a.upload(values);
    Array<float> b(*gpu_, 1, 1000);
    gpu_->copy(b.data(), a.data(), a.bytes());
    EXPECT_TRUE(same(b.download(), values));
    gpu_->fill_zero(b.data(), 40);
    EXPECT_EQ(b.download()[9], 0.0f);
    EXPECT_EQ(b.download()[10], values[10]);
    EXPECT_EQ(gpu_->allocate(0), nullptr);
    expect_error(ErrorKind::device, {"device memory", "cannot allocate"},
                 [&] { gpu_->allocate(int64_t{1} << 50); });
    // An error of the past is not held against the next op.
    gpu_->add(a.view(), b.view());
    expect_error(ErrorKind::device, {"GPU 99"}, [] { make_backend("cuda", 99); });
}

// Behind work that keeps the device busy: memory that is overwritten as soon as upload returns.
TEST_F(CudaRows, UploadsKeepWhatTheyWereGiven) {
    constexpr int64_t kWide = int64_t{1} << 20;
    OnDevice<float> sum(*gpu_, 64, kWide);
    OnDevice<float> in(*gpu_, 64, kWide);
    for (const int64_t count : {1, 63, 1000, (4 << 18) - 1, (4 << 18) + 5, 5 << 20}) {
        const int rounds = count < 2000 ? 9000 : 3;
        Array<int32_t> to(*gpu_, rounds, count);
        std::vector<int32_t> from(static_cast<size_t>(count));
        for (int i = 0; i < 8; ++i) gpu_->add(sum.view(), in.view());
        for (int r = 0; r < rounds; ++r) {
            for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int32_t>(i) * 7 + r;
            gpu_->upload(to.view().row(r), from.data(), count * int64_t{sizeof(int32_t)});
            std::fill(from.begin(), from.end(), -1);
        }
        const std::vector<int32_t> found = to.download();
        int64_t wrong = 0;
        for (int r = 0; r < rounds; ++r) {
            for (int64_t i = 0; i < count; ++i) {
                wrong += found[static_cast<size_t>(r * count + i)] != i * 7 + r ? 1 : 0;
            }
        }
        EXPECT_EQ(wrong, 0) << count << " numbers at a time";
    }
}

}  // namespace
}  // namespace quadrille::test
