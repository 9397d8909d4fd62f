// SPDX-License-Identifier: Apache-2.0
// What op tests share: seeded data, arrays between sentinels whose untouched elements show,
// comparisons by tolerance class, and the check of "one arithmetic per row" (docs/design.md §6):
// the same rows alone, in company, permuted and padded must give the same bits.
#pragma once

#include "kernels/dtype.h"
#include "kernels/view.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace quadrille::test {

// Row counts that hurt: one, around powers of two, around tiles of 8, 16, 32, and many.
inline constexpr std::array<int64_t, 8> kRowCounts = {1, 2, 7, 8, 16, 17, 33, 145};

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    uint32_t bits() { return static_cast<uint32_t>(engine_()); }
    float uniform(float low, float high);          // [low, high)
    float normal();                                // mean 0, deviation 1
    int64_t integer(int64_t first, int64_t last);  // first..last, both included
    std::vector<float> normals(int64_t count, float scale = 1.0f);
    std::vector<float> uniforms(int64_t count, float low, float high);
    std::vector<uint16_t> words(int64_t count);       // 16 random bits each
    std::vector<int64_t> permutation(int64_t count);  // of 0..count-1

  private:
    std::mt19937_64 engine_;
};

std::vector<int64_t> range(int64_t first, int64_t count);  // first, first + 1, ..

std::vector<BF16> to_bf16s(std::span<const float> values);
std::vector<F16> to_f16s(std::span<const float> values);

// The sentinel around and between rows, and the value an output starts with: NaNs with payloads no
// arithmetic makes, or unlikely integers.
template <class T>
constexpr T sentinel() {
    if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<float>(0x7fc5a5a5u);
    } else {
        return static_cast<T>(std::numeric_limits<T>::max() - 0x5a);
    }
}
template <class T>
constexpr T untouched() {
    if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<float>(0x7fc3c3c3u);
    } else {
        return static_cast<T>(std::numeric_limits<T>::max() - 0x3c);
    }
}

template <class T>
bool same_bits(T a, T b) {
    if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    } else {
        return a == b;
    }
}

// A (rows, cols) matrix with `gap` sentinels behind each row and a band of them on both ends.
template <class T>
class Guarded {
  public:
    Guarded(int64_t rows, int64_t cols, int64_t gap = 0)
        : rows_(rows),
          cols_(cols),
          stride_(cols + gap),
          all_(static_cast<size_t>(rows * (cols + gap) + 2 * kBand), sentinel<T>()) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < cols; ++c) view().row(r)[c] = untouched<T>();
        }
    }
    // Filled with `values`, (rows, cols) gapless.
    Guarded(int64_t rows, int64_t cols, std::span<const T> values, int64_t gap = 0)
        : Guarded(rows, cols, gap) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < cols; ++c) {
                view().row(r)[c] = values[static_cast<size_t>(r * cols + c)];
            }
        }
    }

    View<T> view() { return {all_.data() + kBand, rows_, cols_, stride_}; }
    View<const T> view() const { return {all_.data() + kBand, rows_, cols_, stride_}; }
    T* data() { return all_.data() + kBand; }
    // Bands, rows and gaps, and where the first row begins: to lay the same out in other memory.
    std::span<T> storage() { return all_; }
    static constexpr int64_t kBand = 64;

    std::vector<T> values() const {  // (rows, cols) gapless
        std::vector<T> out;
        for (int64_t r = 0; r < rows_; ++r) {
            out.insert(out.end(), view().row(r), view().row(r) + cols_);
        }
        return out;
    }

    // Bands and gaps as they were.
    testing::AssertionResult intact() const {
        for (int64_t i = 0; i < static_cast<int64_t>(all_.size()); ++i) {
            const int64_t at = i - kBand;
            const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < cols_;
            if (!inside && !same_bits(all_[static_cast<size_t>(i)], sentinel<T>())) {
                return testing::AssertionFailure()
                       << "wrote outside: element " << at << " of (" << rows_ << ", " << cols_
                       << ") stride " << stride_;
            }
        }
        return testing::AssertionSuccess();
    }
    // intact() and every element written.
    testing::AssertionResult written() const {
        for (int64_t r = 0; r < rows_; ++r) {
            for (int64_t c = 0; c < cols_; ++c) {
                if (same_bits(view().row(r)[c], untouched<T>())) {
                    return testing::AssertionFailure()
                           << "did not write row " << r << " column " << c;
                }
            }
        }
        return intact();
    }

  private:
    int64_t rows_;
    int64_t cols_;
    int64_t stride_;
    std::vector<T> all_;
};

// Names the first different element with both values.
testing::AssertionResult same(std::span<const float> found, std::span<const float> expected);
testing::AssertionResult same(std::span<const int32_t> found, std::span<const int32_t> expected);

// By tolerance class. A NaN or an infinity on one side only always fails. The message names the
// worst element, both values and the share of the allowance it used.
testing::AssertionResult close(std::span<const float> found, std::span<const float> expected,
                               Tolerance tolerance);
// Every |difference| <= absolute.
testing::AssertionResult within(std::span<const float> found, std::span<const float> expected,
                                double absolute);
// Root mean square of (found - exact) over that of exact.
double relative_rms(std::span<const float> found, std::span<const double> exact);

// Runs an op on the named rows of a fixed pool, in that order, with `gap` unused elements between
// rows of every matrix; returns the result rows, gapless. The op gathers its own inputs.
using RowRun = std::function<std::vector<float>(std::span<const int64_t> rows, int64_t gap)>;

// The rows 0..pool-1, each alone (m = 1), against passes of every count of kRowCounts that fits the
// pool (rows repeated where it does not), permuted, and with gaps. n = values per result row.
void expect_one_arithmetic_per_row(int64_t pool, int64_t n, const RowRun& run);

// Rows `rows` of values (pool, cols), gapless.
template <class T>
std::vector<T> gather_rows(std::span<const T> values, int64_t cols, std::span<const int64_t> rows) {
    std::vector<T> out;
    for (const int64_t r : rows) {
        const auto part = values.subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
        out.insert(out.end(), part.begin(), part.end());
    }
    return out;
}

}  // namespace quadrille::test
