// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/output_distance.h"

#include "kernels/parallel.h"

#include <algorithm>
#include <cmath>

namespace quadrille {
namespace {

constexpr int64_t kLogits = int64_t{1} << 24;  // held at once, of each of the two

// KL(p || q) of two rows of logits.
double divergence_of(const float* p, const float* q, int64_t count) {
    const auto log_sum = [count](const float* row) {
        const double largest = *std::max_element(row, row + count);
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += std::exp(double{row[i]} - largest);
        return largest + std::log(sum);
    };
    const double log_p = log_sum(p);
    const double log_q = log_sum(q);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double at = double{p[i]} - log_p;
        const double weight = std::exp(at);
        if (weight > 0) sum += weight * (at - (double{q[i]} - log_q));
    }
    return sum;
}

}  // namespace

OutputDistance::OutputDistance(const CalibrationModel& model, const Checkpoint& source,
                               int32_t threads)
    : model_(model), source_(source), threads_(threads), own_(final_rows()) {}

std::vector<float> OutputDistance::final_rows() const {
    const int64_t hidden = model_.config.hidden_size;
    std::vector<float> rows(static_cast<size_t>(model_.rows->rows() * hidden));
    const FinalRows final(model_, source_);
    model_.rows->look([&](View<float> streams, const Rows&, int64_t first) {
        const View<const float> found = final.of(streams);
        model_.backend.download(rows.data() + first * hidden, found.data,
                                found.rows * hidden * int64_t{sizeof(float)});
    });
    return rows;
}

double OutputDistance::divergence(const std::vector<float>& rows, const Checkpoint& head) const {
    Backend& backend = model_.backend;
    const int64_t hidden = model_.config.hidden_size;
    const int64_t vocab = model_.config.vocab_size;
    WeightLoader own_loader(backend, source_);
    const Matrix own_head = own_loader.column_parallel("lm_head", vocab, hidden, {0, vocab});
    own_loader.read();
    WeightLoader loader(backend, head);
    const bool same = &head == &source_;
    const Matrix their_head =
        same ? own_head : loader.column_parallel("lm_head", vocab, hidden, {0, vocab});
    loader.read();
    const int64_t total = model_.rows->rows();
    const int64_t chunk = std::clamp<int64_t>(kLogits / vocab, 1, total);
    Array<float> in(backend, chunk, hidden);
    const Array<float> out(backend, chunk, vocab);
    std::vector<float> mine(static_cast<size_t>(chunk * vocab));
    std::vector<float> theirs(mine.size());
    std::vector<double> found(static_cast<size_t>(total));
    for (int64_t first = 0; first < total; first += chunk) {
        const int64_t m = std::min(chunk, total - first);
        const auto logits = [&](const std::vector<float>& from, const Matrix& by,
                                std::vector<float>& host) {
            in.upload(std::span(from).subspan(static_cast<size_t>(first * hidden),
                                              static_cast<size_t>(m * hidden)));
            backend.linear(out.first(m), in.first(m), by);
            backend.download(host.data(), out.data(), m * vocab * int64_t{sizeof(float)});
        };
        logits(own_, own_head, mine);
        logits(rows, their_head, theirs);
        parallel_for(threads_, m, [&](int64_t row) {
            found[static_cast<size_t>(first + row)] =
                divergence_of(mine.data() + row * vocab, theirs.data() + row * vocab, vocab);
        });
    }
    double sum = 0;
    for (const double value : found) sum += value;
    return sum / static_cast<double>(total);
}

}  // namespace quadrille
