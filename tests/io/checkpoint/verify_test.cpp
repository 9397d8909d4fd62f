// SPDX-License-Identifier: Apache-2.0
// What only a whole reading of a checkpoint finds.
#include "io/checkpoint/verify.h"

#include "io/checkpoint/safetensors_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/stored_modules.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

TEST(VerifyWeights, NamesAValueThatIsNotFiniteInAnyTensor) {
    constexpr int64_t kCount = 3'000'000;  // more than is read at once
    StoredTensor wrong = zeros("unused.weight", "BF16", {kCount});
    wrong.bytes[2 * 2'500'001] = '\x80';
    wrong.bytes[2 * 2'500'001 + 1] = '\x7f';
    const StoredModules stored({zeros("a.weight", "F32", {4}),
                                wrong,
                                {"codes", "I16", {2}, std::string("\xff\x7f\xff\x7f", 4)}});
    int64_t seen = 0;
    verify_weights(stored.checkpoint(), 0, 3, [&](int64_t done, int64_t total) {
        EXPECT_EQ(total, 16);
        seen = done;
    });
    EXPECT_EQ(seen, 16);
    verify_weights(stored.checkpoint(), 1, 3, {});
    expect_error(ErrorKind::input, {"tensor unused.weight", "finite", "element 2500001"},
                 [&] { verify_weights(stored.checkpoint(), 2, 3, {}); });
}

TEST(VerifyWeights, SeesOneBitOfASealedFile) {
    const TempFolder folder;
    const auto path = folder.path() / "model.safetensors";
    std::vector<std::byte> codes(100'000, std::byte{5});
    write_safetensors(
        path, {{.name = "a.trellis", .dtype = Dtype::i16, .shape = {50'000}, .bytes = codes}}, {});
    EXPECT_NO_THROW(verify_weights(Checkpoint(folder.path()), 0, 1, {}));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-20'000, std::ios::end);
    file.put('\x04');
    file.close();
    const Checkpoint changed(folder.path());
    expect_error(ErrorKind::input, {"model.safetensors", "seal"},
                 [&] { verify_weights(changed, 0, 1, {}); });
}

}  // namespace
}  // namespace quadrille::test
