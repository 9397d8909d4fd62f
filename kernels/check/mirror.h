// SPDX-License-Identifier: Apache-2.0
// Mirror: every allocation of a working backend has a copy in host memory that holds the same bits
// between any two ops, so that a reference backend can start from them. Pointers of the working
// backend, also those inside tables that lie in its memory, are translated to their copies.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace quadrille::check {

class Mirror {
  public:
    // `host` makes the copies.
    explicit Mirror(Backend& host) : host_(host) {}
    ~Mirror();
    Mirror(const Mirror&) = delete;
    Mirror& operator=(const Mirror&) = delete;

    void add(void* work, int64_t bytes);
    void remove(void* work) noexcept;
    // The copy of `bytes` bytes from `work` on. Throws Error{internal} where no allocation has
    // them.
    char* find(const void* work, int64_t bytes) const;

  private:
    struct Block {
        char* copy;
        int64_t bytes;
    };
    Backend& host_;
    std::map<const char*, Block> blocks_;
};

// Translates the arguments of one call; tables it makes live as long as it does.
class ToHost {
  public:
    explicit ToHost(const Mirror& mirror) : mirror_(mirror) {}

    template <class T>
    T* operator()(T* work, int64_t count) const {
        if (work == nullptr) return nullptr;
        return reinterpret_cast<T*>(mirror_.find(work, count * static_cast<int64_t>(sizeof(T))));
    }
    template <class T>
    View<T> operator()(View<T> work) const {
        if (work.data == nullptr || work.rows == 0) return work;
        const int64_t span = (work.rows - 1) * work.stride + work.cols;
        return {(*this)(work.data, span), work.rows, work.cols, work.stride};
    }
    Matrix operator()(Matrix work) const;
    Mlp operator()(const Mlp& work) const;
    Rows operator()(Rows work) const;
    KdaState operator()(KdaState work) const;
    IndexCache operator()(IndexCache work) const;
    DraftCache operator()(DraftCache work) const;
    KdaWeights operator()(KdaWeights work, const KdaParams& params) const;
    std::span<const Product> operator()(std::span<const Product> work);
    KdaPass operator()(KdaPass work) const;
    DraftBlock operator()(DraftBlock work, const DraftAttentionParams& params) const;
    MoeWeights operator()(MoeWeights work);
    WalkInput operator()(WalkInput work, int64_t sequences);
    SampleInput operator()(SampleInput work);
    const SampleRow* operator()(const SampleRow* work, int64_t count);

  private:
    const Mirror& mirror_;
    std::deque<std::vector<Mlp>> experts_;
    std::deque<std::vector<Product>> products_;
    std::deque<std::vector<SampleRow>> samples_;
};

// The working backend's own arguments.
struct AsIs {
    template <class T, class... Sizes>
    const T& operator()(const T& work, const Sizes&...) const {
        return work;
    }
};

}  // namespace quadrille::check
