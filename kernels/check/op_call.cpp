// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/op_call.h"

#include "kernels/check/tolerance.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace quadrille::check {

namespace {

// What outputs hold before the op: a NaN no arithmetic makes, an unlikely integer.
constexpr uint32_t kUntouched = 0x7fc3c3c3u;

}  // namespace

OpCall& OpCall::reads(View<const float> in) {
    if (in.rows == 0) return *this;
    const float* const end = in.data + (in.rows - 1) * in.stride + in.cols;
    for (Output& output : outputs_) {
        const auto* const first = reinterpret_cast<const float*>(output.work);
        if (in.data < first + output.span() && first < end) output.in_place = true;
    }
    return *this;
}

void OpCall::prepare(Output& output) {
    if (output.in_place) {
        output.before.assign(output.copy, output.copy + output.span());
        return;
    }
    for (int64_t row = 0; row < output.rows; ++row) {
        std::fill_n(output.copy + row * output.stride, output.cols, kUntouched);
    }
    work_.upload(output.work, output.copy, output.span() * 4);
}

void OpCall::fetch(Output& output) {
    output.found.resize(static_cast<size_t>(output.span()));
    work_.download(output.found.data(), output.work, output.span() * 4);
}

void OpCall::leave_ties(const Output& chosen) {
    std::vector<int64_t> tied;
    for (int64_t row = 0; row < chosen.rows; ++row) {
        const auto* found =
            reinterpret_cast<const int32_t*>(chosen.found.data() + row * chosen.stride);
        const auto* expected = reinterpret_cast<const int32_t*>(chosen.copy + row * chosen.stride);
        if (!std::equal(found, found + chosen.cols, expected) && tied_(row, found, expected)) {
            tied.push_back(row);
        }
    }
    for (Output& output : outputs_) {
        if (tied.empty()) break;
        output.columns.assign(static_cast<size_t>(output.rows), output.cols);
        for (const int64_t row : tied) output.columns[static_cast<size_t>(row)] = 0;
    }
}

void OpCall::judge(const Output& output) {
    std::vector<float> found;
    std::vector<float> expected;
    std::vector<int64_t> places;
    for (int64_t row = 0; row < output.rows; ++row) {
        const int64_t specified = output.specified(row);
        for (int64_t c = 0; c < output.stride; ++c) {
            const int64_t at = row * output.stride + c;
            if (at >= output.span()) break;
            if (c >= specified && c < output.cols) continue;
            const uint32_t word = output.found[static_cast<size_t>(at)];
            const uint32_t wanted = output.copy[at];
            if (c >= output.cols) {
                if (word != wanted) fail(output, at, "nothing: it lies between the rows");
                continue;
            }
            const uint32_t before =
                output.in_place ? output.before[static_cast<size_t>(at)] : kUntouched;
            if (wanted == before && (!output.in_place || word == before)) continue;
            if (!output.in_place && word == kUntouched) {
                fail(output, at, "any value, but it was left untouched");
            }
            if (output.is_float) {
                found.push_back(std::bit_cast<float>(word));
                expected.push_back(std::bit_cast<float>(wanted));
                places.push_back(at);
            } else if (word != wanted) {
                fail(output, at, "none");
            }
        }
    }
    const auto difference = compare(found, expected, output.allowed);
    if (!difference) return;
    fail(output, places[static_cast<size_t>(difference->element)], difference->allowance);
}

void OpCall::fail(const Output& output, int64_t at, const std::string& allowed) const {
    const auto show = [&output, at](const uint32_t* words) {
        const int64_t first = at - at % output.stride % output.element;
        if (output.is_float) return fmt::format("{:.9g}", std::bit_cast<float>(words[at]));
        if (output.element == 1) return fmt::format("{}", std::bit_cast<int32_t>(words[at]));
        double value = 0;
        std::memcpy(&value, words + first, sizeof value);
        return output.element == 2 ? fmt::format("{:.17g}", value)
                                   : fmt::format("{:#x} (word)", words[at]);
    };
    throw Error(
        ErrorKind::internal,
        fmt::format("check: {}: {}[{}, {}] of ({}, {}): {} on {}, {} on {}; difference "
                    "allowed: {}",
                    op_, output.name, at / output.stride, at % output.stride / output.element,
                    output.rows, output.cols / output.element, show(output.found.data()),
                    work_.name(), show(output.copy), reference_.name(), allowed));
}

}  // namespace quadrille::check
