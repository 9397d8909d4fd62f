// SPDX-License-Identifier: Apache-2.0
// Linear maps of a capture's taps, fitted by ridge regression over the rows of some sequences.
#pragma once

#include "io/capture/capture_reader.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace quadrille {

struct MapOptions {
    double damping = 1e-3;  // as Ridge
    int32_t threads = 1;
    std::function<void(int64_t done, int64_t all)> progress{};  // sequences
};

// Taps of rows as floats.
std::vector<float> taps_of(const CaptureRows& rows);

// (hidden, taps * hidden): taps of a row to its final hidden row, from which the head makes the
// logits of the next token. The norm's factor of a row changes no order of logits and its weights
// scale outputs, of which each is fitted by itself: fitting in front of the norm gives the same
// tokens.
std::vector<float> fit_next_token(const CaptureReader& capture, std::span<const int64_t> sequences,
                                  const MapOptions& options);

// Rows of a sequence up to which both captures have the same tokens, and so the same meaning.
int64_t common_rows(const CaptureReader& capture, const CaptureReader& reference, int64_t sequence);

// (hidden, taps * hidden): fc changed so that it makes of the capture's taps what it makes of the
// reference's: argmin sum |W x - fc x_reference|^2 + penalty of W - fc. Error{input}: the captures
// have no rows in common.
std::vector<float> refit_fc(const CaptureReader& capture, const CaptureReader& reference,
                            std::span<const int64_t> sequences, std::span<const float> fc,
                            const MapOptions& options);

}  // namespace quadrille
