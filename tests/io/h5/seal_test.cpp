// SPDX-License-Identifier: Apache-2.0
#include "io/h5/seal.h"

#include "io/h5/schema.h"
#include "io/prompts/prompt_reader.h"
#include "io/prompts/prompt_writer.h"
#include "io/results/generation_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/results_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace quadrille {
namespace {

using test::expect_error;
using SealTest = test::ResultsFolderTest;

namespace fs = std::filesystem;

void write_prompts(const fs::path& path) {
    PromptWriter writer(path, {});
    PromptRecord record;
    record.prompt = std::string("The sea is");
    writer.add(std::move(record));
    writer.finish();
}

void flip_bit(const fs::path& path, int64_t byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const int value = file.get();
    file.seekp(byte);
    file.put(static_cast<char>(value ^ 1));
}

// Each bit of HDF5's own bytes counts; a seal whose first letters are gone is none.
template <class Open>
void find_flipped_bits(const fs::path& path, const Open& open) {
    EXPECT_EQ(seal_of(path), Seal::holds);
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int64_t byte = 0; byte < size - 32; byte += std::max<int64_t>(size / 50, 1)) {
        flip_bit(path, byte);
        EXPECT_EQ(seal_of(path), Seal::broken) << byte;
        expect_error(ErrorKind::input, {path.filename().string(), "damaged", "seal"}, open);
        flip_bit(path, byte);
    }
    flip_bit(path, size - 10);
    EXPECT_EQ(seal_of(path), Seal::broken);
    flip_bit(path, size - 10);
    flip_bit(path, size - 32);
    EXPECT_EQ(seal_of(path), Seal::none);
    flip_bit(path, size - 32);
    open();
}

TEST_F(SealTest, FindsAFlippedBitInFinishedGenerations) {
    write_complete(3);
    find_flipped_bits(out_, [&] { GenerationReader(out_, schema::kGenerations); });
}

TEST_F(SealTest, FindsAFlippedBitInPackedPrompts) {
    const fs::path path = folder_ / "p.h5";
    write_prompts(path);
    find_flipped_bits(path, [&] { PromptReader(path, {}); });
}

TEST_F(SealTest, IsLostWithoutHarmWhenTheFileIsChangedOnPurpose) {
    const fs::path path = folder_ / "p.h5";
    write_prompts(path);
    {
        h5::File file = h5::File::open_write(path);
        file.group("prompts").set_attribute("temperature", 0.5);
        file.close();
    }
    EXPECT_EQ(seal_of(path), Seal::none);
    EXPECT_EQ(PromptReader(path, {}).read(0, 1)[0].options.temperature, 0.5);
}

}  // namespace
}  // namespace quadrille
