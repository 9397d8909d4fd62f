// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize/scale_search.h"

#include "kernels/exl3.h"
#include "kernels/exl3_decode.h"
#include "kernels/parallel.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace quadrille::quantize {

namespace {

using exl3::kTile;
using exl3::kTileSize;

constexpr int64_t kMostTiles = 256;  // of a matrix that are tried
constexpr int kPoints = 5;           // scales around a centre
constexpr double kStep = 0.06;       // between them, over the centre
constexpr int kMostRounds = 24;      // 1.12^24: any scale a codebook could need

// The first centre of a search: optimal for Gaussian values.
double first_scale(TrellisCode code) {
    constexpr std::array<double, 8> kPairs = {1.05, 1.00, 0.95, 0.88, 0.84, 0.80, 0.77, 0.74};
    constexpr std::array<double, 8> kMul1 = {0.78, 0.75, 0.74, 0.72, 0.70, 0.67, 0.65, 0.62};
    const auto at = static_cast<size_t>(code.bits - 1);
    return code.codebook == Codebook::mul1 ? kMul1[at] : kPairs[at];
}

// Tiles on up to three wrapped diagonals, evenly spaced, in stream order.
std::vector<float> sample(const Regularised& matrix) {
    const int64_t tiles_k = matrix.k / kTile;
    const int64_t tiles_n = matrix.n / kTile;
    const int64_t diagonal = std::max(tiles_k, tiles_n);
    const int64_t count = std::min(kMostTiles, std::min(3 * diagonal, tiles_k * tiles_n));
    std::vector<float> tiles(static_cast<size_t>(count * kTileSize));
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = i * 3 * diagonal / count;
        const float* first = matrix.values.data() + (at / 3 % tiles_k) * kTile * matrix.n +
                             ((at / 3 + at % 3) % tiles_n) * kTile;
        for (int t = 0; t < kTileSize; ++t) {
            tiles[static_cast<size_t>(i * kTileSize + t)] =
                first[exl3::tile_row(t) * matrix.n + exl3::tile_col(t)];
        }
    }
    return tiles;
}

// The search for one matrix.
struct Trial {
    const Regularised* matrix = nullptr;
    std::vector<float> tiles;
    double centre = 1;
    int rounds = 0;
    bool done = false;
    std::array<double, kPoints> error{};

    double scale(int point) const { return centre * (1.0 + kStep * (point - kPoints / 2)); }
    // Moves the centre, or finds the least error by a parabola through three points.
    void conclude() {
        const auto best =
            static_cast<int>(std::min_element(error.begin(), error.end()) - error.begin());
        ++rounds;
        if ((best == 0 || best == kPoints - 1) && rounds < kMostRounds) {
            centre = scale(best);
            return;
        }
        done = true;
        double offset = 0;
        if (best > 0 && best < kPoints - 1) {
            const double before = error[static_cast<size_t>(best - 1)];
            const double behind = error[static_cast<size_t>(best + 1)];
            const double bend = before - 2 * error[static_cast<size_t>(best)] + behind;
            if (bend > 0) offset = std::clamp(0.5 * (before - behind) / bend, -0.5, 0.5);
        }
        centre = scale(best) + centre * kStep * offset;
    }
};

// Errors of all points of the trials that go on.
void try_points(TrellisEncoder& encoder, std::vector<Trial>& trials, TrellisCode code,
                const std::vector<float>& table, int32_t threads) {
    std::vector<float> scaled;
    for (const Trial& trial : trials) {
        for (int point = 0; point < kPoints && !trial.done; ++point) {
            const auto scale = static_cast<float>(trial.scale(point));
            for (const float value : trial.tiles) scaled.push_back(value * scale);
        }
    }
    std::vector<uint16_t> states(scaled.size());
    const int64_t count = std::ssize(scaled) / kTileSize;
    encoder.encode_tiles(states.data(), scaled.data(), count, code);
    std::vector<double> errors(static_cast<size_t>(count));
    parallel_for(threads, count, [&](int64_t tile) {
        double sum = 0;
        for (int64_t i = tile * kTileSize; i < (tile + 1) * kTileSize; ++i) {
            const auto at = static_cast<size_t>(i);
            const auto d = static_cast<double>(table[states[at]]) - static_cast<double>(scaled[at]);
            sum += d * d;
        }
        errors[static_cast<size_t>(tile)] = sum;
    });
    auto next = errors.begin();
    for (Trial& trial : trials) {
        if (trial.done) continue;
        for (int point = 0; point < kPoints; ++point) {
            double sum = 0;
            for (int64_t i = 0; i < std::ssize(trial.tiles) / kTileSize; ++i) sum += *next++;
            trial.error[static_cast<size_t>(point)] =
                sum / (trial.scale(point) * trial.scale(point));
        }
        trial.conclude();
    }
}

}  // namespace

std::vector<double> search_scales(TrellisEncoder& encoder, std::span<const Regularised> matrices,
                                  TrellisCode code, int32_t threads) {
    const std::vector<float> table = exl3_values(code.codebook);
    std::vector<Trial> trials(matrices.size());
    parallel_for(threads, std::ssize(matrices), [&](int64_t i) {
        const Regularised& matrix = matrices[static_cast<size_t>(i)];
        Trial& trial = trials[static_cast<size_t>(i)];
        trial.matrix = &matrix;
        trial.done = matrix.is_zero;
        if (trial.done) return;
        trial.centre = first_scale(code);
        trial.tiles = sample(matrix);
    });
    const auto goes_on = [](const Trial& trial) { return !trial.done; };
    while (std::any_of(trials.begin(), trials.end(), goes_on)) {
        try_points(encoder, trials, code, table, threads);
    }
    std::vector<double> scales;
    for (const Trial& trial : trials) scales.push_back(trial.centre);
    return scales;
}

}  // namespace quadrille::quantize
