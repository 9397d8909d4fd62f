// SPDX-License-Identifier: Apache-2.0
// TrellisEncoder: the search for EXL3 codes, the costly part of quantizing, on one device. It takes
// weights that are rotated and scaled already (kernels/quantize) and finds the states whose decoded
// values are nearest. All memory is the host's, whatever the device.
//
// A tile's 256 values in stream order (kernels/exl3.h) get 256 states, each of which continues the
// one before and the first the last. A Viterbi pass from the middle of the tile round to it, with
// both ends free, finds a node for the seam in front of position 0; a second pass begins and ends
// at that node. Every arithmetic step is written down (kernels/trellis_search.h,
// kernels/cpu/trellis_loops.h): all encoders give the same bits, for any number of threads.
#pragma once

#include "kernels/matrix.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace quadrille {

struct TrellisCode {
    int32_t bits = 0;  // 1..8
    Codebook codebook = Codebook::mcg;
};

// What the Hessian H = (I + L) D (I + L)^T of a matrix's inputs says of its errors E.
struct TrellisHessian {
    const float* feedback = nullptr;  // (k/16, k, 16): L's columns of a row block
    const float* metric = nullptr;    // (k/16, 16, 16): D
    // H[:, i] H[i, i]^-1 of row block i, its own rows 0; and H[i, i]. Only sweeps read them.
    const float* sweep_feedback = nullptr;  // (k/16, k, 16)
    const float* sweep_metric = nullptr;    // (k/16, 16, 16)
};

// A matrix to encode, rows of 16 inputs at a time from the last to the first. With a Hessian the
// errors of later rows change earlier ones: row block i is encoded as W_i + sum over the rows j
// behind it of L[j, i]^T E_j, which keeps tr(E^T H E) small (LDLQ). Each of `sweeps` then encodes
// every row block once more, against the errors of all others, tied to the seam it has, and keeps
// a tile's new states where they lower tr(E^T H E).
struct TrellisMatrix {
    int64_t k = 0;                    // inputs, a multiple of 16
    int64_t n = 0;                    // outputs, a multiple of 16
    const float* weights = nullptr;   // (k, n)
    const TrellisHessian* hessian{};  // nullptr: the identity, tiles are independent
    uint16_t* states = nullptr;       // out (k/16, n/16, 256)
    double* error = nullptr;          // out (n/16): tr(E^T H E) of 16 columns
    double* energy = nullptr;         // out (n/16): tr(W^T H W) of 16 columns
};

class TrellisEncoder {
  public:
    virtual ~TrellisEncoder() = default;
    virtual std::string name() const = 0;
    // states (count, 256) of tiles (count, 256), finite.
    virtual void encode_tiles(uint16_t* states, const float* tiles, int64_t count,
                              TrellisCode code) = 0;
    // Matrices of one k are encoded side by side: a GPU wants some thousand columns at a time.
    virtual void encode_matrices(std::span<const TrellisMatrix> matrices, TrellisCode code,
                                 int32_t sweeps) = 0;
};

// backend: as make_backend's ("cpu", "cpu-plain", "cpu-avx2", "cpu-avx512", "cuda"), with its
// errors. threads: of the host, at least 1; no result depends on it.
std::unique_ptr<TrellisEncoder> make_trellis_encoder(const std::string& backend, int32_t threads,
                                                     int32_t device = 0);

}  // namespace quadrille
