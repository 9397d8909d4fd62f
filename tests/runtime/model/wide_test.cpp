// SPDX-License-Identifier: Apache-2.0
// Slow: one layer of each kind at the widths of the full model, native and as an EXL3 pack, against
// the numpy reference (tools/reference/make_wide_goldens.py): prompt in one pass, then a block of
// three rows as a verify step runs them. On ranks.
#include "runtime/model/step_batch.h"
#include "tests/support/golden.h"
#include "tests/support/made_weights.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/op_case.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

constexpr int32_t kBlock = 3;
constexpr int64_t kCapacity = 64;

TEST(NameStream, IsThatOfTheReference) {
    EXPECT_EQ(name_stream("abc", 10),
              (std::vector<int8_t>{48, -100, 63, -20, 4, 44, -29, 41, 45, -97}));
}

// The golden sample of one quantity, and its checksum over all columns of a row.
class Sampled {
  public:
    Sampled(const Golden& golden, const std::string& path)
        : columns_(golden.read<int32_t>(path + "_columns").values),
          values_(golden.read<float>(path).values),
          checksums_(golden.read<float>(path + "_checksum").values) {}

    // Rows [first, first + rows) of the golden against `found`.
    void expect(const std::string& what, int64_t first, View<const float> found) const {
        std::vector<float> sample;
        std::vector<float> checksums;
        for (int64_t row = 0; row < found.rows; ++row) {
            for (const int32_t column : columns_) sample.push_back(found.row(row)[column]);
            checksums.push_back(checksum(found, row));
        }
        const auto width = static_cast<int64_t>(columns_.size());
        EXPECT_TRUE(within(sample, part(values_, first * width, found.rows * width), kGoldenTrace))
            << what << " from token " << first;
        EXPECT_TRUE(within(checksums, part(checksums_, first, found.rows), kGoldenTrace))
            << "checksum of " << what << " from token " << first;
    }

  private:
    static std::span<const float> part(const std::vector<float>& values, int64_t first,
                                       int64_t count) {
        return std::span(values).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    }
    static float checksum(View<const float> found, int64_t row) {
        double sum = 0;
        for (int64_t c = 0; c < found.cols; ++c) {
            const double value = found.row(row)[c];
            sum += std::popcount(static_cast<uint64_t>(c)) % 2 == 0 ? value : -value;
        }
        return static_cast<float>(sum / std::sqrt(static_cast<double>(found.cols)));
    }

    std::vector<int32_t> columns_;
    std::vector<float> values_;
    std::vector<float> checksums_;
};

// A folder of rank 0 that all ranks read from.
class SharedFolder {
  public:
    SharedFolder() {
        if (session().rank() == 0) own_ = std::make_unique<TempFolder>();
        std::array<char, 256> name{};
        if (own_) own_->path().string().copy(name.data(), name.size() - 1);
        session().world().broadcast_host(name.data(), name.size(), 0);
        path_ = name.data();
    }
    ~SharedFolder() { session().world().barrier(); }
    SharedFolder(const SharedFolder&) = delete;
    SharedFolder& operator=(const SharedFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::unique_ptr<TempFolder> own_;
    std::filesystem::path path_;
};

class WideLayer : public testing::TestWithParam<const char*> {};

TEST_P(WideLayer, IsThatOfTheReference) {
    const Golden golden(data_path("wide_golden.h5"));
    const std::string group = std::string("/") + GetParam() + "/";
    const SharedFolder folder;
    if (session().rank() == 0) {
        write_made_checkpoint(folder.path(), golden.read_strings(group + "config").at(0),
                              golden.read_strings(group + "tensors").at(0));
    }
    session().world().barrier();
    ModelCase wide(folder.path(), session().world(),
                   {.slots = 1, .capacity = kCapacity, .max_rows = kCapacity, .max_block = kBlock},
                   {0});

    const std::vector<int32_t> tokens = golden.read<int32_t>(group + "tokens").values;
    const auto prompt = static_cast<int64_t>(tokens.size()) - kBlock;
    const Sampled means(golden, group + "stream_mean");
    const Sampled hidden(golden, group + "final_hidden");
    const Sampled logits(golden, group + "logits");
    StepBatch batch(wide.backend(), kCapacity, 1);
    const auto pass = [&](int64_t first, int64_t count, Logits wanted) {
        batch.clear(first == 0);
        batch.add(0, static_cast<int32_t>(first), 0,
                  std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                  wanted);
        const std::vector<float> found = wide.forward(batch);
        const int64_t rows = batch.logit_count();
        means.expect("stream mean", first, wide.model().taps());
        hidden.expect("final hidden", first + count - rows, wide.model().hidden());
        logits.expect("logits", first + count - rows,
                      {found.data(), rows, wide.config().vocab_size});
    };
    pass(0, prompt, Logits::last);
    pass(prompt, kBlock, Logits::all);
}

INSTANTIATE_TEST_SUITE_P(Kinds, WideLayer,
                         testing::Values("kda-dense-native", "mla-moe-native", "kda-dense-pack",
                                         "mla-moe-pack"),
                         [](const auto& kind) {
                             std::string name = kind.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace quadrille::test
