// SPDX-License-Identifier: Apache-2.0
// Stored modules against the golden matrices, against slices made another way, and with one thing
// wrong at a time.
#include "io/checkpoint/exl3_module.h"

#include "kernels/error.h"
#include "kernels/exl3_decode.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/matrices.h"
#include "tests/support/stored_modules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace quadrille::test {
namespace {

constexpr std::array kCodebooks = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};

std::vector<StoredTensor> join(std::vector<StoredTensor> tensors,
                               const std::vector<StoredTensor>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
    return tensors;
}

Exl3Matrix read_whole(const Checkpoint& checkpoint, int64_t n, int64_t k) {
    return read_exl3(find_exl3_module(checkpoint, "a", n, k), MatrixSlice::of_rows({{0, n}}, k));
}

// `data` cut in four parts as a pack for four ranks stores it.
std::vector<StoredTensor> split_tensors(const MatrixData& data, bool by_output) {
    std::vector<StoredTensor> tensors;
    for (int rank = 0; rank < 4; ++rank) {
        const Range range = block_share(by_output ? data.n() : data.k(), 4, rank);
        const MatrixData part = by_output ? data.outputs(range.begin, range.size())
                                          : data.inputs(range.begin, range.size());
        tensors = join(tensors, exl3_tensors(fmt::format("a.rank{}", rank), part.matrix()));
    }
    return tensors;
}

// Everything stored is equal: codes and scales, bit for bit.
void expect_same(const Exl3Matrix& found, const Matrix& expected) {
    ASSERT_EQ(found.n, expected.n);
    ASSERT_EQ(found.k, expected.k);
    ASSERT_EQ(found.n_padded, expected.n_padded);
    ASSERT_EQ(found.k_padded, expected.k_padded);
    EXPECT_EQ(found.bits, expected.bits);
    EXPECT_EQ(found.codebook, expected.codebook);
    const Matrix view = found.view();
    const int64_t words = expected.k_padded * expected.n_padded / 16 * expected.bits;
    ASSERT_EQ(std::ssize(found.trellis), 2 * words);
    EXPECT_EQ(bytes_of(view.trellis, words), bytes_of(expected.trellis, words));
    EXPECT_EQ(bytes_of(view.suh, view.k_padded), bytes_of(expected.suh, view.k_padded));
    EXPECT_EQ(bytes_of(view.svh, view.n_padded), bytes_of(expected.svh, view.n_padded));
}

TEST(Exl3Module, ReadsTheGoldenMatrices) {
    const Golden file(data_path("exl3_decode.h5"));
    for (const int bits : {1, 3, 8}) {
        const std::string name = fmt::format("b{}_mcg", bits);
        std::vector<uint16_t> trellis;
        for (const int16_t word : file.read<int16_t>(name + "/trellis").values) {
            trellis.push_back(static_cast<uint16_t>(word));
        }
        const MatrixData golden =
            MatrixData::exl3(trellis, file.read<F16>(name + "/suh").values,
                             file.read<F16>(name + "/svh").values, bits, Codebook::mcg);
        const StoredModules stored(exl3_tensors("a", golden.matrix()));
        const Exl3Matrix found = read_whole(stored.checkpoint(), golden.n(), golden.k());
        std::vector<float> weights(static_cast<size_t>(golden.n() * golden.k()));
        exl3_decode(weights.data(), found.view());
        const std::vector<F16> inner = file.read<F16>(name + "/inner").values;
        ASSERT_EQ(inner.size(), weights.size());
        for (size_t i = 0; i < inner.size(); ++i) ASSERT_EQ(weights[i], to_float(inner[i])) << i;
    }
}

TEST(Exl3Module, IsReadAsItIsStored) {
    Random random(21);
    for (const Codebook codebook : kCodebooks) {
        const MatrixData data = MatrixData::exl3(random, 150, 200, 3, codebook);
        const StoredModules stored(exl3_tensors("a", data.matrix()));
        const Exl3Matrix found = read_whole(stored.checkpoint(), 150, 200);
        expect_same(found, data.matrix());
        std::vector<float> expected(150 * 200);
        exl3_dequantize(expected.data(), data.matrix());
        EXPECT_EQ(found.decode(), expected);
    }
}

// Blocks are independent: a slice decodes to the slice of the decoded matrix.
TEST(Exl3Module, SlicesWholeBlocks) {
    Random random(22);
    const MatrixData data = MatrixData::exl3(random, 600, 400, 2, Codebook::mcg);
    const StoredModules stored(exl3_tensors("a", data.matrix()));
    const Exl3Module module = find_exl3_module(stored.checkpoint(), "a", 600, 400);
    const std::vector<float> whole = read_whole(stored.checkpoint(), 600, 400).decode();
    MatrixSlice slice;
    slice.rows = {{128, 256}, {512, 600}};
    slice.cols = {256, 400};
    const Exl3Matrix found = read_exl3(module, slice);
    EXPECT_EQ(found.n_padded, 256);
    EXPECT_EQ(found.k_padded, 256);
    std::vector<float> expected;
    for (const Range& rows : slice.rows) {
        for (int64_t n = rows.begin; n < rows.end; ++n) {
            expected.insert(expected.end(), whole.begin() + n * 400 + 256,
                            whole.begin() + (n + 1) * 400);
        }
    }
    EXPECT_EQ(found.decode(), expected);
}

TEST(Exl3Module, InPartsIsReadAsIfItWereWhole) {
    Random random(23);
    for (const bool by_output : {true, false}) {
        const MatrixData data = MatrixData::exl3(random, by_output ? 700 : 200,
                                                 by_output ? 200 : 700, 3, Codebook::mul1);
        const StoredModules stored(split_tensors(data, by_output));
        const Exl3Module module = find_exl3_module(stored.checkpoint(), "a", data.n(), data.k());
        ASSERT_EQ(module.parts.size(), 4u);
        EXPECT_EQ(module.tensors.size(), 16u);
        expect_same(read_whole(stored.checkpoint(), data.n(), data.k()), data.matrix());
        // A rank's own part, half of the module, and a range that cuts parts in two.
        for (const Range range : {Range{512, 700}, Range{0, 384}, Range{128, 640}}) {
            const MatrixSlice slice = by_output
                                          ? MatrixSlice::of_rows({range}, data.k())
                                          : MatrixSlice{.rows = {{0, data.n()}}, .cols = range};
            const MatrixData expected = by_output ? data.outputs(range.begin, range.size())
                                                  : data.inputs(range.begin, range.size());
            expect_same(read_exl3(module, slice), expected.matrix());
        }
    }
}

// A marker that is passed over decodes every weight with another codebook, without an error.
TEST(Exl3Module, InPartsMayHaveOneMarker) {
    Random random(24);
    const MatrixData data = MatrixData::exl3(random, 512, 128, 2, Codebook::mcg);
    std::vector<StoredTensor> tensors = split_tensors(data, true);
    std::erase_if(tensors, [](const StoredTensor& t) { return t.name.ends_with(".mcg"); });
    tensors.push_back(marker("a", Codebook::mcg));
    const StoredModules stored(tensors);
    expect_same(read_whole(stored.checkpoint(), 512, 128), data.matrix());
    tensors.push_back(marker("a.rank2", Codebook::mul1));
    const StoredModules both(tensors);
    expect_error(ErrorKind::input, {"module a", "both codebook markers"},
                 [&] { find_exl3_module(both.checkpoint(), "a", 512, 128); });
}

TEST(Exl3Module, ReadsPackedSigns) {
    Random random(25);
    const MatrixData data = MatrixData::exl3(random, 128, 256, 4, Codebook::three_inst);
    std::vector<StoredTensor> tensors = exl3_tensors("a", data.matrix());
    std::vector<uint16_t> words(16);
    for (size_t w = 0; w < words.size(); ++w) words[w] = static_cast<uint16_t>(0x8001u + 77 * w);
    tensors[1] = {"a.su", "I16", {16}, bytes_of(words.data(), 16)};
    const StoredModules stored(tensors);
    const Exl3Matrix found = read_whole(stored.checkpoint(), 128, 256);
    for (size_t i = 0; i < 256; ++i) {
        const bool negative = (words[i / 16] >> (i % 16) & 1) != 0;
        EXPECT_EQ(to_float(found.suh[i]), negative ? -1.0f : 1.0f) << i;
    }
    // Scales decide where both are stored.
    tensors.push_back(exl3_tensors("a", data.matrix())[1]);
    const StoredModules both(tensors);
    const Exl3Module module = find_exl3_module(both.checkpoint(), "a", 128, 256);
    expect_same(read_exl3(module, MatrixSlice::of_rows({{0, 128}}, 256)), data.matrix());
    EXPECT_EQ(module.tensors.size(), 4u);
}

// One tensor replaced, added or (dtype "") removed.
struct Fault {
    StoredTensor tensor;
    std::string message;
};

TEST(Exl3Module, RefusesWrongTensors) {
    Random random(26);
    const MatrixData data = MatrixData::exl3(random, 128, 256, 4, Codebook::mcg);
    const auto value = [](int32_t number) { return bytes_of(&number, 1); };
    const std::vector<Fault> faults = {
        {zeros("a.trellis", "I16", {15, 8, 64}), "expected I16 [16, 8, 16 * bits]"},
        {zeros("a.trellis", "I16", {16, 8, 0}), "with 1 to 8 bits"},
        {zeros("a.trellis", "I16", {16, 8, 144}), "with 1 to 8 bits"},
        {zeros("a.trellis", "I16", {16, 8, 24}), "with 1 to 8 bits"},
        {zeros("a.trellis", "F16", {16, 8, 64}), "found F16 [16, 8, 64]"},
        {zeros("a.trellis", "I16", {16, 512}), "found I16 [16, 512]"},
        {zeros("a.suh", "F32", {256}), "a.suh: expected F16 [256], found F32 [256]"},
        {zeros("a.suh", "F16", {128}), "a.suh: expected F16 [256], found F16 [128]"},
        {zeros("a.svh", "BF16", {128}), "a.svh: expected F16 [128], found BF16 [128]"},
        {{"a.svh", "", {}, ""}, "a.svh is missing (expected F16 [128])"},
        {{"a.mul1", "I32", {}, value(static_cast<int32_t>(exl3::kMul1Multiplier))},
         "module a has both codebook markers"},
        {{"a.mcg", "I32", {}, value(12345)}, "a.mcg: expected I32 [] or [1] of value -877912083"},
        {zeros("a.mcg", "I32", {2}), "found I32 [2]"},
        {zeros("a.mcg", "F32", {}), "found F32 []"},
    };
    for (const Fault& fault : faults) {
        std::vector<StoredTensor> tensors = exl3_tensors("a", data.matrix());
        std::erase_if(tensors, [&](const StoredTensor& t) { return t.name == fault.tensor.name; });
        if (!fault.tensor.dtype.empty()) tensors.push_back(fault.tensor);
        const StoredModules stored(tensors);
        expect_error(ErrorKind::input, {fault.message},
                     [&] { find_exl3_module(stored.checkpoint(), "a", 128, 256); });
    }
}

TEST(Exl3Module, RefusesSlicesOffTheBlocks) {
    Random random(27);
    const MatrixData data = MatrixData::exl3(random, 300, 256, 1, Codebook::three_inst);
    const StoredModules stored(exl3_tensors("a", data.matrix()));
    const Exl3Module module = find_exl3_module(stored.checkpoint(), "a", 300, 256);
    const auto refuse = [&](const MatrixSlice& slice) {
        expect_error(ErrorKind::input, {"module a", "whole blocks of 128 channels"},
                     [&] { read_exl3(module, slice); });
    };
    for (const Range rows :
         {Range{0, 64}, Range{64, 300}, Range{16, 144}, Range{-128, 128}, Range{256, 384}}) {
        refuse(MatrixSlice::of_rows({{0, 128}, rows}, 256));
    }
    refuse({.rows = {{0, 300}}, .cols = {64, 256}});
    refuse({.rows = {{0, 300}}, .cols = {0, 256}, .segments = 2, .segment = {0, 100, 256}});
}

TEST(Exl3Module, JoinsOnlyPartsThatAreOneMatrix) {
    Random random(28);
    const MatrixData data = MatrixData::exl3(random, 512, 128, 2, Codebook::mcg);
    const MatrixData other = MatrixData::exl3(random, 128, 128, 3, Codebook::mcg);
    const MatrixData last = data.outputs(384, 128);
    const auto with_last = [&](const Matrix& matrix) {
        std::vector<StoredTensor> tensors = split_tensors(data, true);
        std::erase_if(tensors,
                      [](const StoredTensor& t) { return t.name.starts_with("a.rank3."); });
        return join(tensors, exl3_tensors("a.rank3", matrix));
    };
    Matrix rescaled = last.matrix();
    rescaled.suh = other.matrix().suh;
    Matrix recoded = last.matrix();
    recoded.codebook = Codebook::mul1;
    for (const Matrix& wrong : {other.matrix(), rescaled, recoded}) {
        const StoredModules stored(with_last(wrong));
        expect_error(ErrorKind::input, {"module a", "run it with 4 ranks"},
                     [&] { read_whole(stored.checkpoint(), 512, 128); });
        // A rank of four reads its own part alone.
        const Exl3Module module = find_exl3_module(stored.checkpoint(), "a", 512, 128);
        expect_same(read_exl3(module, MatrixSlice::of_rows({{384, 512}}, 128)), wrong);
    }
}

TEST(Exl3Module, NeedsAllFourParts) {
    Random random(29);
    const MatrixData data = MatrixData::exl3(random, 512, 128, 2, Codebook::mcg);
    std::vector<StoredTensor> tensors = split_tensors(data, true);
    std::erase_if(tensors, [](const StoredTensor& t) { return t.name == "a.rank2.trellis"; });
    const StoredModules stored(tensors);
    expect_error(ErrorKind::input, {"a.rank2.trellis is missing"},
                 [&] { find_exl3_module(stored.checkpoint(), "a", 512, 128); });
}

}  // namespace
}  // namespace quadrille::test
