// SPDX-License-Identifier: Apache-2.0
// What a mixture of experts is given for the rows of a pass.
#pragma once

#include "tests/support/op_case.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quadrille::test {

struct Pass {
    std::vector<float> x;        // [m, h]
    std::vector<int32_t> ids;    // [m, topk]
    std::vector<float> weights;  // [m, topk]
};

// Each row has `topk` different experts of `experts`.
inline Pass random_pass(Random& random, int64_t m, int64_t h, int32_t experts, int64_t topk) {
    Pass pass{random.normals(m * h), {}, random.uniforms(m * topk, 0.1f, 1.0f)};
    for (int64_t r = 0; r < m; ++r) {
        const std::vector<int64_t> order = random.permutation(experts);
        for (int64_t slot = 0; slot < topk; ++slot) {
            pass.ids.push_back(static_cast<int32_t>(order[static_cast<size_t>(slot)]));
        }
    }
    return pass;
}

}  // namespace quadrille::test
