// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/tap_map.h"

#include "drafter/train/ridge.h"
#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "kernels/error.h"
#include "kernels/make_train_ops.h"

#include <fmt/format.h>

#include <algorithm>

namespace quadrille {
namespace {

constexpr int64_t kRows = 1024;  // read at once

View<const float> as_view(const std::vector<float>& values, int64_t rows) {
    return {values.data(), rows, std::ssize(values) / rows};
}

}  // namespace

std::vector<float> taps_of(const CaptureRows& rows) {
    std::vector<float> taps(rows.taps.size());
    std::ranges::transform(rows.taps, taps.begin(),
                           [](uint16_t bits) { return to_float(BF16{bits}); });
    return taps;
}

std::vector<float> fit_next_token(const CaptureReader& capture, std::span<const int64_t> sequences,
                                  const MapOptions& options) {
    Ridge ridge(capture.tap_columns(), capture.hidden(), options.threads);
    for (size_t s = 0; s < sequences.size(); ++s) {
        const int64_t length = capture.length(sequences[s]);
        for (int64_t first = 0; first < length; first += kRows) {
            const int64_t count = std::min(kRows, length - first);
            const CaptureRows rows = capture.read(sequences[s], first, count);
            ridge.add(as_view(taps_of(rows), count), as_view(rows.final_hidden, count));
        }
        options.progress(static_cast<int64_t>(s) + 1, std::ssize(sequences));
    }
    return ridge.solve(options.damping);
}

int64_t common_rows(const CaptureReader& capture, const CaptureReader& reference,
                    int64_t sequence) {
    const int64_t most = std::min(capture.length(sequence), reference.length(sequence));
    const int32_t* tokens = capture.tokens_of(sequence);
    const int32_t* others = reference.tokens_of(sequence);
    return std::mismatch(tokens, tokens + most, others).first - tokens;
}

std::vector<float> refit_fc(const CaptureReader& capture, const CaptureReader& reference,
                            std::span<const int64_t> sequences, std::span<const float> fc,
                            const MapOptions& options) {
    const int64_t columns = capture.tap_columns();
    const View<const float> old(fc.data(), capture.hidden(), columns);
    const auto backend = make_backend("cpu");
    const auto ops = make_train_ops(*backend);
    Ridge ridge(columns, capture.hidden(), options.threads);
    for (size_t s = 0; s < sequences.size(); ++s) {
        const int64_t length = common_rows(capture, reference, sequences[s]);
        for (int64_t first = 0; first < length; first += kRows) {
            const int64_t count = std::min(kRows, length - first);
            const std::vector<float> taps = taps_of(capture.read(sequences[s], first, count));
            std::vector<float> drift = taps_of(reference.read(sequences[s], first, count));
            for (size_t i = 0; i < drift.size(); ++i) drift[i] -= taps[i];
            std::vector<float> wanted(static_cast<size_t>(count * old.rows));
            ops->product({wanted.data(), count, old.rows}, as_view(drift, count), old,
                         ProductForm::nt, false);
            ridge.add(as_view(taps, count), as_view(wanted, count));
        }
        options.progress(static_cast<int64_t>(s) + 1, std::ssize(sequences));
    }
    if (ridge.rows() == 0) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected sequences that begin with the tokens of {}, found "
                                "none",
                                reference.path().string(), capture.path().string()));
    }
    std::vector<float> map = ridge.solve(options.damping);
    for (size_t i = 0; i < map.size(); ++i) map[i] += fc[i];
    return map;
}

}  // namespace quadrille
