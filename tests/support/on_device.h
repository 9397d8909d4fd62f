// SPDX-License-Identifier: Apache-2.0
// Op-test data in the memory of any backend: guarded arrays, matrices and row layouts that exist on
// the host and are laid out the same there.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "tests/support/matrices.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"
#include "tests/support/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quadrille::test {

// A Guarded array in a backend's memory, bands and gaps included.
template <class T>
class OnDevice {
  public:
    OnDevice(Backend& backend, Guarded<T> host)
        : backend_(&backend),
          host_(std::move(host)),
          memory_(backend, static_cast<int64_t>(host_.storage().size_bytes())) {
        backend.upload(memory_.data(), host_.storage().data(), memory_.bytes());
    }
    OnDevice(Backend& backend, int64_t rows, int64_t cols, int64_t gap = 0)
        : OnDevice(backend, Guarded<T>(rows, cols, gap)) {}
    OnDevice(Backend& backend, int64_t rows, int64_t cols, std::span<const T> values,
             int64_t gap = 0)
        : OnDevice(backend, Guarded<T>(rows, cols, values, gap)) {}

    T* data() const { return static_cast<T*>(memory_.data()) + Guarded<T>::kBand; }
    View<T> view() const {
        const View<const T> shape = host_.view();
        return {data(), shape.rows, shape.cols, shape.stride};
    }
    // What lies there now.
    const Guarded<T>& fetch() {
        backend_->download(host_.storage().data(), memory_.data(), memory_.bytes());
        return host_;
    }
    // fetch(), every element written, nothing around it touched.
    std::vector<T> result() {
        EXPECT_TRUE(fetch().written());
        return host_.values();
    }

  private:
    Backend* backend_;
    Guarded<T> host_;
    Buffer memory_;
};

// Copies of host arrays for as long as the object lives.
class Uploads {
  public:
    explicit Uploads(Backend& backend) : backend_(&backend) {}

    template <class T>
    const T* array(const T* host, int64_t count) {
        if (host == nullptr || count == 0) return nullptr;
        const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
        buffers_.emplace_back(*backend_, bytes);
        backend_->upload(buffers_.back().data(), host, bytes);
        return static_cast<const T*>(buffers_.back().data());
    }
    template <class T>
    const T* array(const std::vector<T>& host) {
        return array(host.data(), std::ssize(host));
    }
    Matrix matrix(Matrix host) {
        if (host.weights != nullptr) {
            host.weights = array(static_cast<const unsigned char*>(host.weights),
                                 host.n * host.k * size_of(host.dtype));
        }
        host.trellis = array(host.trellis, host.k_padded * host.n_padded * host.bits / 16);
        if (host.is_exl3()) {
            host.suh = array(host.suh, host.k_padded);
            host.svh = array(host.svh, host.n_padded);
        }
        host.bias = array(host.bias, host.n);
        return host;
    }
    Rows rows(Rows host) {
        host.begin = array(host.begin, host.sequences + 1);
        host.slot = array(host.slot, host.sequences);
        host.position = array(host.position, host.sequences);
        host.pending = array(host.pending, host.sequences);
        host.row_sequence = array(host.row_sequence, host.m);
        return host;
    }

  private:
    Backend* backend_;
    std::deque<Buffer> buffers_;
};

// Relative root mean square within `allowed`, no element off by more than kGpuWorstElement of it,
// NaN and infinity only where they are expected.
inline testing::AssertionResult near_enough(std::span<const float> found,
                                            std::span<const float> expected, double allowed) {
    if (found.size() != expected.size()) {
        return testing::AssertionFailure()
               << found.size() << " elements, expected " << expected.size();
    }
    double squares = 0;
    double errors = 0;
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const auto x = static_cast<double>(found[i]);
        const auto y = static_cast<double>(expected[i]);
        if (same_bits(found[i], expected[i])) {
            squares += std::isfinite(y) ? y * y : 0;
            continue;
        }
        if (std::isnan(x) && std::isnan(y)) continue;
        if (!std::isfinite(x) || !std::isfinite(y)) {
            return testing::AssertionFailure()
                   << "element " << i << ": " << x << ", expected " << y;
        }
        squares += y * y;
        errors += (x - y) * (x - y);
        if (std::abs(x - y) > worst) {
            worst = std::abs(x - y);
            at = i;
        }
    }
    const double count = static_cast<double>(std::max<size_t>(found.size(), 1));
    allowed *= 1 + 4 / std::sqrt(count);  // the mean of a few is no mean
    const double rms = std::sqrt(squares / count);
    const double error = std::sqrt(errors / count);
    if (error <= allowed * rms && worst <= kGpuWorstElement * allowed * rms) {
        return testing::AssertionSuccess();
    }
    return testing::AssertionFailure()
           << "relative rms " << error / rms << " of " << allowed << " allowed; worst element "
           << at << ": " << found[at] << ", expected " << expected[at] << " (rms " << rms << ")";
}

}  // namespace quadrille::test
