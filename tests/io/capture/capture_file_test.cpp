// SPDX-License-Identifier: Apache-2.0
#include "io/capture/capture_reader.h"
#include "io/capture/capture_writer.h"
#include "io/h5/schema.h"
#include "kernels/dtype.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using test::expect_error;
namespace fs = std::filesystem;

constexpr int64_t kHidden = 4;

CaptureText text_of_three() {
    return {.tokens = {5, 6, 7, 8, 9, 1, 2, 3, 4},
            .offsets = {0, 4, 6, 9},
            .loss_mask = {0, 0, 1, 1, 0, 1, 0, 1, 1},
            .prompt_index = {0, 2, 3},
            .kind = {"prose", "", "code"}};
}

CaptureLayout layout_of(std::vector<int64_t> layers) {
    return {.layers = std::move(layers),
            .hidden_size = kHidden,
            .vocab_size = 10,
            .greedy = true,
            .identity = {{"checkpoint_digest", std::string("0123456789abcdef")}}};
}

class CaptureFileTest : public testing::Test {
  protected:
    fs::path out() const { return folder_ / "capture.h5"; }
    fs::path partial() const { return folder_ / "capture.h5.partial"; }
    CaptureWriter open(bool overwrite = false) const {
        return {out(), layout_of({1, 3}), text_of_three(), overwrite};
    }
    static CaptureWanted wanted() {
        return {.tap_layers = {1, 3},
                .hidden = kHidden,
                .vocab = 10,
                .checkpoint_digest = "0123456789abcdef"};
    }
    void read(const CaptureWanted& as) const { CaptureReader(out(), as); }
    // Row r of the taps is r + column / 16, which bf16 holds exactly.
    static void write(CaptureWriter& writer, int64_t sequence, float first = 0) {
        const CaptureText text = text_of_three();
        const int64_t begin = text.offsets[static_cast<size_t>(sequence)];
        const int64_t end = text.offsets[static_cast<size_t>(sequence) + 1];
        std::vector<uint16_t> taps;
        std::vector<float> hidden;
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t i = 0; i < 2 * kHidden; ++i) {
                taps.push_back(
                    to_bf16(first + static_cast<float>(row) + static_cast<float>(i) / 16).bits);
            }
            hidden.insert(hidden.end(), kHidden, 0.1f * static_cast<float>(row));
        }
        writer.write(begin, taps, hidden);
    }
    static void write_rest(CaptureWriter& writer) {
        for (int64_t i = writer.done(); i < 3; ++i) {
            write(writer, i);
            writer.commit(i + 1);
        }
        writer.finish();
    }
    test::TempFolder folder_;

    std::string bytes() const {
        std::ifstream file(out(), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
};

TEST_F(CaptureFileTest, GivesBackWhatWasWritten) {
    CaptureWriter writer = open();
    write_rest(writer);
    EXPECT_FALSE(fs::exists(partial()));
    const CaptureReader reader(out(), wanted());
    const CaptureText text = text_of_three();
    ASSERT_EQ(reader.sequences(), 3);
    ASSERT_EQ(reader.tokens(), 9);
    EXPECT_EQ(reader.length(1), 2);
    EXPECT_TRUE(std::equal(text.tokens.begin(), text.tokens.end(), reader.tokens_of(0)));
    EXPECT_TRUE(std::equal(text.loss_mask.begin(), text.loss_mask.end(), reader.mask_of(0)));
    const CaptureRows rows = reader.read(1, 0, 2);
    ASSERT_EQ(rows.taps.size(), 16u);
    EXPECT_EQ(to_float(BF16{rows.taps[0]}), 4.0f);
    EXPECT_EQ(to_float(BF16{rows.taps[15]}), 5.0f + 7.0f / 16);
    EXPECT_EQ(reader.read(2, 1, 1).final_hidden, std::vector<float>(kHidden, 0.1f * 7));
    const h5::Group group = h5::File::open(out()).group("capture");
    EXPECT_EQ(group.dataset("prompt_index").read<int64_t>(0, 3), text.prompt_index);
    EXPECT_EQ(group.dataset("kind").read_strings(0, 3), text.kind);
}

TEST_F(CaptureFileTest, GoesOnToTheSameBytes) {
    {
        CaptureWriter whole = open();
        write_rest(whole);
    }
    const std::string expected = bytes();
    fs::remove(out());
    {
        CaptureWriter stopped = open();
        write(stopped, 0);
        stopped.commit(1);
        write(stopped, 1, 100);  // not vouched for: other values, as of a torn write
    }
    CaptureWriter next = open();
    EXPECT_EQ(next.done(), 1);
    write_rest(next);
    EXPECT_TRUE(bytes() == expected);
}

TEST_F(CaptureFileTest, AFileThatWasNeverWholeIsMadeAnew) {
    std::ofstream(partial()) << "\x89HDF\r\n";
    CaptureWriter writer = open();
    EXPECT_EQ(writer.done(), 0);
    write_rest(writer);
    EXPECT_EQ(CaptureReader(out(), wanted()).sequences(), 3);
}

TEST_F(CaptureFileTest, KeepsWhatBelongsToAnotherCapture) {
    {
        CaptureWriter other(out(), layout_of({1, 2}), text_of_three(), false);
        write(other, 0);
        other.commit(1);
    }
    expect_error(ErrorKind::usage, {"belongs to another capture"}, [&] { open(); });
    EXPECT_EQ(open(true).done(), 0);
}

TEST_F(CaptureFileTest, RefusesRowsOfOtherLayersOrAnotherCheckpoint) {
    CaptureWriter writer = open();
    write_rest(writer);
    CaptureWanted layers = wanted(), size = wanted(), checkpoint = wanted(), vocabulary = wanted();
    layers.tap_layers = {1, 4};
    size.hidden = 8;
    checkpoint.checkpoint_digest = "fedc";
    vocabulary.vocab = 9;
    expect_error(ErrorKind::input, {"[1, 4]", "found [1, 3]"}, [&] { read(layers); });
    expect_error(ErrorKind::input, {"taps: expected", "[9, 16], found"}, [&] { read(size); });
    expect_error(ErrorKind::input, {"expected 0 to 8, found 9"}, [&] { read(vocabulary); });
    expect_error(ErrorKind::input, {"fedc, found 0123456789abcdef", "another checkpoint"},
                 [&] { read(checkpoint); });
}

TEST_F(CaptureFileTest, RefusesNumbersThatAreNone) {
    CaptureWriter writer = open();
    write(writer, 0, std::numeric_limits<float>::quiet_NaN());
    write_rest(writer);  // writes sequence 0 again
    {
        h5::File file = h5::File::open_write(out());
        const std::vector<float> row(kHidden, std::numeric_limits<float>::infinity());
        file.dataset("capture/final_hidden").write(2, std::span<const float>(row));
        const std::vector<uint16_t> taps(2 * kHidden, 0x7fc0);
        file.dataset("capture/taps").write(8, std::span<const uint16_t>(taps));
    }
    const CaptureReader reader(out(), wanted());
    expect_error(ErrorKind::input, {"final_hidden", "in row 2 (sequence 0, token 2)"},
                 [&] { reader.read(0, 0, 4); });
    expect_error(ErrorKind::input, {"taps", "in row 8 (sequence 2, token 2)"},
                 [&] { reader.read(2, 0, 3); });
    EXPECT_EQ(reader.read(2, 0, 2).final_hidden.size(), 8u);
}

TEST_F(CaptureFileTest, RefusesFilesThatAreDamagedUnfinishedOrEmpty) {
    {
        CaptureWriter writer = open();
        write(writer, 0);
        writer.commit(1);
    }
    expect_error(ErrorKind::input, {"expected a finished capture, found 1 of 3"},
                 [&] { CaptureReader(partial(), wanted()); });
    {
        CaptureWriter writer = open();
        write_rest(writer);
    }
    std::fstream file(out(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-100, std::ios::end);
    file.put('x');
    file.close();
    expect_error(ErrorKind::input, {"seal"}, [&] { read(wanted()); });
    {
        h5::File empty = h5::File::create(out());
        schema::stamp(empty, schema::kCapture);
        h5::Group group = empty.create_group("capture");
        group.set_attributes({{"layers", std::vector<int64_t>{1, 3}},
                              {"checkpoint_digest", std::string("0123456789abcdef")}});
        group.create_dataset("tokens", h5::Element::i32, {0});
        group.create_dataset("loss_mask", h5::Element::u8, {0});
        group.create_dataset("done", h5::Element::i64, {1})
            .write(0, std::span<const int64_t>(std::vector<int64_t>{0}));
        group.create_dataset("offsets", h5::Element::i64, {1})
            .write(0, std::span<const int64_t>(std::vector<int64_t>{0}));
    }
    expect_error(ErrorKind::input, {"an empty capture"}, [&] { read(wanted()); });
}

}  // namespace
}  // namespace quadrille
