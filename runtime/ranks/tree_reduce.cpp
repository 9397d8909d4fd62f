// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/tree_reduce.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {
namespace {

// Below this a second collective costs more than the bytes it saves (4 ranks on 2 cores of a
// Sapphire Rapids Xeon, 16 KiB a row: equal at 4 rows, 16 rows 1.1 against 0.5 ms).
constexpr int64_t kScatterBytes = 64 << 10;
// Two ranks move the same bytes either way.
constexpr int32_t kScatterRanks = 4;
constexpr int64_t kFloat = sizeof(float);

int64_t slice_rows(int64_t rows, int64_t size) {
    return (rows + size - 1) / size;
}

}  // namespace

TreeReduce::TreeReduce(Backend& backend, Communicator& comm, int64_t max_rows, int64_t width,
                       Way way)
    : backend_(backend), comm_(comm), max_rows_(max_rows), width_(width), way_(way) {
    const int64_t size = comm.size();
    require(size == 1 || size == 2 || size == 4, "a tree over 1, 2 or 4 ranks");
    require(max_rows >= 1 && width >= 1, "a reduction of at least one element");
    if (size == 1) return;
    // By size, rows beyond the switch are never gathered whole: a slice from each rank is enough.
    int64_t gathered = way == Way::scatter ? 0 : max_rows;
    if (way == Way::by_size && scatters(max_rows)) {
        gathered = std::max<int64_t>(kScatterBytes / (width * kFloat), 1);
    }
    const int64_t slice = scatters(max_rows) ? slice_rows(max_rows, size) : 0;
    parts_ = Array<float>(backend, size * std::max(gathered, slice), width);
    padded_ = Array<float>(backend, size * slice, width);
}

bool TreeReduce::scatters(int64_t rows) const {
    if (way_ != Way::by_size) return way_ == Way::scatter;
    return comm_.size() >= kScatterRanks && rows > 1 && rows * width_ * kFloat > kScatterBytes;
}

void TreeReduce::sum(View<float> out, View<const float> partial) {
    require(partial.rows <= max_rows_ && partial.cols == width_, "partials fit the reduction");
    require(out.rows == partial.rows && out.cols == width_, "sums have the partials' shape");
    require(out.stride == width_ && partial.stride == width_, "sums and partials without gaps");
    if (out.rows == 0) return;
    if (comm_.size() == 1) {
        if (out.data != partial.data) {
            backend_.copy(out.data, partial.data, out.rows * width_ * kFloat);
        }
        return;
    }
    if (scatters(out.rows)) {
        sum_scattered(out, partial);
    } else {
        sum_gathered(out, partial);
    }
}

void TreeReduce::sum_gathered(View<float> out, View<const float> partial) {
    const int64_t elements = out.rows * width_;
    comm_.all_gather(parts_.data(), partial.data, elements * kFloat);
    backend_.tree_sum(out, parts_.data(), comm_.size(), elements);
}

void TreeReduce::sum_scattered(View<float> out, View<const float> partial) {
    const int64_t size = comm_.size();
    const int64_t rows = slice_rows(out.rows, size);
    const int64_t bytes = out.rows * width_ * kFloat;
    // Whole slices go straight from and to the caller's rows, others through a padded copy; the
    // padding's sums are dropped.
    const bool whole = out.rows == rows * size;
    const float* sent = partial.data;
    if (!whole) {
        backend_.copy(padded_.data(), partial.data, bytes);
        sent = padded_.data();
    }
    comm_.all_to_all(parts_.data(), sent, rows * width_ * kFloat);
    float* const sums = whole ? out.data : padded_.data();
    const View<float> own(sums + comm_.rank() * rows * width_, rows, width_);
    backend_.tree_sum(own, parts_.data(), static_cast<int32_t>(size), rows * width_);
    comm_.all_gather(sums, own.data, rows * width_ * kFloat);
    if (!whole) backend_.copy(out.data, padded_.data(), bytes);
}

}  // namespace quadrille
