// SPDX-License-Identifier: Apache-2.0
#include "io/h5/seal.h"

#include "io/digest.h"
#include "io/files.h"
#include "kernels/error.h"

#include <algorithm>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kBytes = 32;
constexpr std::string_view kBegin = "quadrille seal ";
constexpr int64_t kBlock = int64_t{1} << 20;

// The seal covers the file's first `size` bytes.
std::string made_seal(const FileHandle& file, int64_t size) {
    Digest digest;
    std::vector<char> block(static_cast<size_t>(std::min(kBlock, size)));
    for (int64_t at = 0; at < size; at += kBlock) {
        const auto count = static_cast<size_t>(std::min(kBlock, size - at));
        const size_t found = file.read(at, std::span(block).first(count));
        digest.add(std::string_view(block.data(), found));
    }
    std::string seal = std::string(kBegin) + digest.hex() + "\n";
    require(std::ssize(seal) == kBytes, "the seal's size");
    return seal;
}

}  // namespace

void seal_file(const std::filesystem::path& path) {
    FileHandle file(path, O_RDWR);
    const int64_t size = file.size();
    file.write(size, made_seal(file, size));
    file.close();
    sync_file(path);
}

Seal seal_of(const std::filesystem::path& path) {
    const FileHandle file(path, O_RDONLY);
    const int64_t size = file.size() - kBytes;
    if (size < 0) return Seal::none;
    std::string found(static_cast<size_t>(kBytes), '\0');
    file.read(size, found);
    if (!found.starts_with(kBegin) || !found.ends_with('\n')) return Seal::none;
    return found == made_seal(file, size) ? Seal::holds : Seal::broken;
}

void refuse_broken_seal(const std::filesystem::path& path) {
    if (seal_of(path) == Seal::broken)
        throw Error(ErrorKind::input,
                    path.string() + ": damaged: its bytes are not those that its seal was made of");
}

}  // namespace quadrille
