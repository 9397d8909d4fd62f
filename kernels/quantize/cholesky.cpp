// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize/cholesky.h"

#include "kernels/error.h"
#include "kernels/parallel.h"

#include <algorithm>
#include <cmath>
#include <vector>

// Several versions of a loop, of which the machine's best runs. No multiply-add is fused, so all
// give the same bits.
#if defined(QUADRILLE_X86) && defined(__GNUC__) && !defined(__clang__)
#define QUADRILLE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QUADRILLE_CLONES
#endif

namespace quadrille::quantize {

namespace {

constexpr int64_t kPanel = 64;
constexpr int64_t kChunk = 512;  // columns of a panel that stay in a cache

// to[j] -= sum over p of a[p] * b[p * stride + j], p ascending; an even number of p.
QUADRILLE_CLONES
void subtract_products(double* __restrict to, const double* __restrict a,
                       const double* __restrict b, int64_t stride, int64_t count) {
    static_assert(kPanel % 4 == 0);
    for (int64_t p = 0; p < kPanel; p += 4) {
        const double* b0 = b + p * stride;
        const double* b1 = b0 + stride;
        const double* b2 = b1 + stride;
        const double* b3 = b2 + stride;
        for (int64_t j = 0; j < count; ++j) {
            to[j] = to[j] - a[p] * b0[j] - a[p + 1] * b1[j] - a[p + 2] * b2[j] - a[p + 3] * b3[j];
        }
    }
}

// The panel's own triangle, row by row.
bool factor_corner(double* h, int64_t k, int64_t first) {
    for (int64_t i = first; i < first + kPanel; ++i) {
        for (int64_t j = first; j <= i; ++j) {
            double sum = h[i * k + j];
            for (int64_t p = first; p < j; ++p) sum -= h[i * k + p] * h[j * k + p];
            if (i != j) {
                h[i * k + j] = sum / h[j * k + j];
            } else if (sum > 0 && std::isfinite(sum)) {
                h[i * k + j] = std::sqrt(sum);
            } else {
                return false;
            }
        }
    }
    return true;
}

void solve_row(double* row, const double* h, int64_t k, int64_t first) {
    for (int64_t j = first; j < first + kPanel; ++j) {
        double sum = row[j];
        for (int64_t p = first; p < j; ++p) sum -= row[p] * h[j * k + p];
        row[j] = sum / h[j * k + j];
    }
}

}  // namespace

bool cholesky(double* h, int64_t k, int32_t threads) {
    require(k % kPanel == 0, "a Cholesky factor of whole panels");
    std::vector<double> panel(static_cast<size_t>(kPanel * k));  // (kPanel, rows behind)
    for (int64_t first = 0; first < k; first += kPanel) {
        if (!factor_corner(h, k, first)) return false;
        const int64_t begin = first + kPanel;
        const int64_t rest = k - begin;
        const int64_t pieces = rest / kPanel;
        parallel_for(threads, pieces, [&](int64_t piece) {
            for (int64_t i = piece * kPanel; i < (piece + 1) * kPanel; ++i) {
                double* row = h + (begin + i) * k;
                solve_row(row, h, k, first);
                for (int64_t p = 0; p < kPanel; ++p) {
                    panel[static_cast<size_t>(p * rest + i)] = row[first + p];
                }
            }
        });
        parallel_for(threads, pieces, [&](int64_t piece) {
            piece = pieces - 1 - piece;  // the longest rows first
            const int64_t end = (piece + 1) * kPanel;
            for (int64_t from = 0; from < end; from += kChunk) {
                const int64_t count = std::min(kChunk, end - from);
                for (int64_t i = piece * kPanel; i < end; ++i) {
                    double* row = h + (begin + i) * k;
                    subtract_products(row + begin + from, row + first, panel.data() + from, rest,
                                      count);
                }
            }
        });
    }
    return true;
}

}  // namespace quadrille::quantize
