// SPDX-License-Identifier: Apache-2.0
// What a loader puts in backend memory and what it leaves out.
#include "runtime/model/weights.h"

#include "io/checkpoint/made_model.h"
#include "kernels/exl3_decode.h"
#include "tests/support/expect_error.h"
#include "tests/support/matrices.h"
#include "tests/support/stored_modules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
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
        loader.read();
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
    loader.read();
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

// The value of any dtype's bits at an element of a tensor that is zero elsewhere.
StoredTensor with_value(StoredTensor tensor, int64_t element, uint32_t bits) {
    const auto size = static_cast<size_t>(tensor.dtype == "F32" ? 4 : 2);
    std::memcpy(tensor.bytes.data() + static_cast<size_t>(element) * size, &bits, size);
    return tensor;
}

TEST(WeightLoader, RefusesWeightsThatAreNotFiniteByNameAndElement) {
    struct Bad {
        const char* dtype;
        uint32_t bits;
    };
    const Bad kinds[] = {{"BF16", 0x7f80}, {"BF16", 0xffc0},    {"F16", 0xfc00},
                         {"F16", 0x7e01},  {"F32", 0x7f800000}, {"F32", 0xff800001}};
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    for (const Bad& bad : kinds) {
        const StoredModules stored({
            with_value(zeros("a.weight", bad.dtype, {2, 700}), 1300, bad.bits),
            with_value(zeros("v", bad.dtype, {5}), 3, bad.bits),
        });
        const auto load = [&](const auto& ask) {
            WeightLoader loader(*backend, stored.checkpoint());
            ask(loader);
            loader.read();
        };
        expect_error(ErrorKind::input, {"tensor a.weight", "finite", "element 1300"},
                     [&] { load([](WeightLoader& loader) { loader.matrix("a", 2, 700); }); });
        expect_error(ErrorKind::input, {"tensor v", "finite", "element 3"},
                     [&] { load([](WeightLoader& loader) { loader.vector("v", 5); }); });
        expect_error(ErrorKind::input, {"tensor v", "element 3"},
                     [&] { load([](WeightLoader& loader) { loader.tensor("v", {5}); }); });
        load([](WeightLoader& loader) {
            loader.vector("v", 5, {{0, 3}});  // of another rank's part nothing is asked
            loader.matrix("a", 2, 700, MatrixSlice::of_rows({{0, 1}}, 700));
        });
    }
}

TEST(WeightLoader, PlacesFp8WeightsTimesTheirScales) {
    const std::vector<float> scales = {0.5f, 2.0f, 3.0f, 0.25f};
    const StoredModules stored(
        {{"a.weight", "F8_E4M3", {256, 200}, std::string(256 * 200, '\x3c')},  // 1.5
         {"a.weight_scale_inv",
          "F32",
          {2, 2},
          {reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float)}}});
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    WeightLoader loader(*backend, stored.checkpoint());
    const Matrix matrix = loader.matrix(
        "a", 256, 200,
        {.rows = {{120, 136}}, .cols = {100, 200}, .segments = 1, .segment = {0, 100}});
    loader.read();
    ASSERT_EQ(matrix.dtype, Dtype::bf16);
    const auto at = [&](int64_t row, int64_t col) {
        return to_float(static_cast<const BF16*>(matrix.weights)[row * 100 + col]);
    };
    EXPECT_EQ(at(0, 0), 0.75f);
    EXPECT_EQ(at(7, 28), 3.0f);
    EXPECT_EQ(at(8, 27), 4.5f);
    EXPECT_EQ(at(15, 99), 0.375f);
    EXPECT_EQ(loader.unused(), std::vector<std::string>{});
}

// Larger than what is read at once, with gaps between what is wanted of its rows.
TEST(WeightLoader, PlacesPartsOfLargeMatrices) {
    constexpr int64_t kRows = 3000;
    constexpr int64_t kCols = 3100;
    StoredTensor large = zeros("a.weight", "F32", {kRows, kCols});
    for (int64_t i = 0; i < kRows * kCols; ++i) {
        const auto value = static_cast<float>(i % 16777213);
        std::memcpy(large.bytes.data() + i * 4, &value, 4);
    }
    const StoredModules stored({large, zeros("b.weight", "BF16", {7, 5})});
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    WeightLoader loader(*backend, stored.checkpoint());
    const Range whole = {0, kCols};
    for (const Range& cols : {whole, Range{128, 256}, Range{100, 3000}}) {
        const Matrix part = loader.matrix("a", kRows, kCols,
                                          {.rows = {{2000, 2999}, {1, 1500}},
                                           .cols = cols,
                                           .segments = 1,
                                           .segment = {0, cols.size()}});
        loader.matrix("b", 7, 5);
        int64_t seen = 0;
        loader.read([&](int64_t done, int64_t total) {
            EXPECT_EQ(total, (2498 * cols.size()) * 4 + 70);
            seen = done;
        });
        EXPECT_EQ(seen, (2498 * cols.size()) * 4 + 70);
        const auto* values = static_cast<const float*>(part.weights);
        for (int64_t row = 0; row < part.n; ++row) {
            const int64_t from = row < 999 ? 2000 + row : row - 998;
            for (int64_t col = 0; col < part.k; ++col) {
                ASSERT_EQ(values[row * part.k + col],
                          static_cast<float>((from * kCols + cols.begin + col) % 16777213))
                    << row << ", " << col;
            }
        }
    }
}

TEST(WeightLoader, NamesAFileThatChangesWhileItIsRead) {
    const TempFolder folder;
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const auto load = [&](const auto& change) {
        const auto path = folder.write("model.safetensors",
                                       safetensors_file({zeros("a.weight", "BF16", {64, 64})}));
        const Checkpoint checkpoint(path.parent_path());
        WeightLoader loader(*backend, checkpoint);
        loader.matrix("a", 64, 64);
        change(path);
        loader.read();
    };
    EXPECT_NO_THROW(load([](const auto&) {}));
    expect_error(ErrorKind::io, {"model.safetensors", "shrank", "tensor a.weight"},
                 [&] { load([](const auto& path) { std::filesystem::resize_file(path, 5000); }); });
    expect_error(ErrorKind::io, {"model.safetensors", "somebody wrote to it"}, [&] {
        load([](const auto& path) { std::ofstream(path, std::ios::app) << "more"; });
    });
    // One that is replaced goes on as it was when it was opened.
    EXPECT_NO_THROW(load([](const auto& path) {
        std::filesystem::remove(path);
        std::ofstream(path) << "another";
    }));
}

// The value of a marker is read with the weights that it belongs to.
TEST(WeightLoader, RefusesAMarkerOfAnotherValue) {
    Random random(34);
    const MatrixData data = MatrixData::exl3(random, 256, 128, 2, Codebook::mcg);
    std::vector<StoredTensor> tensors = exl3_tensors("a", data.matrix());
    for (StoredTensor& tensor : tensors) {
        if (tensor.name == "a.mcg") tensor.bytes[0] = static_cast<char>(tensor.bytes[0] ^ 1);
    }
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const StoredModules stored(tensors);
    WeightLoader loader(*backend, stored.checkpoint());
    loader.matrix("a", 256, 128);
    expect_error(ErrorKind::input, {"tensor a.mcg", "expected the value"}, [&] { loader.read(); });
}

TEST(WeightLoader, TakesTheLargestFiniteWeights) {
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const StoredModules stored({with_value(zeros("b", "BF16", {3}), 0, 0x7f7f),
                                with_value(zeros("h", "F16", {3}), 0, 0xfbff),
                                with_value(zeros("f", "F32", {3}), 0, 0x7f7fffff)});
    WeightLoader loader(*backend, stored.checkpoint());
    for (const char* name : {"b", "h", "f"}) loader.vector(name, 3);
    EXPECT_NO_THROW(loader.read());
}

TEST(WeightLoader, RefusesScalesThatAreNotFiniteByNameAndChannel) {
    Random random(33);
    const MatrixData data = MatrixData::exl3(random, 256, 128, 2, Codebook::mcg);
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    for (const std::string scales : {"suh", "svh"}) {
        std::vector<StoredTensor> tensors = exl3_tensors("a", data.matrix());
        for (StoredTensor& tensor : tensors) {
            if (tensor.name == "a." + scales) tensor = with_value(tensor, 77, 0x7c00);
        }
        const StoredModules stored(tensors);
        WeightLoader loader(*backend, stored.checkpoint());
        expect_error(ErrorKind::input, {"tensor a." + scales, "finite", "channel 77"}, [&] {
            loader.matrix("a", 256, 128);
            loader.read();
        });
    }
}

// Random values of the right size, the same for a name in every process; no file is read.
TEST(WeightLoader, FillsWhatAMadeModelHasNoBytesFor) {
    const MadeTarget made = make_glm_target({.layers = 1, .dense_bits = 4});
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const std::string layer = "model.language_model.layers.0.";
    const std::string embedding = "model.language_model.embed_tokens.weight";
    EXPECT_TRUE(made.checkpoint.find(embedding)->made());
    const auto load = [&](const auto& look) {
        WeightLoader loader(*backend, made.checkpoint);
        const Matrix gates = loader.matrix(layer + "hc_attn_fn", 24, 4 * 4096);
        const Matrix native = loader.matrix(layer + "self_attn.f_b_proj", 8192, 128);
        const Matrix packed = loader.matrix(layer + "mlp.down_proj", 4096, 12288);
        loader.read();
        look(gates, native, packed);
        EXPECT_THROW(loader.matrix(layer + "mlp.down_proj", 4096, 2048), Error);
    };
    std::vector<uint16_t> trellis;
    load([&](const Matrix& gates, const Matrix& native, const Matrix& packed) {
        EXPECT_EQ(packed.bits, 4);
        EXPECT_EQ(packed.codebook, Codebook::mcg);
        trellis.assign(packed.trellis, packed.trellis + 4096 * 12288 / 4);
        double squares = 0;
        for (const Matrix& matrix : {gates, native}) {
            const auto* values = static_cast<const BF16*>(matrix.weights);
            for (int64_t i = 0; i < matrix.n * matrix.k; ++i) {
                const float value = to_float(values[i]);
                ASSERT_LE(std::abs(value), 0.0348f);
                squares += value * value;
            }
        }
        EXPECT_NEAR(std::sqrt(squares / (24 * 16384 + 8192 * 128)), 0.02, 2e-4);
    });
    load([&](const Matrix&, const Matrix&, const Matrix& packed) {
        EXPECT_TRUE(std::equal(trellis.begin(), trellis.end(), packed.trellis));
    });
}

}  // namespace
}  // namespace quadrille::test
