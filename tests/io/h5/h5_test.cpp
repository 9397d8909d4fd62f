// SPDX-License-Identifier: Apache-2.0
// foreign.h5 is written by h5py (make_foreign_h5.py): what other programs store must come out as
// they meant it, what does not fit must be named.
#include "io/h5/h5.h"

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fcntl.h>
#include <limits>
#include <sys/file.h>
#include <unistd.h>

namespace quadrille {
namespace {

using test::expect_error;
using test::Golden;
using test::TempFolder;

h5::File foreign() {
    return h5::File::open(test::data("foreign.h5"));
}

TEST(H5, ReadsEveryIntegerWidthAndByteOrder) {
    const h5::File file = foreign();
    const h5::Group integers = file.group("integers");
    ASSERT_EQ(integers.names().size(), 14u);
    for (const std::string& name : integers.names()) {
        const h5::Dataset dataset = integers.dataset(name);
        EXPECT_EQ(dataset.read<int64_t>(0, 4), (std::vector<int64_t>{0, 1, 127, 7})) << name;
        EXPECT_EQ(dataset.read<int32_t>(1, 3), (std::vector<int32_t>{1, 127, 7})) << name;
        EXPECT_EQ(dataset.read<uint8_t>(0, 4), (std::vector<uint8_t>{0, 1, 127, 7})) << name;
    }
    EXPECT_EQ(file.dataset("integers/be_u2").describe(), "uint16 (big-endian) [4]");
    EXPECT_EQ(file.dataset("bool").read<int32_t>(0, 3), (std::vector<int32_t>{1, 0, 1}));
}

TEST(H5, NamesTheValueThatDoesNotFit) {
    const h5::File file = foreign();
    const h5::Group group = file.group("too_large");
    expect_error(ErrorKind::input, {"foreign.h5:/too_large/uint64[2]", "9223372036854775808"},
                 [&] { group.dataset("uint64").read<int64_t>(1, 2); });
    EXPECT_EQ(group.dataset("uint64").read<int64_t>(0, 2).back(),
              std::numeric_limits<int64_t>::max());
    EXPECT_EQ(group.dataset("uint64").read_clamped(2, 1).front(),
              std::numeric_limits<int64_t>::max());
    expect_error(ErrorKind::input, {"/too_large/int64[1]", "2147483648", "int32"},
                 [&] { group.dataset("int64").read<int32_t>(0, 2); });
    expect_error(ErrorKind::input, {"/too_large/negative[2]", "-2147483649"},
                 [&] { group.dataset("negative").read<int32_t>(1, 2); });
    expect_error(ErrorKind::input, {"[0]", "5000000000", "uint8"}, [&] {
        const TempFolder folder;
        h5::File made = h5::File::create(folder / "x.h5");
        h5::Dataset dataset = made.create_dataset("x", h5::Element::i64, {1});
        dataset.write<int64_t>(0, std::vector<int64_t>{5000000000});
        dataset.read<uint8_t>(0, 1);
    });
}

TEST(H5, ReadsEveryFloatWidth) {
    const h5::File file = foreign();
    const h5::Group floats = file.group("floats");
    for (const std::string& name : floats.names()) {
        const auto values = floats.dataset(name).read<double>(0, 3);
        EXPECT_EQ(values[0], 0.5) << name;
        EXPECT_EQ(values[1], -2.0) << name;
        EXPECT_TRUE(std::isnan(values[2])) << name;
    }
    expect_error(ErrorKind::input, {"/floats/le_f4", "integers", "float32 [3]"},
                 [&] { floats.dataset("le_f4").read<int64_t>(0, 3); });
    expect_error(ErrorKind::input, {"/integers/i1", "floating point", "int8 [4]"},
                 [&] { file.dataset("integers/i1").read<float>(0, 1); });
}

TEST(H5, CutsThePaddingOfStringsByTheDeclaredRule) {
    const h5::File file = foreign();
    const h5::Group strings = file.group("strings");
    for (const std::string& name : strings.names()) {
        const bool blanks = name.starts_with("space_pad");
        const std::vector<std::string> expected = {"grün", "", blanks ? "two words" : "two words "};
        EXPECT_EQ(strings.dataset(name).read_strings(0, 3), expected) << name;
        EXPECT_EQ(strings.dataset(name).read_strings(2, 1).front(), expected[2]) << name;
    }
    expect_error(ErrorKind::input, {"/bool", "expected strings", "enum int8"},
                 [&] { file.dataset("bool").read_strings(0, 1); });
}

TEST(H5, DescribesWhatItDoesNotRead) {
    const h5::File file = foreign();
    EXPECT_EQ(file.dataset("compound").describe(), "compound [2]");
    EXPECT_EQ(file.dataset("lists").describe(), "variable-length list [2]");
    EXPECT_EQ(file.dataset("scalar").describe(), "int32 []");
    EXPECT_EQ(file.dataset("null").rows(), 0);
    expect_error(ErrorKind::input, {"/compound", "compound [2]"},
                 [&] { file.dataset("compound").read<int32_t>(0, 1); });
    expect_error(ErrorKind::input, {"foreign.h5:/link", "/nowhere"}, [&] { file.has("link"); });
    EXPECT_FALSE(file.has("nothing/here"));
    EXPECT_TRUE(file.has_group("strings"));
    EXPECT_FALSE(file.has_group("bool"));
    EXPECT_TRUE(file.has_dataset("strings/variable"));
    expect_error(ErrorKind::input, {"foreign.h5:/nowhere", "no such dataset"},
                 [&] { file.dataset("nowhere"); });
    expect_error(ErrorKind::input, {"/bool", "expected a group"}, [&] { file.group("bool"); });
    expect_error(ErrorKind::input, {"/strings", "expected a dataset"},
                 [&] { file.dataset("strings"); });
}

TEST(H5, ReadsSlicesOfMatricesAndCompressedDatasets) {
    const h5::File file = foreign();
    EXPECT_EQ(file.dataset("matrix").read<int32_t>(1, 2), (std::vector<int32_t>{3, 4, 5, 6, 7, 8}));
    const auto packed = file.dataset("packed").read<int32_t>(60, 10);
    for (size_t i = 0; i < packed.size(); ++i) EXPECT_EQ(packed[i], 60 + static_cast<int32_t>(i));
    EXPECT_TRUE(file.dataset("packed").read<int32_t>(1000, 0).empty());
    expect_error(ErrorKind::internal, {"/packed", "999 + 2"},
                 [&] { file.dataset("packed").read<int32_t>(999, 2); });
    expect_error(ErrorKind::internal, {"/packed"},
                 [&] { file.dataset("packed").read<int32_t>(-1, 2); });
}

TEST(H5, ReadsAttributesOfEveryKind) {
    const h5::File file = foreign();
    EXPECT_EQ(*file.attribute("one"), h5::Value(int64_t{1}));
    EXPECT_EQ(*file.attribute("half"), h5::Value(0.5));
    EXPECT_EQ(*file.attribute("word"), h5::Value("grün"));
    EXPECT_EQ(*file.attribute("fixed"), h5::Value("bytes"));
    EXPECT_EQ(*file.attribute("list"), h5::Value(std::vector<int64_t>{3, 4}));
    EXPECT_EQ(*file.attribute("words"), h5::Value(std::vector<std::string>{"a", "bc"}));
    EXPECT_EQ(*file.attribute("flag"), h5::Value(int64_t{1}));
    EXPECT_EQ(*file.attribute("grid"), h5::Value());
    EXPECT_FALSE(file.attribute("absent"));
    expect_error(ErrorKind::input, {"attribute large", "9223372036854775808"},
                 [&] { file.attribute("large"); });
    EXPECT_EQ(file.attribute_names().size(), 10u);
}

TEST(H5, WritesWhatAnotherReaderReads) {
    const TempFolder folder;
    const auto path = folder / "made.h5";
    const double nan = std::nan("");
    {
        h5::File file = h5::File::create(path);
        h5::Group group = file.create_group("g");
        h5::Dataset words = group.create_dataset("words", h5::Element::string, {3});
        words.write_strings(0, std::vector<std::string>{"grün", "", "c"});
        h5::Dataset wide = group.create_dataset("wide", h5::Element::i64, {2, 3});
        wide.write<int64_t>(1, std::vector<int64_t>{4, 5, 6});
        wide.write<int64_t>(0, std::vector<int64_t>{1, 2, 3});
        h5::Dataset none = group.create_dataset("none", h5::Element::i64, {4, 0});
        none.write<int64_t>(0, std::vector<int64_t>{});
        h5::Dataset grown = group.create_extendable("grown", h5::Element::u16, {2}, 3);
        for (uint16_t i = 0; i < 10; ++i)
            grown.append<uint16_t>(std::vector<uint16_t>{i, uint16_t(100 + i)});
        EXPECT_EQ(grown.rows(), 10);
        file.set_attributes({{"i", int64_t{1} << 40},
                             {"f", nan},
                             {"s", "old"},
                             {"li", std::vector<int64_t>{}},
                             {"ls", std::vector<std::string>{"x", "yz"}}});
        file.set_attribute("s", "new");
        file.flush();
    }
    const Golden other(path);
    EXPECT_EQ(other.read_strings("g/words"), (std::vector<std::string>{"grün", "", "c"}));
    EXPECT_EQ(other.read<int64_t>("g/wide").values, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(other.read<int64_t>("g/none").shape, (std::vector<int64_t>{4, 0}));
    const auto grown = other.read<uint16_t>("g/grown");
    EXPECT_EQ(grown.shape, (std::vector<int64_t>{10, 2}));
    EXPECT_EQ(grown.values[19], 109);
    EXPECT_EQ(other.text("/", "s"), "new");
    EXPECT_TRUE(std::isnan(other.number("/", "f")));
    EXPECT_EQ(*h5::File::open(path).attribute("li"), h5::Value(std::vector<int64_t>{}));
}

TEST(H5, ClosesOnlyWhenEveryObjectIsGone) {
    const TempFolder folder;
    h5::File file = h5::File::create(folder / "open.h5");
    {
        const h5::Dataset open = file.create_dataset("x", h5::Element::u8, {1});
        expect_error(ErrorKind::internal, {"after its objects"}, [&] { file.close(); });
    }
    h5::File other = h5::File::create(folder / "closed.h5");
    other.create_dataset("x", h5::Element::u8, {1}).write<uint8_t>(0, std::vector<uint8_t>{7});
    other.close();
    h5::File again = h5::File::open_write(folder / "closed.h5");
    again.set_attribute("more", int64_t{1});
    again.close();
    const h5::File last = h5::File::open(folder / "closed.h5");
    EXPECT_EQ(last.dataset("x").read<uint8_t>(0, 1).front(), 7);
    EXPECT_TRUE(last.has_attribute("more"));
}

TEST(H5, EqualContentMakesEqualBytes) {
    const TempFolder folder;
    const auto make = [&](const char* name) {
        h5::File file = h5::File::create(folder / name);
        h5::Group group = file.create_group("g");
        group.create_dataset("x", h5::Element::string, {1})
            .write_strings(0, std::vector<std::string>{"text"});
        group = file.group("g");
        file.set_attribute("a", "b");
    };
    make("a");
    make("b");
    const auto bytes = [&](const char* name) {
        std::ifstream in(folder / name, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_FALSE(bytes("a").empty());
    EXPECT_EQ(bytes("a"), bytes("b"));
}

TEST(H5, RefusesANulInsideAString) {
    const TempFolder folder;
    h5::File file = h5::File::create(folder / "nul.h5");
    h5::Dataset words = file.create_dataset("words", h5::Element::string, {1});
    expect_error(ErrorKind::internal, {"/words", "NUL"},
                 [&] { words.write_strings(0, std::vector<std::string>{std::string("a\0b", 3)}); });
}

TEST(H5, NamesTheFileThatIsNotOne) {
    const TempFolder folder;
    expect_error(ErrorKind::io, {"absent.h5", "No such file"},
                 [&] { h5::File::open(folder / "absent.h5"); });
    expect_error(ErrorKind::io, {"not a regular file"}, [&] { h5::File::open(folder.path()); });
    for (const char* content : {"", "x", "index,text\n1,two\n"}) {
        const auto path = folder.write("text.h5", content);
        expect_error(ErrorKind::input, {"text.h5", "not an HDF5 file"},
                     [&] { h5::File::open(path); });
    }
    expect_error(ErrorKind::io, {"no/such/x.h5", "No such file"},
                 [&] { h5::File::create(folder / "no/such/x.h5"); });
    expect_error(ErrorKind::io, {"Is a directory"}, [&] { h5::File::create(folder.path()); });
}

TEST(H5, SaysWhenAnotherProcessHoldsTheFile) {
    const TempFolder folder;
    const auto path = folder / "held.h5";
    std::filesystem::copy_file(test::data("foreign.h5"), path);
    const int held = ::open(path.c_str(), O_RDONLY);  // flock knows open files, not processes
    ASSERT_EQ(::flock(held, LOCK_EX), 0);
    expect_error(ErrorKind::io, {"held.h5", "another process", "HDF5_USE_FILE_LOCKING"},
                 [&] { h5::File::open(path); });
    ::close(held);
    h5::File::open(path);
}

TEST(H5, NamesTheTruncatedFile) {
    const TempFolder folder;
    const auto path = folder / "short.h5";
    const auto size = std::filesystem::file_size(test::data("foreign.h5"));
    for (uintmax_t keep = size - 1; keep > 8; keep = keep > 512 ? keep / 2 : keep - 7) {
        std::filesystem::copy_file(test::data("foreign.h5"), path,
                                   std::filesystem::copy_options::overwrite_existing);
        std::filesystem::resize_file(path, keep);
        expect_error(ErrorKind::input, {"short.h5", "truncated"}, [&] { h5::File::open(path); });
    }
}

}  // namespace
}  // namespace quadrille
