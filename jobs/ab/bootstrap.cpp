// SPDX-License-Identifier: Apache-2.0
#include "jobs/ab/bootstrap.h"

#include "kernels/error.h"
#include "kernels/philox.h"

#include <algorithm>
#include <cmath>

namespace quadrille {
namespace {

constexpr uint64_t kSeed = 0x5eed;
constexpr double kTail = 0.025;

// The statistics of one draw of records: accept length, share of each position.
struct Sums {
    explicit Sums(int64_t k) : by_position(static_cast<size_t>(k)) {}

    void add(const RecordAcceptance& record) {
        steps += record.steps;
        accepted += record.accepted;
        for (size_t i = 0; i < record.by_position.size(); ++i) {
            by_position[i] += record.by_position[i];
        }
    }
    double share(int64_t part) const {
        return steps > 0 ? static_cast<double>(part) / static_cast<double>(steps) : std::nan("");
    }
    double accept_length() const { return 1 + share(accepted); }

    int64_t steps = 0;
    int64_t accepted = 0;
    std::vector<int64_t> by_position;
};

// Values of every sample of one statistic, the first of the records themselves.
class Samples {
  public:
    void add(double value) { values_.push_back(value); }
    Interval interval() {
        const double value = values_.front();
        std::erase_if(values_, [](double x) { return std::isnan(x); });
        if (std::isnan(value) || values_.size() < 2) return {value, std::nan(""), std::nan("")};
        std::sort(values_.begin() + 1, values_.end());
        return {value, quantile(kTail), quantile(1 - kTail)};
    }

  private:
    double quantile(double part) const {
        const auto count = static_cast<double>(values_.size() - 1);
        return values_[1 + static_cast<size_t>(std::min(part * count, count - 1))];
    }
    std::vector<double> values_;
};

struct DrafterSamples {
    explicit DrafterSamples(int64_t k) : by_position(static_cast<size_t>(k)) {}

    void add(const Sums& sums, const Sums& base) {
        accept_length.add(sums.accept_length());
        gain.add(sums.accept_length() / base.accept_length() - 1);
        for (size_t i = 0; i < by_position.size(); ++i) {
            by_position[i].add(sums.share(sums.by_position[i]));
        }
    }
    DrafterAcceptance result() {
        DrafterAcceptance out{
            .accept_length = accept_length.interval(), .by_position = {}, .gain = gain.interval()};
        for (Samples& samples : by_position) out.by_position.push_back(samples.interval());
        return out;
    }

    Samples accept_length, gain;
    std::vector<Samples> by_position;
};

// Draw `index` of sample `sample`, one of `count` records.
size_t draw(int64_t sample, size_t index, size_t count) {
    const auto s = static_cast<uint64_t>(sample);
    const Words4 bits =
        philox4x32({static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32),
                    static_cast<uint32_t>(index), static_cast<uint32_t>(uint64_t{index} >> 32)},
                   kSeed);
    // 53 bits: the bias of the product is far below any interval.
    const uint64_t word = uint64_t{bits.x} << 21 ^ bits.y >> 11;
    return std::min(count - 1, static_cast<size_t>(static_cast<double>(word) * 0x1p-53 *
                                                   static_cast<double>(count)));
}

}  // namespace

std::vector<DrafterAcceptance> compare_acceptance(
    std::span<const std::vector<RecordAcceptance>> drafters, int64_t k, int64_t resamples) {
    require(!drafters.empty(), "drafters to compare");
    const size_t count = drafters[0].size();
    for (const auto& records : drafters) require(records.size() == count, "the same records");
    std::vector<DrafterSamples> samples(drafters.size(), DrafterSamples(k));
    std::vector<size_t> drawn(count);
    // Sample 0 is every record once.
    for (int64_t sample = 0; sample <= resamples; ++sample) {
        for (size_t i = 0; i < count; ++i) drawn[i] = sample == 0 ? i : draw(sample, i, count);
        std::vector<Sums> sums(drafters.size(), Sums(k));
        for (size_t d = 0; d < drafters.size(); ++d) {
            for (const size_t i : drawn) sums[d].add(drafters[d][i]);
        }
        for (size_t d = 0; d < drafters.size(); ++d) samples[d].add(sums[d], sums[0]);
    }
    std::vector<DrafterAcceptance> out;
    for (DrafterSamples& each : samples) out.push_back(each.result());
    return out;
}

}  // namespace quadrille
