// SPDX-License-Identifier: Apache-2.0
#include "io/capture/capture_reader.h"

#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/h5/trial.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace quadrille {

namespace {

constexpr uint16_t kExponent = 0x7f80;  // of bf16: all ones where a value is infinite or NaN

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
    throw Error(ErrorKind::input, fmt::format("{}: {}", path.string(), what));
}

h5::File open_capture(const std::filesystem::path& path) {
    refuse_broken_seal(path);
    h5::File file = h5::File::open(path);
    std::vector<std::string> notices;
    schema::expect_kind(file, schema::kCapture, notices);
    return file;
}

// Elements of `size` bytes.
h5::Dataset open_rows(const h5::Group& file, const char* name, h5::TypeClass kind, int64_t size,
                      const std::vector<int64_t>& shape) {
    h5::Dataset data = file.dataset(name);
    if (data.shape() != shape || data.type().kind != kind || data.type().size != size) {
        throw Error(ErrorKind::input, fmt::format("{}: expected {} [{}], found {}", data.where(),
                                                  size == 2 ? "bf16 as uint16" : "float32",
                                                  fmt::join(shape, ", "), data.describe()));
    }
    return data;
}

}  // namespace

CaptureReader::CaptureReader(const std::filesystem::path& path, const CaptureWanted& wanted)
    : path_(path), file_(open_capture(path)), capture_(file_.group("capture")) {
    check_source(wanted);
    const h5::Dataset offsets = capture_.dataset("offsets");
    const h5::Dataset tokens = capture_.dataset("tokens");
    const h5::Dataset mask = capture_.dataset("loss_mask");
    offsets_ = offsets.read<int64_t>(0, offsets.rows());
    tokens_ = tokens.read<int32_t>(0, tokens.rows());
    mask_ = mask.read<uint8_t>(0, mask.rows());
    check_lists(wanted.vocab);
    taps_ = open_rows(capture_, "taps", h5::TypeClass::integer, 2,
                      {this->tokens(), std::ssize(wanted.tap_layers) * wanted.hidden});
    final_hidden_ = open_rows(capture_, "final_hidden", h5::TypeClass::floating, 4,
                              {this->tokens(), wanted.hidden});
}

void CaptureReader::check_source(const CaptureWanted& wanted) const {
    const auto layers = capture_.attribute("layers");
    const h5::Value expected = wanted.tap_layers;
    if (!layers || *layers != expected) {
        refuse(path_, fmt::format("layers: expected those of the drafter, [{}], found {}",
                                  fmt::join(wanted.tap_layers, ", "),
                                  layers ? h5::describe(*layers) : "none"));
    }
    const auto digest = capture_.attribute("checkpoint_digest");
    if (!wanted.checkpoint_digest.empty() &&
        (!digest || *digest != h5::Value(wanted.checkpoint_digest))) {
        refuse(path_,
               fmt::format("checkpoint_digest: expected that of the target, {}, found {}: it was "
                           "captured from another checkpoint",
                           wanted.checkpoint_digest, digest ? h5::describe(*digest) : "none"));
    }
}

std::string CaptureReader::checkpoint_digest() const {
    const auto digest = capture_.attribute("checkpoint_digest");
    return digest && std::holds_alternative<std::string>(*digest) ? std::get<std::string>(*digest)
                                                                  : std::string();
}

void CaptureReader::check_lists(int64_t vocab) const {
    const int64_t done = capture_.dataset("done").read<int64_t>(0, 1).front();
    if (done != sequences()) {
        refuse(path_, fmt::format("expected a finished capture, found {} of {} sequences", done,
                                  sequences()));
    }
    if (offsets_.size() < 2 || tokens_.empty()) {
        refuse(path_, "expected at least one sequence, found an empty capture");
    }
    if (offsets_.front() != 0 || !std::ranges::is_sorted(offsets_) ||
        offsets_.back() != std::ssize(tokens_)) {
        refuse(path_, fmt::format("offsets: expected rising ones from 0 to {}, found {} to {}",
                                  tokens_.size(), offsets_.front(), offsets_.back()));
    }
    if (mask_.size() != tokens_.size()) {
        refuse(path_, fmt::format("loss_mask: expected {} values as tokens has, found {}",
                                  tokens_.size(), mask_.size()));
    }
    const auto bad = std::ranges::find_if(
        tokens_, [vocab](int32_t token) { return token < 0 || token >= vocab; });
    if (bad != tokens_.end()) {
        refuse(path_, fmt::format("tokens: expected 0 to {}, found {} at {}", vocab - 1, *bad,
                                  bad - tokens_.begin()));
    }
    if (std::ranges::count(mask_, uint8_t{0}) == std::ssize(mask_)) {
        refuse(path_, "loss_mask: expected tokens to learn, found none");
    }
}

void CaptureReader::refuse_row(const h5::Dataset& data, int64_t sequence, int64_t row) const {
    throw Error(ErrorKind::input,
                fmt::format("{}: expected numbers, found an infinite one or NaN in row {} "
                            "(sequence {}, token {})",
                            data.where(), begin(sequence) + row, sequence, row));
}

CaptureRows CaptureReader::read(int64_t sequence, int64_t first, int64_t count) const {
    require(first >= 0 && count >= 0 && first + count <= length(sequence),
            "rows of a captured sequence");
    CaptureRows rows{.taps = taps_.read<uint16_t>(begin(sequence) + first, count),
                     .final_hidden = final_hidden_.read<float>(begin(sequence) + first, count)};
    const auto tap = std::ranges::find_if(
        rows.taps, [](uint16_t bits) { return (bits & kExponent) == kExponent; });
    if (tap != rows.taps.end()) {
        refuse_row(taps_, sequence, first + (tap - rows.taps.begin()) / taps_.row_elements());
    }
    const auto hidden =
        std::ranges::find_if(rows.final_hidden, [](float x) { return !std::isfinite(x); });
    if (hidden != rows.final_hidden.end()) {
        refuse_row(final_hidden_, sequence,
                   first + (hidden - rows.final_hidden.begin()) / final_hidden_.row_elements());
    }
    return rows;
}

}  // namespace quadrille
