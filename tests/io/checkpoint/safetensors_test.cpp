// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/safetensors.h"

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <random>

namespace quadrille {
namespace {

using test::expect_error;
using test::safetensors_file;
using test::StoredTensor;
using test::TempFolder;

std::string bytes(size_t count, char first = 1) {
    std::string result(count, '\0');
    for (size_t i = 0; i < count; ++i) result[i] = static_cast<char>(first + static_cast<char>(i));
    return result;
}

std::string text_of(const Tensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

std::string index_of(const nlohmann::json& weight_map) {
    return nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump();
}

std::vector<StoredTensor> three_tensors() {
    return {{"a.weight", "F32", {2, 3}, bytes(24)},
            {"marker", "I32", {}, bytes(4, 40)},
            {"none", "BF16", {0, 7}, ""}};
}

// The checkpoint's single file with this header and data must be refused with `part`.
void expect_refused(std::string_view header, std::string_view data,
                    std::initializer_list<std::string> parts) {
    TempFolder folder;
    folder.write("model.safetensors", safetensors_file(header, data));
    expect_error(ErrorKind::input, parts, [&] { Checkpoint checkpoint(folder.path()); });
}

TEST(Safetensors, ReadsASingleFile) {
    TempFolder folder;
    folder.write("model.safetensors", safetensors_file(three_tensors()));
    const Checkpoint checkpoint(folder.path());
    ASSERT_EQ(checkpoint.tensors().size(), 3u);
    const Tensor* weight = checkpoint.find("a.weight");
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ(weight->describe(), "F32 [2, 3]");
    EXPECT_EQ(weight->elements(), 6);
    EXPECT_EQ(text_of(*weight), bytes(24));
    EXPECT_EQ(checkpoint.find("marker")->elements(), 1);
    EXPECT_EQ(text_of(*checkpoint.find("marker")), bytes(4, 40));
    EXPECT_EQ(checkpoint.find("none")->elements(), 0);
    EXPECT_EQ(checkpoint.find("absent"), nullptr);
}

TEST(Safetensors, ReadsTheBundledModel) {
    const Checkpoint checkpoint(test::data("models/demo-full-4bpw"));
    EXPECT_EQ(checkpoint.files().size(), 1u);
    const Tensor* embedding = checkpoint.find("model.language_model.embed_tokens.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->describe(), "BF16 [4096, 256]");
}

TEST(Safetensors, ReadsShardsOfAnIndexAndLeavesOtherFilesAlone) {
    TempFolder folder;
    folder.write("model-1.safetensors", safetensors_file({{"a", "U8", {2}, bytes(2)}}));
    folder.write("model-2.safetensors",
                 safetensors_file({{"b", "U8", {3}, bytes(3)}, {"unlisted", "U8", {1}, "x"}}));
    folder.write("extra.safetensors", "not one of ours");
    folder.write("model.safetensors.index.json",
                 index_of({{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}}));
    const Checkpoint checkpoint(folder.path());
    EXPECT_EQ(checkpoint.files().size(), 2u);
    EXPECT_EQ(checkpoint.tensors().size(), 3u);
    EXPECT_EQ(checkpoint.files()[checkpoint.find("b")->file].filename(), "model-2.safetensors");
}

TEST(Safetensors, SurvivesAMove) {
    TempFolder folder;
    folder.write("model.safetensors", safetensors_file(three_tensors()));
    Checkpoint first(folder.path());
    const std::string digest = first.digest();
    Checkpoint second = std::move(first);
    EXPECT_EQ(text_of(*second.find("a.weight")), bytes(24));
    EXPECT_EQ(second.digest(), digest);
}

TEST(Safetensors, RefusesABadIndex) {
    const auto refused = [](const std::string& index, std::initializer_list<std::string> parts) {
        TempFolder folder;
        folder.write("m1.safetensors", safetensors_file({{"a", "U8", {2}, bytes(2)}}));
        folder.write("m2.safetensors", safetensors_file({{"a", "U8", {2}, bytes(2)}}));
        folder.write("model.safetensors.index.json", index);
        expect_error(ErrorKind::input, parts, [&] { Checkpoint checkpoint(folder.path()); });
    };
    refused("{", {"index.json", "JSON"});
    refused("[]", {"index.json", "expected an object", "[]"});
    refused("{}", {"index.json", "weight_map", "found nothing"});
    refused(index_of(nlohmann::json::object()), {"weight_map", "found none"});
    refused(index_of({{"a", 7}}), {"weight_map.a", "expected a string", "7"});
    refused(index_of({{"a", "m3.safetensors"}}), {"tensor a", "m3.safetensors", "no such file"});
    refused(index_of({{"b", "m1.safetensors"}}), {"tensor b", "m1.safetensors", "not there"});
    refused(index_of({{"a", "m1.safetensors"}, {"b", "m2.safetensors"}}),
            {"m2.safetensors", "tensor a", "also in", "m1.safetensors"});
    for (const char* name : {"../m1.safetensors", "/etc/passwd", "sub/m1.safetensors", "..", ""}) {
        refused(index_of({{"a", name}}), {"weight_map.a", "a file in this folder"});
    }
    refused(R"({"weight_map": {"a": "m1.safetensors", "a": "m2.safetensors"}})",
            {"\"a\" appears twice"});
}

TEST(Safetensors, RefusesAFolderThatIsNoCheckpoint) {
    TempFolder folder;
    expect_error(ErrorKind::input, {folder.path().string(), "found neither"},
                 [&] { Checkpoint checkpoint(folder.path()); });
    expect_error(ErrorKind::input, {"absent", "found nothing"},
                 [&] { Checkpoint checkpoint(folder / "absent"); });
    const auto file = folder.write("file", "");
    expect_error(ErrorKind::input, {"found a file"}, [&] { Checkpoint checkpoint(file); });
    std::filesystem::create_directory(folder / "model.safetensors");
    expect_error(ErrorKind::input, {"not a regular file"},
                 [&] { Checkpoint checkpoint(folder.path()); });
}

TEST(Safetensors, RefusesABadContainer) {
    const auto refused = [](const std::string& file, std::initializer_list<std::string> parts) {
        TempFolder folder;
        folder.write("model.safetensors", file);
        expect_error(ErrorKind::input, parts, [&] { Checkpoint checkpoint(folder.path()); });
    };
    refused("", {"at least 8 bytes", "found 0"});
    refused("1234567", {"at least 8 bytes", "found 7"});
    refused(std::string("\x10\0\0\0\0\0\0\0{}", 10), {"expected 16 bytes", "found 2"});
    refused(std::string(8, '\xff'), {"at most 100000000", "18446744073709551615"});
    refused(safetensors_file("not JSON", ""), {"header", "expected JSON"});
    refused(safetensors_file("", ""), {"header", "expected JSON"});
    refused(safetensors_file("[1]", ""), {"header", "expected an object", "[1]"});
    refused(safetensors_file("{\"\xff\": 1}", ""), {"header", "expected JSON"});
    refused(safetensors_file(std::string(1000, '['), ""), {"deeper"});
}

TEST(Safetensors, RefusesABadEntry) {
    const std::string data = bytes(8);
    const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
        return std::string(R"({"t": {"dtype": )") + dtype + R"(, "shape": )" + shape +
               R"(, "data_offsets": )" + offsets + "}}";
    };
    expect_refused(R"({"t": 1})", data, {"model.safetensors", "tensor t", "an object", "1"});
    expect_refused(R"({"t": {}})", data, {"tensor t.dtype", "found nothing"});
    expect_refused(entry("\"F33\"", "[2]", "[0, 8]"), data, {"tensor t.dtype", "\"F33\""});
    expect_refused(entry("4", "[2]", "[0, 8]"), data, {"tensor t.dtype", "string", "4"});
    expect_refused(entry("\"F32\"", "2", "[0, 8]"), data, {"tensor t.shape", "found 2"});
    expect_refused(entry("\"F32\"", "[-2]", "[0, 8]"), data, {"tensor t.shape[0]", "-2"});
    expect_refused(entry("\"F32\"", "[2.0]", "[0, 8]"), data, {"tensor t.shape[0]", "2.0"});
    expect_refused(entry("\"F32\"", "[9223372036854775808]", "[0, 8]"), data,
                   {"tensor t.shape[0]", "9223372036854775808"});
    expect_refused(entry("\"F32\"", "[4611686018427387904, 4]", "[0, 8]"), data,
                   {"tensor t.shape", "fits 63 bits"});
    expect_refused(entry("\"F32\"", "[2]", "[0]"), data, {"t.data_offsets", "two offsets"});
    expect_refused(entry("\"F32\"", "[2]", "[8, 0]"), data, {"t.data_offsets", "begin <= end"});
    expect_refused(entry("\"F32\"", "[2]", "[-8, 0]"), data, {"t.data_offsets[0]", "-8"});
    expect_refused(entry("\"F32\"", "[2]", "[1, 9]"), data, {"t.data_offsets", "8 data bytes"});
    expect_refused(entry("\"F32\"", "[3]", "[0, 8]"), data,
                   {"tensor t", "F32 [3]", "expected 12 bytes", "8 bytes"});
    expect_refused(entry("\"F16\"", "[3]", "[2, 8]"), data, {"tensor t", "hole of 2 bytes"});
    expect_refused(entry("\"F16\"", "[3]", "[0, 6]"), data, {"2 bytes after the last"});
    expect_refused(R"({"__metadata__": {"format": 1}})", "", {"__metadata__.format", "string"});
    expect_refused(R"({"__metadata__": 1})", "", {"__metadata__", "object"});
}

TEST(Safetensors, RefusesOverlapsAndRepeatedNames) {
    expect_refused(R"({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
                       "b": {"dtype": "U8", "shape": [5], "data_offsets": [3, 8]}})",
                   bytes(8), {"tensor b", "overlaps tensor a by 2 bytes"});
    expect_refused(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                       "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})",
                   bytes(8), {"\"a\" appears twice"});
    expect_refused(R"({"a": {"dtype": "U8", "dtype": "I8", "shape": [8], "data_offsets": [0, 8]}})",
                   bytes(8), {"\"dtype\" appears twice"});
}

TEST(Safetensors, DigestFollowsHeaderSizeAndDataButNotTheFolder) {
    const auto digest = [](std::vector<StoredTensor> tensors) {
        TempFolder folder;
        folder.write("model.safetensors", safetensors_file(tensors));
        return Checkpoint(folder.path()).digest();
    };
    const std::string plain = digest(three_tensors());
    EXPECT_EQ(plain.size(), 16u);
    EXPECT_EQ(digest(three_tensors()), plain);
    auto changed = three_tensors();
    changed[0].bytes[23] ^= 1;
    EXPECT_NE(digest(changed), plain);
    changed = three_tensors();
    changed[0].dtype = "I32";
    EXPECT_NE(digest(changed), plain);
    changed = three_tensors();
    changed[1].name = "markes";
    EXPECT_NE(digest(changed), plain);
}

// Whatever the bytes are, opening ends in a checkpoint or in Error, and never reads outside.
void open_any(const TempFolder& folder, const std::string& file) {
    folder.write("model.safetensors", file);
    try {
        const Checkpoint checkpoint(folder.path());
        for (const auto& [name, tensor] : checkpoint.tensors()) {
            ASSERT_LE(tensor.bytes.size(), file.size());
            ASSERT_EQ(tensor.bytes.size(),
                      static_cast<size_t>(tensor.elements() * size_of(tensor.dtype)));
        }
        checkpoint.digest();
    } catch (const Error& error) {
        ASSERT_NE(std::string(error.what()), "");
    }
}

TEST(Safetensors, TruncationAnywhereIsAnError) {
    TempFolder folder;
    const std::string file = safetensors_file(three_tensors());
    for (size_t size = 0; size < file.size(); ++size) {
        folder.write("model.safetensors", std::string_view(file).substr(0, size));
        EXPECT_THROW(Checkpoint checkpoint(folder.path()), Error) << "cut at " << size;
    }
}

TEST(Safetensors, DamageAnywhereNeverCrashes) {
    TempFolder folder;
    const std::string file = safetensors_file(three_tensors());
    std::mt19937 random(1);
    for (size_t at = 0; at < file.size(); ++at) {
        for (const int bit : {0, 1, 3, 5, 6, 7}) {
            std::string damaged = file;
            damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
            open_any(folder, damaged);
        }
    }
    const std::string_view alphabet = "0123456789-\"{}[],:eE.\\ \xff\x80tn";
    for (int round = 0; round < 2000; ++round) {
        std::string damaged = file;
        const auto edits = 1 + random() % 4;
        for (unsigned edit = 0; edit < edits; ++edit) {
            const size_t at = random() % damaged.size();
            if (random() % 4 == 0) {
                damaged.erase(at, 1 + random() % 6);
            } else {
                damaged[at] = alphabet[random() % alphabet.size()];
            }
            if (damaged.empty()) break;
        }
        open_any(folder, damaged);
    }
}

}  // namespace
}  // namespace quadrille
