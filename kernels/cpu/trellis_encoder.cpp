// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/trellis_encoder.h"

#include "kernels/exl3.h"
#include "kernels/parallel.h"
#include "kernels/trellis_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

namespace quadrille::cpu {

namespace {

using exl3::kTile;
using exl3::kTileSize;
using Tile = std::array<float, kTileSize>;

// The values of a code's states, by state and as TrellisSteps wants them.
struct Tables {
    std::vector<float> by_state;
    std::vector<float> by_use;

    explicit Tables(TrellisCode code) : by_state(codebook_table(code.codebook)) {
        const int nodes = trellis::nodes(code.bits);
        for (int node = 0; node < nodes; node += 16) {
            for (int symbol = 0; symbol < 1 << code.bits; ++symbol) {
                const auto first = by_state.begin() + symbol * nodes + node;
                by_use.insert(by_use.end(), first, first + 16);
            }
        }
    }
};

// What one thread needs for the search, for one code.
class Search {
  public:
    Search(const TrellisPaths& paths, TrellisCode code, const Tables& tables)
        : paths_(paths),
          bits_(code.bits),
          nodes_(trellis::nodes(code.bits)),
          tables_(tables),
          cost_(static_cast<size_t>(nodes_ + 16)),
          spare_(static_cast<size_t>(nodes_ + 16)),
          choice_(static_cast<size_t>(nodes_) * kTileSize) {}

    // states (256) of a tile in stream order.
    void run(uint16_t* states, const float* tile) {
        clamp(tile);
        std::fill(cost_.begin(), cost_.end(), 0.0f);
        steps(trellis::kMiddle);
        const auto end = std::min_element(cost_.begin(), cost_.begin() + nodes_);
        trace(states, static_cast<int>(end - cost_.begin()), trellis::kMiddle);
        run_tied(states);
    }
    // The same with the seam that `states` has.
    void run_again(uint16_t* states, const float* tile) {
        clamp(tile);
        run_tied(states);
    }

    const std::vector<float>& table() const { return tables_.by_state; }
    const TrellisPaths& paths() const { return paths_; }

  private:
    void clamp(const float* tile) {
        for (size_t t = 0; t < values_.size(); ++t) {
            values_[t] = std::clamp(tile[t], -trellis::kLargestValue, trellis::kLargestValue);
        }
    }
    void run_tied(uint16_t* states) {
        const int node = states[0] >> bits_;
        std::fill(cost_.begin(), cost_.end(), trellis::kUnreached);
        cost_[static_cast<size_t>(node)] = 0.0f;
        steps(0);
        trace(states, node, 0);
    }
    // Once round the tile from position `first` on.
    void steps(int first) {
        paths_.steps({.bits = bits_,
                      .table = tables_.by_use.data(),
                      .values = values_.data(),
                      .first = first,
                      .cost = cost_.data(),
                      .spare = spare_.data(),
                      .choice = choice_.data()});
    }
    // The path that leads to `node` in front of position `first`, once round.
    void trace(uint16_t* states, int node, int first) const {
        for (int i = kTileSize - 1; i >= 0; --i) {
            const int at = (first + i) % kTileSize;
            const int state = choice_[static_cast<size_t>(at * nodes_ + node)] * nodes_ + node;
            states[at] = static_cast<uint16_t>(state);
            node = state >> bits_;
        }
    }

    const TrellisPaths& paths_;
    int bits_;
    int nodes_;
    const Tables& tables_;
    Tile values_{};
    std::vector<float> cost_;
    std::vector<float> spare_;
    std::vector<uint8_t> choice_;
};

// sum over columns of v^T metric v, v (16, 16) by row.
double weighed(const Tile& v, const float* metric) {
    double sum = 0;
    for (size_t r = 0; r < kTile; ++r) {
        for (size_t s = 0; s < kTile; ++s) {
            if (metric == nullptr && r != s) continue;
            double products = 0;
            for (size_t c = 0; c < kTile; ++c) {
                products +=
                    static_cast<double>(v[r * kTile + c]) * static_cast<double>(v[s * kTile + c]);
            }
            sum += metric == nullptr ? products
                                     : products * static_cast<double>(metric[r * kTile + s]);
        }
    }
    return sum;
}

// 16 columns of a matrix.
class Columns {
  public:
    Columns(Search& search, const TrellisMatrix& matrix, int64_t tile_n)
        : search_(search),
          matrix_(matrix),
          tile_n_(tile_n),
          weights_(static_cast<size_t>(matrix.k * kTile)),
          errors_(weights_.size()) {
        for (int64_t row = 0; row < matrix.k; ++row) {
            std::copy_n(matrix.weights + row * matrix.n + tile_n * kTile, kTile,
                        weights_.begin() + row * kTile);
        }
    }

    // From the last rows to the first.
    void encode() {
        for (int64_t block = blocks() - 1; block >= 0; --block) {
            const Tile wanted = target(block, false);
            const Tile stream = in_stream_order(wanted);
            search_.run(states(block), stream.data());
            keep(block, decoded(states(block)));
        }
    }
    void sweep() {
        for (int64_t block = blocks() - 1; block >= 0; --block) {
            const Tile wanted = target(block, true);
            const Tile stream = in_stream_order(wanted);
            std::array<uint16_t, kTileSize> next;
            std::copy_n(states(block), kTileSize, next.begin());
            const float* metric = matrix_.hessian->sweep_metric + block * kTileSize;
            const double before = weighed(difference(wanted, decoded(next.data())), metric);
            search_.run_again(next.data(), stream.data());
            const Tile values = decoded(next.data());
            if (weighed(difference(wanted, values), metric) >= before) continue;
            std::copy_n(next.begin(), kTileSize, states(block));
            keep(block, values);
        }
    }
    // tr(V^T H V) of the errors and of the weights.
    void measure() const {
        matrix_.error[tile_n_] = measured(errors_);
        matrix_.energy[tile_n_] = measured(weights_);
    }

  private:
    int64_t blocks() const { return matrix_.k / kTile; }
    uint16_t* states(int64_t block) const {
        return matrix_.states + (block * (matrix_.n / kTile) + tile_n_) * kTileSize;
    }
    // A block of rows with the errors of those behind it fed back, in a sweep of all others.
    Tile target(int64_t block, bool sweeps) const {
        Tile wanted;
        std::copy_n(weights_.begin() + block * kTileSize, kTileSize, wanted.begin());
        if (matrix_.hessian == nullptr) return wanted;
        const int64_t first = sweeps ? 0 : (block + 1) * kTile;
        const float* feedback =
            sweeps ? matrix_.hessian->sweep_feedback : matrix_.hessian->feedback;
        search_.paths().feed_back(wanted.data(), feedback + (block * matrix_.k + first) * kTile,
                                  errors_.data() + first * kTile, matrix_.k - first);
        return wanted;
    }
    static Tile in_stream_order(const Tile& tile) {
        Tile stream;
        for (int t = 0; t < kTileSize; ++t) {
            stream[static_cast<size_t>(t)] =
                tile[static_cast<size_t>(exl3::tile_row(t) * kTile + exl3::tile_col(t))];
        }
        return stream;
    }
    Tile decoded(const uint16_t* states) const {
        Tile tile;
        for (int t = 0; t < kTileSize; ++t) {
            tile[static_cast<size_t>(exl3::tile_row(t) * kTile + exl3::tile_col(t))] =
                search_.table()[states[t]];
        }
        return tile;
    }
    static Tile difference(const Tile& a, const Tile& b) {
        Tile tile;
        for (size_t i = 0; i < tile.size(); ++i) tile[i] = a[i] - b[i];
        return tile;
    }
    void keep(int64_t block, const Tile& values) {
        for (size_t i = 0; i < values.size(); ++i) {
            const size_t at = static_cast<size_t>(block * kTileSize) + i;
            errors_[at] = weights_[at] - values[i];
        }
    }
    double measured(const std::vector<float>& values) const {
        double sum = 0;
        for (int64_t block = 0; block < blocks(); ++block) {
            Tile tile;
            std::copy_n(values.begin() + block * kTileSize, kTileSize, tile.begin());
            const float* metric = nullptr;
            if (matrix_.hessian != nullptr) {
                const int64_t behind = (block + 1) * kTile;
                search_.paths().feed_back(
                    tile.data(), matrix_.hessian->feedback + (block * matrix_.k + behind) * kTile,
                    values.data() + behind * kTile, matrix_.k - behind);
                metric = matrix_.hessian->metric + block * kTileSize;
            }
            sum += weighed(tile, metric);
        }
        return sum;
    }

    Search& search_;
    const TrellisMatrix& matrix_;
    int64_t tile_n_;
    std::vector<float> weights_;  // (k, 16)
    std::vector<float> errors_;   // (k, 16) weights - decoded
};

// A Search for each thread that asks at the same time as others.
class Searches {
  public:
    Searches(const TrellisPaths& paths, TrellisCode code)
        : paths_(paths), code_(code), tables_(code) {}
    template <class Work>
    void lend(const Work& work) {
        std::unique_ptr<Search> search = take();
        work(*search);
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(search));
    }

  private:
    std::unique_ptr<Search> take() {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) return std::make_unique<Search>(paths_, code_, tables_);
        std::unique_ptr<Search> search = std::move(free_.back());
        free_.pop_back();
        return search;
    }
    const TrellisPaths& paths_;
    TrellisCode code_;
    Tables tables_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Search>> free_;
};

}  // namespace

CpuTrellisEncoder::CpuTrellisEncoder(Isa isa, int32_t threads)
    : paths_(trellis_paths_of(isa)), threads_(threads) {
    require(threads > 0, "an encoder has threads");
}

std::string CpuTrellisEncoder::name() const {
    return fmt::format("cpu-{}", paths_.name);
}

void CpuTrellisEncoder::encode_tiles(uint16_t* states, const float* tiles, int64_t count,
                                     TrellisCode code) {
    require(code.bits >= 1 && code.bits <= 8, "codes have 1 to 8 bits");
    constexpr int64_t kPiece = 8;
    Searches searches(paths_, code);
    parallel_for(threads_, (count + kPiece - 1) / kPiece, [&](int64_t piece) {
        searches.lend([&](Search& search) {
            const int64_t end = std::min((piece + 1) * kPiece, count);
            for (int64_t i = piece * kPiece; i < end; ++i) {
                search.run(states + i * kTileSize, tiles + i * kTileSize);
            }
        });
    });
}

void CpuTrellisEncoder::encode_matrices(std::span<const TrellisMatrix> matrices, TrellisCode code,
                                        int32_t sweeps) {
    require(code.bits >= 1 && code.bits <= 8, "codes have 1 to 8 bits");
    std::vector<std::pair<const TrellisMatrix*, int64_t>> columns;
    for (const TrellisMatrix& matrix : matrices) {
        require(matrix.k % kTile == 0 && matrix.n % kTile == 0, "matrices of whole tiles");
        for (int64_t tile = 0; tile < matrix.n / kTile; ++tile) columns.emplace_back(&matrix, tile);
    }
    Searches searches(paths_, code);
    parallel_for(threads_, std::ssize(columns), [&](int64_t piece) {
        const auto& [matrix, tile] = columns[static_cast<size_t>(piece)];
        searches.lend([&](Search& search) {
            Columns work(search, *matrix, tile);
            work.encode();
            for (int32_t i = 0; i < sweeps && matrix->hessian != nullptr; ++i) work.sweep();
            work.measure();
        });
    });
}

}  // namespace quadrille::cpu
