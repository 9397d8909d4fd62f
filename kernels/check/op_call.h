// SPDX-License-Identifier: Apache-2.0
// OpCall: one op run by two backends from the same bits, and the comparison of what they wrote.
// Outputs are declared first; then run() takes the call itself, once for both.
#pragma once

#include "kernels/backend.h"
#include "kernels/check/mirror.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quadrille::check {

inline constexpr double kExact = 0;

class OpCall {
  public:
    OpCall(Backend& work, Backend& reference, const Mirror& mirror, const char* op)
        : work_(work), reference_(reference), op_(op), host_(mirror) {}

    // An output that is written whole, unless the reference leaves elements alone too. floats: the
    // relative root mean square they may be off by; everything else is exact.
    template <class T>
    OpCall& out(const char* name, View<T> view, double allowed = kExact) {
        return add(name, view, allowed, false, {});
    }
    // One that is changed in place. columns (rows): the elements of each row that are specified;
    // empty: all.
    template <class T>
    OpCall& update(const char* name, View<T> view, double allowed = kExact,
                   std::vector<int64_t> columns = {}) {
        return add(name, view, allowed, true, std::move(columns));
    }
    // An input; outputs that share its memory are changed in place.
    OpCall& reads(View<const float> in);
    // Rows of the first output, int32, may differ where `tied` says so; the row is then left out
    // of the others.
    using Tied = std::function<bool(int64_t row, const int32_t* found, const int32_t* expected)>;
    OpCall& unless(Tied tied) {
        tied_ = std::move(tied);
        return *this;
    }

    ToHost& host() { return host_; }

    // op(backend, at): calls the op with every argument translated by `at`.
    template <class Op>
    void run(Op&& op) {
        for (Output& output : outputs_) prepare(output);
        op(reference_, host_);
        op(work_, AsIs{});
        for (Output& output : outputs_) fetch(output);
        if (tied_ && !outputs_.empty()) leave_ties(outputs_.front());
        for (Output& output : outputs_) judge(output);
        for (Output& output : outputs_) {
            std::copy(output.found.begin(), output.found.end(), output.copy);
        }
    }

  private:
    struct Output {
        const char* name;
        void* work;
        uint32_t* copy;
        int64_t rows, cols, stride;  // words
        int64_t element;             // words of one element
        bool is_float;
        double allowed;
        bool in_place;
        std::vector<int64_t> columns;  // words
        std::vector<uint32_t> before;  // in place: what was there
        std::vector<uint32_t> found;

        int64_t span() const { return rows == 0 ? 0 : (rows - 1) * stride + cols; }
        int64_t specified(int64_t row) const {
            return columns.empty() ? cols : columns[static_cast<size_t>(row)];
        }
    };

    template <class T>
    OpCall& add(const char* name, View<T> view, double allowed, bool in_place,
                std::vector<int64_t> columns) {
        if (view.rows == 0 || view.cols == 0 || view.data == nullptr) return *this;
        constexpr auto kWords = static_cast<int64_t>(sizeof(T) / sizeof(uint32_t));
        static_assert(sizeof(T) % sizeof(uint32_t) == 0);
        for (int64_t& column : columns) column *= kWords;
        outputs_.push_back({.name = name,
                            .work = view.data,
                            .copy = reinterpret_cast<uint32_t*>(host_(view).data),
                            .rows = view.rows,
                            .cols = view.cols * kWords,
                            .stride = view.stride * kWords,
                            .element = kWords,
                            .is_float = std::is_same_v<T, float>,
                            .allowed = work_.on_host() ? kExact : allowed,
                            .in_place = in_place,
                            .columns = std::move(columns),
                            .before = {},
                            .found = {}});
        return *this;
    }

    void prepare(Output& output);

    void fetch(Output& output);

    void leave_ties(const Output& chosen);

    void judge(const Output& output);

    [[noreturn]] void fail(const Output& output, int64_t at, const std::string& allowed) const;

    Backend& work_;
    Backend& reference_;
    const char* op_;
    ToHost host_;
    Tied tied_;
    std::vector<Output> outputs_;
};

}  // namespace quadrille::check
