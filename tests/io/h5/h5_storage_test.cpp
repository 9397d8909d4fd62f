// SPDX-License-Identifier: Apache-2.0
// missing.h5 is written by h5py (make_missing_h5.py): the library reads fill values from most of
// its datasets, which are none of the user's.
#include "io/h5/h5.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace quadrille {
namespace {

using test::expect_error;
using test::TempFolder;

h5::File missing() {
    return h5::File::open(test::data("missing.h5"));
}

void read_fails(const std::string& name, std::initializer_list<std::string> parts) {
    const h5::File file = missing();
    const h5::Dataset dataset = file.dataset(name);
    SCOPED_TRACE(name);
    expect_error(ErrorKind::input, {"missing.h5:/" + name}, [&] { dataset.require_data(); });
    expect_error(ErrorKind::input, parts, [&] { dataset.read<int32_t>(0, 1); });
}

TEST(H5Storage, NamesChunksThatWereNeverWritten) {
    read_fails("chunks", {"missing.h5:/chunks", "7 of its 10 chunks"});
    read_fails("grown", {"missing.h5:/grown", "3 of its 5 chunks"});
    const h5::File file = missing();
    EXPECT_EQ(file.dataset("all_chunks").read<int32_t>(90, 5), std::vector<int32_t>(5, 7));
    EXPECT_TRUE(file.dataset("no_rows").read<double>(0, 0).empty());
    expect_error(ErrorKind::input, {"missing.h5:/never_written", "never written"},
                 [&] { file.dataset("never_written").read<double>(0, 5); });
}

TEST(H5Storage, NamesExternalFilesAndVirtualSources) {
    read_fails("external", {"missing.h5:/external", "absent.bin", "No such file"});
    read_fails("virtual", {"missing.h5:/virtual", "absent.h5", "No such file"});
    read_fails("virtual_hole", {"missing.h5:/virtual_hole", "6 of its 8 elements"});
    EXPECT_EQ(missing().dataset("virtual_whole").read<int32_t>(0, 8), std::vector<int32_t>(8, 7));
}

TEST(H5Storage, NamesWhatAVirtualSourceLacksItself) {
    const TempFolder folder;
    std::filesystem::copy_file(test::data("missing.h5"), folder / "missing.h5");
    {
        h5::File source = h5::File::create(folder / "absent.h5");
        source.create_dataset("all_chunks", h5::Element::i32, {95});
    }
    const h5::File file = h5::File::open(folder / "missing.h5");
    expect_error(ErrorKind::input,
                 {"missing.h5:/virtual", "absent.h5:/all_chunks", "never written"},
                 [&] { file.dataset("virtual").read<int32_t>(0, 8); });
}

TEST(H5Storage, NamesLinksToWhatIsNotThere) {
    const h5::File file = missing();
    expect_error(ErrorKind::input, {"missing.h5:/soft", "/nowhere/at_all"},
                 [&] { file.has("soft"); });
    expect_error(ErrorKind::input, {"missing.h5:/elsewhere", "absent.h5:/data"},
                 [&] { file.dataset("elsewhere"); });
    EXPECT_TRUE(file.has_dataset("there"));
    EXPECT_FALSE(file.has("nothing"));
}

TEST(H5Storage, NamesTheFilterThatIsMissing) {
    const h5::File file = missing();
    expect_error(ErrorKind::input, {"missing.h5:/lzf", "lzf", "32000"},
                 [&] { file.dataset("lzf").read<int32_t>(0, 64); });
}

}  // namespace
}  // namespace quadrille
