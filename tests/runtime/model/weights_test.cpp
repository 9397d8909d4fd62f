// SPDX-License-Identifier: Apache-2.0
// What a loader puts in backend memory and what it leaves out.
#include "runtime/model/weights.h"

#include "kernels/exl3_decode.h"
#include "tests/support/expect_error.h"
#include "tests/support/matrices.h"
#include "tests/support/stored_modules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

namespace quadrille::test {
namespace {

std::vector<float> floats(const float* values, int64_t count) {
    return {values, values + count};
}

// Rows 128 to 299 of a (300, 256) module that is stored as EXL3.
TEST(WeightLoader, KeepsNoPackedCopyOfAMatrixThatIsReadAsNative) {
    Random random(31);
    for (const bool split : {false, true}) {
        MatrixData data = MatrixData::exl3(random, 300, 256, 4, Codebook::mul1);
        std::vector<StoredTensor> tensors;
        for (int rank = 0; rank < 4; ++rank) {
            const Range rows = split ? block_share(300, 4, rank) : Range{0, rank == 0 ? 300 : 0};
            if (!split && rank > 0) break;
            const MatrixData part = data.outputs(rows.begin, rows.size());
            const std::string name = split ? fmt::format("a.rank{}", rank) : "a";
            for (StoredTensor& tensor : exl3_tensors(name, part.matrix())) {
                tensors.push_back(std::move(tensor));
            }
        }
        const std::unique_ptr<Backend> backend = make_backend("cpu");
        const StoredModules stored(tensors);
        WeightLoader loader(*backend, stored.checkpoint());
        const Matrix native =
            loader.native_matrix("a", 300, 256, MatrixSlice::of_rows({{128, 300}}, 256));
        EXPECT_FALSE(native.is_exl3());
        EXPECT_EQ(native.dtype, Dtype::f32);
        ASSERT_EQ(native.n, 172);
        ASSERT_EQ(native.k, 256);
        const MatrixData rows = data.outputs(128, 172);
        std::vector<float> expected(172 * 256);
        exl3_dequantize(expected.data(), rows.matrix());
        EXPECT_EQ(floats(static_cast<const float*>(native.weights), 172 * 256), expected);
        EXPECT_EQ(loader.bytes(), 172 * 256 * 4);  // a multiple of the alignment
        EXPECT_EQ(loader.unused(), std::vector<std::string>{});
    }
}

TEST(WeightLoader, PlacesEverythingOfAPackedModule) {
    Random random(32);
    const MatrixData data = MatrixData::exl3(random, 256, 128, 2, Codebook::mcg);
    std::vector<StoredTensor> tensors = exl3_tensors("a", data.matrix());
    tensors.push_back(zeros("a.bias", "F16", {256}));
    tensors.push_back(zeros("a.scale", "F32", {1}));
    tensors.push_back(zeros("b.weight", "BF16", {1}));
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const StoredModules stored(tensors);
    WeightLoader loader(*backend, stored.checkpoint());
    const Matrix matrix = loader.matrix("a", 256, 128);
    const Matrix expected = data.matrix();
    ASSERT_TRUE(matrix.is_exl3());
    EXPECT_EQ(bytes_of(matrix.trellis, 256 * 128 / 8), bytes_of(expected.trellis, 256 * 128 / 8));
    EXPECT_EQ(bytes_of(matrix.suh, 128), bytes_of(expected.suh, 128));
    EXPECT_EQ(bytes_of(matrix.svh, 256), bytes_of(expected.svh, 256));
    EXPECT_EQ(floats(matrix.bias, 256), std::vector<float>(256));
    EXPECT_EQ(loader.bytes(), 256 * 128 / 4 + 256 + 512 + 1024);  // codes, suh, svh, bias
    EXPECT_EQ(loader.unused(), std::vector<std::string>{"b.weight"});
    MatrixSlice half{.rows = {{0, 256}}, .cols = {0, 128}, .segments = 2, .segment = {0, 0, 128}};
    expect_error(ErrorKind::input, {"a.bias", "split by input channels"},
                 [&] { loader.matrix("a", 256, 128, half); });
}

}  // namespace
}  // namespace quadrille::test
