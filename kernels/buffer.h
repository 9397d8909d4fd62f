// SPDX-License-Identifier: Apache-2.0
// Buffer: memory of a backend, owned. Array<T>: the same with an element type and a matrix shape.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace quadrille {

class Buffer {
  public:
    Buffer() = default;
    Buffer(Backend& backend, int64_t bytes, Memory memory = Memory::pass)
        : backend_(&backend), data_(backend.allocate_for(memory, bytes)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        Buffer taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~Buffer() {
        if (backend_ != nullptr) backend_->release(data_);
    }

    void* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    void swap(Buffer& other) noexcept {
        std::swap(backend_, other.backend_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    Backend* backend_ = nullptr;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

template <class T>
class Array {
  public:
    Array() = default;
    Array(Backend& backend, int64_t rows, int64_t cols, Memory memory = Memory::pass)
        : buffer_(backend, rows * cols * static_cast<int64_t>(sizeof(T)), memory),
          backend_(&backend),
          rows_(rows),
          cols_(cols) {}
    Array(Backend& backend, std::span<const T> values)
        : Array(backend, 1, static_cast<int64_t>(values.size())) {
        upload(values);
    }

    T* data() const { return static_cast<T*>(buffer_.data()); }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    int64_t bytes() const { return buffer_.bytes(); }
    View<T> view() const { return {data(), rows_, cols_}; }
    // The first `count` rows: buffers are allocated for the largest pass and used for any.
    View<T> first(int64_t count) const { return view().slice_rows(0, count); }

    void upload(std::span<const T> values) {
        require(static_cast<int64_t>(values.size()) <= rows_ * cols_, "upload fits its array");
        backend_->upload(data(), values.data(), static_cast<int64_t>(values.size_bytes()));
    }
    std::vector<T> download() const {
        std::vector<T> values(static_cast<size_t>(rows_ * cols_));
        backend_->download(values.data(), data(), bytes());
        return values;
    }

  private:
    Buffer buffer_;
    Backend* backend_ = nullptr;
    int64_t rows_ = 0;
    int64_t cols_ = 0;
};

}  // namespace quadrille
