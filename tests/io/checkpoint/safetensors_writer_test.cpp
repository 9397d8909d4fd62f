// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/safetensors_writer.h"

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace quadrille::test {
namespace {

struct Values {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    std::string bytes;
};

std::vector<Values> some_values() {
    return {{"b.trellis", Dtype::i16, {1, 2, 3}, "abcdefghijkl"},
            {"a.weight", Dtype::f32, {2}, "ABCDEFGH"},
            {"b.mcg", Dtype::i32, {}, "1234"},
            {"z.fp8", Dtype::f8_e4m3, {3}, "xyz"},
            {"none", Dtype::bf16, {0, 4}, ""}};
}

std::vector<NewTensor> tensors_of(const std::vector<Values>& values) {
    std::vector<NewTensor> tensors;
    for (const Values& each : values) {
        tensors.push_back({.name = each.name,
                           .dtype = each.dtype,
                           .shape = each.shape,
                           .bytes = std::as_bytes(std::span(each.bytes))});
    }
    return tensors;
}

std::string content(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SafetensorsWriter, ReadsAsItWasWritten) {
    const TempFolder folder;
    const auto values = some_values();
    write_safetensors(folder / "model.safetensors", tensors_of(values), {{"note", "of ours"}});
    const Checkpoint checkpoint(folder.path());
    ASSERT_EQ(checkpoint.tensors().size(), values.size());
    for (const Values& each : values) {
        const Tensor& tensor = checkpoint.get(each.name, "");
        EXPECT_EQ(tensor.dtype, each.dtype);
        EXPECT_EQ(tensor.shape, each.shape);
        EXPECT_TRUE(std::ranges::equal(tensor.bytes, std::as_bytes(std::span(each.bytes))));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) %
                      static_cast<uintptr_t>(size_of(each.dtype)),
                  0u)
            << each.name;
    }
    EXPECT_EQ(checkpoint.metadata(0).at("note"), "of ours");
    EXPECT_EQ(checkpoint.metadata(0).at("format"), "pt");
    EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.tmp"));
}

TEST(SafetensorsWriter, OrderOfTensorsDoesNotMatter) {
    const TempFolder folder;
    auto values = some_values();
    write_safetensors(folder / "a", tensors_of(values), {});
    std::ranges::reverse(values);
    write_safetensors(folder / "b", tensors_of(values), {});
    EXPECT_EQ(content(folder / "a"), content(folder / "b"));
}

TEST(SafetensorsWriter, SealSeesAChangedByte) {
    const TempFolder folder;
    const auto file = folder / "model.safetensors";
    write_safetensors(file, tensors_of(some_values()), {});
    EXPECT_TRUE(seal_holds(Checkpoint(folder.path()), 0));
    std::string bytes = content(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    folder.write("model.safetensors", bytes);
    EXPECT_FALSE(seal_holds(Checkpoint(folder.path()), 0));
}

TEST(SafetensorsWriter, IndexNamesTheFileOfEachTensor) {
    const TempFolder folder;
    const auto values = some_values();
    const auto tensors = tensors_of(values);
    write_safetensors(folder / "one.safetensors", {tensors[0]}, {});
    write_safetensors(folder / "two.safetensors", {tensors[1], tensors[2]}, {});
    write_safetensors_index(folder.path(),
                            Checkpoint(folder.path(), {"one.safetensors", "two.safetensors"}));
    const Checkpoint checkpoint(folder.path());
    EXPECT_EQ(checkpoint.tensors().size(), 3u);
    EXPECT_EQ(checkpoint.files().size(), 2u);
}

TEST(SafetensorsWriter, FolderThatIsMissingIsNamed) {
    const TempFolder folder;
    expect_error(ErrorKind::io, {"absent", "No such file"}, [&] {
        write_safetensors(folder.path() / "absent" / "a", tensors_of(some_values()), {});
    });
}

}  // namespace
}  // namespace quadrille::test
