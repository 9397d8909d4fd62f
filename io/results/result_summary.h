// SPDX-License-Identifier: Apache-2.0
// Sums of finished records: of all, and of those of each kind.
#pragma once

#include "io/records.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quadrille {

struct ResultSums {
    int64_t records = 0;
    int64_t errors = 0;  // records with status error
    int64_t tokens = 0;
    int64_t steps = 0;
    int64_t drafted = 0;
    int64_t accepted = 0;
    int64_t emitted = 0;
    std::vector<int64_t> by_position;  // (K)
    std::vector<int64_t> histogram;    // (K + 1)

    void add(const Generation& generation);
    // NaN when there were no steps.
    double accepted_per_step() const;
    double emitted_per_step() const;
    double accept_length() const { return 1.0 + accepted_per_step(); }
    double position_rate(size_t position) const;
    // Standard errors, records being drawn independently (a ratio of sums over records); NaN with
    // fewer than two records that have steps.
    double accept_length_error() const;
    double position_error(size_t position) const;

  private:
    // Sums over records of x * x and x * steps.
    struct Products {
        double squares = 0;
        double with_steps = 0;
    };
    double error(double rate, const Products& products) const;

    int64_t stepping_ = 0;  // records with steps
    Products steps_;
    Products accepted_;
    std::vector<Products> positions_;
};

struct ResultSummary : ResultSums {
    std::map<std::string, ResultSums> kinds;  // of records that have one

    void add(const Generation& generation);
};

}  // namespace quadrille
