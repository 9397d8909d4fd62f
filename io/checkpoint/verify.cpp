// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/verify.h"

#include "io/checkpoint/safetensors_writer.h"
#include "kernels/error.h"
#include "kernels/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace quadrille {

namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // bytes read at once
constexpr int64_t kMostThreads = 8;

// `look(first byte, bytes)` over a tensor.
template <class Look>
void over_pieces(const Checkpoint& checkpoint, const Tensor& tensor, const Look& look) {
    const auto size = std::ssize(tensor.bytes);
    std::vector<std::byte> buffer(static_cast<size_t>(std::min(size, kPiece)));
    for (int64_t first = 0; first < size; first += kPiece) {
        const std::span piece =
            std::span(buffer).first(static_cast<size_t>(std::min(kPiece, size - first)));
        checkpoint.read(tensor, first, piece);
        look(first, std::span<const std::byte>(piece));
    }
}

void check_values(const Checkpoint& checkpoint, const Tensor& tensor, int64_t first,
                  std::span<const std::byte> piece) {
    int64_t bad = -1;
    if (tensor.dtype == Dtype::f32 || tensor.dtype == Dtype::bf16 || tensor.dtype == Dtype::f16) {
        bad =
            find_non_finite(piece.data(), tensor.dtype, std::ssize(piece) / size_of(tensor.dtype));
    } else if (tensor.dtype == Dtype::f8_e4m3) {
        const auto found = std::ranges::find_if(
            piece, [](std::byte value) { return (value & std::byte{0x7f}) == std::byte{0x7f}; });
        if (found != piece.end()) bad = found - piece.begin();
    }
    if (bad >= 0) checkpoint.refuse_non_finite(tensor, first / size_of(tensor.dtype) + bad);
}

}  // namespace

void verify_weights(const Checkpoint& checkpoint, int64_t share, int64_t shares,
                    const std::function<void(int64_t done, int64_t total)>& progress) {
    std::vector<const Tensor*> own;
    int64_t total = 0;
    int64_t at = 0;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (at++ % shares != share) continue;
        own.push_back(&tensor);
        total += std::ssize(tensor.bytes);
    }
    if (progress) progress(0, total);
    int64_t done = 0;
    std::mutex mutex;
    const auto threads = static_cast<int32_t>(
        std::clamp<int64_t>(std::thread::hardware_concurrency() / 2, 1, kMostThreads));
    parallel_for(threads, std::ssize(own), [&](int64_t i) {
        const Tensor& tensor = *own[static_cast<size_t>(i)];
        over_pieces(checkpoint, tensor, [&](int64_t first, std::span<const std::byte> piece) {
            check_values(checkpoint, tensor, first, piece);
            const std::lock_guard lock(mutex);
            done += std::ssize(piece);
            if (progress) progress(done, total);
        });
    });
    for (size_t file = 0; file < checkpoint.files().size(); ++file) {
        if (static_cast<int64_t>(file) % shares != share) continue;
        if (!is_sealed(checkpoint, file) || seal_holds(checkpoint, file)) continue;
        throw Error(ErrorKind::input, fmt::format("{}: its data is not what its seal was made of",
                                                  checkpoint.files()[file].string()));
    }
    checkpoint.check_unchanged();
}

}  // namespace quadrille
