// SPDX-License-Identifier: Apache-2.0
// main of the tests that need a GPU: without one the whole binary is a SKIP, not a success.
#include "kernels/backend.h"

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (quadrille::gpu_count() == 0) {
        std::puts("no GPU: skipped");
        return 77;
    }
    return RUN_ALL_TESTS();
}
