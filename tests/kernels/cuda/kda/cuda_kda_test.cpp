// SPDX-License-Identifier: Apache-2.0
// KDA on a GPU against the CPU, over prefill and decode, and its promise: however tokens are cut
// into passes, outputs and states have the same bits.
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
        backend_.kda({out.view(), pick(tokens.qkv, 3 * of_.c).view(), pick(tokens.f, of_.c).view(),
                      pick(tokens.b, of_.params.heads).view(), pick(tokens.g, of_.c).view()},
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

class CudaKda : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{23};
};

TEST_F(CudaKda, MatchesTheCpuOverPrefillDecodeAndFlush) {
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

TEST_F(CudaKda, HasTheSameBitsHoweverTokensAreCut) {
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

// Heads of two sequences that four thread blocks share, or two, or that have one each.
TEST_F(CudaKda, HasTheSameBitsInPrefillsOfAnyLength) {
    for (const auto& [heads, taps] :
         {std::array<int32_t, 2>{2, 4}, {20, 4}, {2, 2}, {20, 3}, {2, 5}, {140, 4}}) {
        const KdaCase of(heads, 128, taps, random_);
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
            EXPECT_TRUE(same(whole.pass(prefill, tokens, at), expected))
                << rows << ", " << heads << ", " << taps;
            for (int64_t slot = 0; slot < 2; ++slot) {
                EXPECT_TRUE(same(whole.committed(slot), cut.committed(slot)))
                    << rows << ", " << heads << ", " << taps;
            }
        }
    }
}

}  // namespace
}  // namespace quadrille::test
