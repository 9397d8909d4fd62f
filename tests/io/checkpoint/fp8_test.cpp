// SPDX-License-Identifier: Apache-2.0
// FP8 against values of ml_dtypes 0.5 (float8_e4m3fn), and blocks that end inside a matrix.
#include "io/checkpoint/fp8.h"

#include "tests/support/expect_error.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace quadrille::test {
namespace {

constexpr int64_t kRows = 130;
constexpr int64_t kCols = 257;

std::string text_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Elements 0x38 (1.0) and scales 1, 2, 3 | 4, 5, 6.
std::vector<StoredTensor> stored() {
    return {{"m.weight", "F8_E4M3", {kRows, kCols}, std::string(kRows * kCols, '\x38')},
            {"m.weight_scale_inv", "F32", {2, 3}, text_of({1, 2, 3, 4, 5, 6})}};
}

std::vector<float> read(const std::vector<StoredTensor>& tensors) {
    const TempFolder folder;
    folder.write("model.safetensors", safetensors_file(tensors));
    const Checkpoint checkpoint(folder.path());
    std::vector<float> values(kRows * kCols);
    NativeMatrix(checkpoint, "m", kRows, kCols).read(values);
    return values;
}

TEST(Fp8, EveryByteHasItsValue) {
    const std::pair<int, float> known[] = {
        {0x00, 0.0f},         {0x01, 0.001953125f}, {0x07, 0.013671875f},  {0x08, 0.015625f},
        {0x09, 0.017578125f}, {0x27, 0.234375f},    {0x38, 1.0f},          {0x40, 2.0f},
        {0x5b, 22.0f},        {0x7e, 448.0f},       {0x81, -0.001953125f}, {0xfe, -448.0f}};
    for (const auto& [byte, value] : known) EXPECT_EQ(fp8_value(static_cast<uint8_t>(byte)), value);
    double sum = 0;
    for (int byte = 0; byte < 256; ++byte) {
        const float value = fp8_value(static_cast<uint8_t>(byte));
        EXPECT_EQ(std::isnan(value), (byte & 0x7f) == 0x7f) << byte;
        if (!std::isnan(value)) sum += std::abs(value);
    }
    EXPECT_EQ(sum, 10815.75);
    EXPECT_TRUE(std::signbit(fp8_value(0x80)));
}

TEST(Fp8, BlocksHaveTheirScales) {
    const std::vector<float> values = read(stored());
    const auto at = [&](int64_t row, int64_t col) {
        return values[static_cast<size_t>(row * kCols + col)];
    };
    EXPECT_EQ(at(0, 0), 1.0f);
    EXPECT_EQ(at(127, 127), 1.0f);
    EXPECT_EQ(at(127, 128), 2.0f);
    EXPECT_EQ(at(0, 256), 3.0f);
    EXPECT_EQ(at(128, 127), 4.0f);
    EXPECT_EQ(at(129, 255), 5.0f);
    EXPECT_EQ(at(129, 256), 6.0f);
}

TEST(Fp8, WhatIsWrongIsNamed) {
    auto tensors = stored();
    tensors[1].shape = {3, 2};
    expect_error(ErrorKind::input, {"m.weight_scale_inv", "F32 [2, 3]", "F32 [3, 2]"},
                 [&] { read(tensors); });
    tensors = stored();
    tensors.pop_back();
    expect_error(ErrorKind::input, {"m.weight_scale_inv", "missing"}, [&] { read(tensors); });
    tensors = stored();
    tensors[0].bytes[300] = '\x7f';
    expect_error(ErrorKind::input, {"m.weight", "NaN", "element 300"}, [&] { read(tensors); });
    tensors = stored();
    tensors[1].bytes.replace(4, 4, text_of({INFINITY}));
    expect_error(ErrorKind::input, {"m.weight_scale_inv", "infinity", "element 1"},
                 [&] { read(tensors); });
    tensors = stored();
    tensors[0].dtype = "I8";
    expect_error(ErrorKind::input, {"m.weight", "F8_E4M3", "I8"}, [&] { read(tensors); });
}

}  // namespace
}  // namespace quadrille::test
