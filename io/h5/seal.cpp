// SPDX-License-Identifier: Apache-2.0
#include "io/h5/seal.h"

#include "io/digest.h"
#include "io/files.h"
#include "kernels/error.h"

#include <algorithm>
#include <fcntl.h>
#include <string>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kBytes = 32;
constexpr int64_t kBlock = int64_t{1} << 20;

// The seal covers the file's first `size` bytes.
std::string seal_of(const FileHandle& file, int64_t size) {
    Digest digest;
    std::vector<char> block(static_cast<size_t>(std::min(kBlock, size)));
    for (int64_t at = 0; at < size; at += kBlock) {
        const auto count = static_cast<size_t>(std::min(kBlock, size - at));
        const size_t found = file.read(at, std::span(block).first(count));
        digest.add(std::string_view(block.data(), found));
    }
    std::string seal = "quadrille seal " + digest.hex() + "\n";
    require(std::ssize(seal) == kBytes, "the seal's size");
    return seal;
}

}  // namespace

void seal_file(const std::filesystem::path& path) {
    FileHandle file(path, O_RDWR);
    const int64_t size = file.size();
    file.write(size, seal_of(file, size));
    file.close();
    sync_file(path);
}

bool seal_holds(const std::filesystem::path& path) {
    const FileHandle file(path, O_RDONLY);
    const int64_t size = file.size() - kBytes;
    if (size < 0) return false;
    std::string found(static_cast<size_t>(kBytes), '\0');
    file.read(size, found);
    return found == seal_of(file, size);
}

}  // namespace quadrille
