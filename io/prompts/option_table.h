// SPDX-License-Identifier: Apache-2.0
// The options a record of prompts.h5 may have: names, ranges, markers for "not set". The one table
// that the reader of columns and the writer of prompts files share.
#pragma once

#include "io/records.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>

namespace quadrille::options {

inline constexpr int64_t kMaxToken = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kIntDefault = -1;  // marker; NaN for floating point
inline constexpr int64_t kMaxLogprobs = 256;
inline constexpr int64_t kMaxSamples = int64_t{1} << 20;

struct IntOption {
    const char* name;
    int64_t low;
    int64_t high;
    int64_t (*get)(const RecordOptions&);
    void (*set)(RecordOptions&, int64_t);

    bool allows(int64_t value) const { return value >= low && value <= high; }
    std::string range() const {
        return high == std::numeric_limits<int64_t>::max() ? fmt::format("at least {}", low)
                                                           : fmt::format("{} to {}", low, high);
    }
};

struct FloatOption {
    const char* name;
    double low;
    bool low_allowed;
    double high;
    double RecordOptions::*member;

    bool allows(double value) const {
        return (low_allowed ? value >= low : value > low) && value <= high;
    }
    std::string range() const {
        const char* above = low_allowed ? "" : "above ";
        if (high < std::numeric_limits<double>::max()) {
            return fmt::format("{}{} to {}", above, low, high);
        }
        return fmt::format("{}{} and finite", low_allowed ? "at least " : above, low);
    }
};

template <int64_t RecordOptions::*kMember>
constexpr IntOption int_option(const char* name, int64_t low, int64_t high) {
    return {name, low, high, [](const RecordOptions& options) { return options.*kMember; },
            [](RecordOptions& options, int64_t value) { options.*kMember = value; }};
}

inline constexpr std::array kInts = {
    int_option<&RecordOptions::max_new_tokens>("max_new_tokens", 0, kMaxToken),
    int_option<&RecordOptions::top_k>("top_k", 0, kMaxToken),
    int_option<&RecordOptions::seed>("seed", 0, std::numeric_limits<int64_t>::max()),
    int_option<&RecordOptions::logprobs>("logprobs", 0, kMaxLogprobs),
    IntOption{"ignore_eos", 0, 1, [](const RecordOptions& o) -> int64_t { return o.ignore_eos; },
              [](RecordOptions& o, int64_t value) { o.ignore_eos = value != 0; }},
    int_option<&RecordOptions::samples>("n", 1, kMaxSamples),
    int_option<&RecordOptions::score_from>("score_from", 1, kMaxToken),
};
inline constexpr size_t kMaxNewTokens = 0;  // places in kInts
inline constexpr size_t kLogprobs = 3;
inline constexpr size_t kSamples = 5;
inline constexpr size_t kScoreFrom = 6;

inline constexpr double kFinite = std::numeric_limits<double>::max();
inline constexpr std::array kFloats = {
    FloatOption{"temperature", 0.0, true, kFinite, &RecordOptions::temperature},
    FloatOption{"top_p", 0.0, false, 1.0, &RecordOptions::top_p},
    FloatOption{"min_p", 0.0, true, 1.0, &RecordOptions::min_p},
    FloatOption{"repetition_penalty", 0.0, false, kFinite, &RecordOptions::repetition_penalty},
};

inline constexpr size_t kTemperature = 0;  // place in kFloats

inline constexpr const char* kStopTokens = "stop_tokens";
inline constexpr const char* kStopText = "stop_text";

inline std::string offsets_name(const std::string& list) {
    return list + "_offsets";
}

}  // namespace quadrille::options
