// SPDX-License-Identifier: Apache-2.0
// Maps fitted to captures that are made by a known map: the fit gives its rows back; fc refitted to
// taps that changed by a known factor undoes it.
#include "jobs/probe/tap_map.h"

#include "io/capture/capture_writer.h"
#include "kernels/dtype.h"
#include "kernels/error.h"
#include "kernels/noise.h"
#include "kernels/philox.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

constexpr int64_t kHidden = 24, kColumns = 2 * kHidden, kLength = 90, kSequences = 3;

float drawn(int64_t index, uint64_t seed) {
    const Words4 words = philox4x32({static_cast<uint32_t>(index), 0, 0, 0}, seed);
    return to_float(
        to_bf16(static_cast<float>(2 * uniform_of(uint64_t{words.x} << 32 | words.y) - 1)));
}

// Channel factors of the second target: powers of two, which bf16 keeps exactly.
float factor_of(int64_t channel) {
    return channel % 3 == 0 ? 2.0F : channel % 3 == 1 ? 1.0F : 0.5F;
}

class TapMap : public testing::Test {
  protected:
    // Final hidden rows are `map` times the taps. From token `differs` of the second sequence on
    // tokens are other ones and taps are noise.
    CaptureReader capture(const std::string& name, bool scaled, int64_t differs = kLength) const {
        CaptureText text;
        for (int64_t i = 0; i < kSequences * kLength; ++i) {
            const bool other = i >= kLength + differs && i < 2 * kLength;
            text.tokens.push_back(static_cast<int32_t>(other ? 7 : i % 5));
            text.loss_mask.push_back(1);
        }
        for (int64_t s = 0; s < kSequences; ++s) {
            text.offsets.push_back((s + 1) * kLength);
            text.prompt_index.push_back(s);
            text.kind.emplace_back();
        }
        const CaptureLayout layout{
            .layers = {1, 2}, .hidden_size = kHidden, .vocab_size = 8, .identity = {}};
        const std::filesystem::path path = folder_.path() / name;
        CaptureWriter writer(path, layout, text, false);
        std::vector<uint16_t> taps;
        std::vector<float> hidden;
        for (int64_t row = 0; row < kSequences * kLength; ++row) {
            const bool other = row >= kLength + differs && row < 2 * kLength;
            std::vector<float> x;
            for (int64_t c = 0; c < kColumns; ++c) {
                x.push_back(drawn(row * kColumns + c, other ? 9 : 1));
                taps.push_back(to_bf16(x.back() * (scaled ? factor_of(c) : 1.0F)).bits);
            }
            for (int64_t h = 0; h < kHidden; ++h) hidden.push_back(times(x, h));
        }
        writer.write(0, taps, hidden);
        writer.commit(kSequences);
        writer.finish();
        return CaptureReader(
            path, {.tap_layers = {1, 2}, .hidden = kHidden, .vocab = 8, .checkpoint_digest = ""});
    }
    float times(const std::vector<float>& x, int64_t h) const {
        double sum = 0;
        for (size_t c = 0; c < x.size(); ++c) {
            sum += double{x[c]} * double{map_[static_cast<size_t>(h) * x.size() + c]};
        }
        return static_cast<float>(sum);
    }
    // Largest difference of `found` from the map, whose columns are divided by the factors.
    double error(const std::vector<float>& found, bool scaled) const {
        double worst = 0;
        for (size_t i = 0; i < found.size(); ++i) {
            const float by = scaled ? factor_of(static_cast<int64_t>(i) % kColumns) : 1.0F;
            worst = std::max(worst, std::abs(double{found[i]} - double{map_[i] / by}));
        }
        return worst;
    }

    TempFolder folder_;
    const std::vector<float> map_ = [] {
        std::vector<float> map;
        for (int64_t i = 0; i < kHidden * kColumns; ++i) map.push_back(drawn(i, 5));
        return map;
    }();
    const std::vector<int64_t> all_ = {0, 1, 2};
    const MapOptions exact_{.damping = 1e-8, .progress = [](int64_t, int64_t) {}};
};

TEST_F(TapMap, OfFinalHiddenRowsIsTheOneThatMadeThem) {
    EXPECT_LT(error(fit_next_token(capture("a.h5", true), all_, exact_), true), 1e-4);
}

TEST_F(TapMap, RefittedFcUndoesWhatChangedTheTaps) {
    const CaptureReader now = capture("now.h5", true);
    const CaptureReader before = capture("before.h5", false);
    EXPECT_LT(error(refit_fc(now, before, all_, map_, exact_), true), 1e-4);
}

TEST_F(TapMap, StrongDampingLeavesFcAsItIs) {
    MapOptions options = exact_;
    options.damping = 1e9;
    const CaptureReader now = capture("now.h5", true);
    const CaptureReader before = capture("before.h5", false);
    EXPECT_LT(error(refit_fc(now, before, all_, map_, options), false), 1e-4);
}

TEST_F(TapMap, RefitReadsNoRowBehindADifferentToken) {
    const CaptureReader now = capture("now.h5", true);
    const CaptureReader before = capture("before.h5", false, 40);
    EXPECT_EQ(common_rows(now, before, 0), kLength);
    EXPECT_EQ(common_rows(now, before, 1), 40);
    EXPECT_LT(error(refit_fc(now, before, all_, map_, exact_), true), 1e-4);
    const CaptureReader strange = capture("strange.h5", false, 0);
    EXPECT_THROW(refit_fc(now, strange, std::vector<int64_t>{1}, map_, exact_), Error);
}

}  // namespace
}  // namespace quadrille::test
