// SPDX-License-Identifier: Apache-2.0
// Writes the safetensors container for tests: well-formed files, or any header over any data.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::test {

struct StoredTensor {
    std::string name;
    std::string dtype;  // as in the header: "F32", "BF16", …
    std::vector<int64_t> shape;
    std::string bytes;
};

inline std::string safetensors_file(std::string_view header, std::string_view data) {
    std::string file(8, '\0');
    for (size_t i = 0; i < 8; ++i) {
        file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xffu);
    }
    file.append(header);
    file.append(data);
    return file;
}

inline std::string safetensors_file(const std::vector<StoredTensor>& tensors) {
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};
    std::string data;
    for (const StoredTensor& tensor : tensors) {
        header[tensor.name] = {{"dtype", tensor.dtype},
                               {"shape", tensor.shape},
                               {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
        data += tensor.bytes;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    return safetensors_file(text, data);
}

}  // namespace quadrille::test
