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

// As the check backend compares (kernels/check/tolerance.h).
inline testing::AssertionResult near_enough(std::span<const float> found,
                                            std::span<const float> expected, double allowed) {
    if (found.size() != expected.size()) {
        return testing::AssertionFailure()
               << found.size() << " elements, expected " << expected.size();
    }
    const auto difference = check::compare(found, expected, allowed);
    if (!difference) return testing::AssertionSuccess();
    const auto at = static_cast<size_t>(difference->element);
    return testing::AssertionFailure() << "element " << at << ": " << found[at] << ", expected "
                                       << expected[at] << "; allowed " << difference->allowance;
}

}  // namespace quadrille::test
