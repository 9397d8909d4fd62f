// SPDX-License-Identifier: Apache-2.0
// A drafter's folder from its headers to a drafter: its kind, whether it fits, what it is built of.
#include "drafter/make_drafter.h"

#include "tests/support/draft_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <string>

namespace quadrille::test {
namespace {

std::filesystem::path demo_target() {
    return data_path("models") / "demo-full-4bpw";
}

DrafterFiles open_trained(int32_t k, DraftPlacement placement, int ranks = 1, int rank = 0) {
    return open_drafter({.folder = trained_drafter(), .placement = placement, .k = k},
                        read_model_config(demo_target()), ranks, rank);
}

TEST(OpenDrafter, NamesAFolderOfNoKnownKind) {
    const TempFolder folder;
    folder.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 256})");
    expect_error(
        ErrorKind::input, {(folder / "config.json").string(), "dflash_config", "DFlash", "nothing"},
        [&] { open_drafter({.folder = folder.path()}, read_model_config(demo_target()), 1, 0); });
}

TEST(OpenDrafter, ChecksTheDrafterAgainstTargetAndBlock) {
    ModelConfig target = read_model_config(demo_target());
    target.hidden_size = 512;
    expect_error(ErrorKind::input, {"hidden_size", "512", "256"},
                 [&] { open_drafter({.folder = trained_drafter()}, target, 1, 0); });
    expect_error(ErrorKind::usage, {"8 drafts per step", "0 to 7"},
                 [] { open_trained(8, DraftPlacement::sharded); });
    const auto cut =
        copy_drafter([](StoredTensor& tensor) { return tensor.name != "norm.weight"; });
    expect_error(ErrorKind::input, {"norm.weight"}, [&] {
        open_drafter({.folder = cut->path()}, read_model_config(demo_target()), 1, 0);
    });
}

TEST(OpenDrafter, PlansTheRanksOwnSlice) {
    const DrafterFiles split = open_trained(7, DraftPlacement::sharded, 2, 1);
    EXPECT_EQ(split.plan.heads.begin, 4);
    EXPECT_EQ(split.plan.heads.end, 8);
    EXPECT_EQ(split.taps(), (std::vector<int64_t>{1, 3, 4, 6}));
    EXPECT_EQ(open_trained(7, DraftPlacement::replicated, 2, 1).plan.heads.size(), 8);
}

TEST(MakeDrafter, MakesTheDrafterOfTheFolder) {
    const std::unique_ptr<Communicator> comm = make_self_comm();
    ModelCase target(demo_target(), *comm,
                     {.slots = 2, .capacity = 128, .max_rows = 64, .max_block = 8}, trained_taps());
    const DrafterFiles files = open_trained(7, DraftPlacement::sharded);
    Position position;
    const std::unique_ptr<Drafter> made =
        make_drafter(target.backend(), *comm, position, files, target.model(), 0);
    EXPECT_EQ(made->max_k(), 7);
    EXPECT_EQ(made->taps(), files.taps());

    DraftCase expected(target);
    const DraftRequest request{.anchor = 17};
    std::vector<int32_t> drafts(7, -1);
    std::vector<int32_t> expected_drafts(7, -2);
    made->propose(drafts, 7, {&request, 1});
    expected->propose(expected_drafts, 7, {&request, 1});
    EXPECT_EQ(drafts, expected_drafts);
}

}  // namespace
}  // namespace quadrille::test
