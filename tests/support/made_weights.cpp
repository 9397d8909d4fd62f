// SPDX-License-Identifier: Apache-2.0
#include "tests/support/made_weights.h"

#include "kernels/dtype.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>

namespace quadrille::test {

namespace {

using nlohmann::json;

constexpr int64_t kChunk = int64_t{1} << 20;  // values converted at once

uint64_t name_hash(const std::string& name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char letter : name) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    }
    return hash;
}

uint64_t splitmix(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// Bytes [first, first + count) of a stream; `first` is a multiple of 8.
void fill(std::vector<int8_t>& bytes, uint64_t seed, int64_t first, int64_t count) {
    bytes.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i += 8) {
        const uint64_t word = splitmix(seed, static_cast<uint64_t>((first + i) / 8));
        for (int64_t b = 0; b < std::min<int64_t>(8, count - i); ++b) {
            bytes[static_cast<size_t>(i + b)] = static_cast<int8_t>(word >> (8 * b) & 0xffu);
        }
    }
}

int64_t element_bytes(const std::string& dtype) {
    return dtype == "F32" || dtype == "I32" ? 4 : 2;
}

int64_t elements(const json& tensor) {
    int64_t count = 1;
    for (const auto& extent : tensor["shape"]) count *= extent.get<int64_t>();
    return count;
}

float value_of(const json& tensor, int8_t byte) {
    const float unit = std::ldexp(1.0f, -tensor["exponent"].get<int>());
    if (tensor.contains("sign")) {
        const float size = 1.0f + static_cast<float>(byte & 7) / 16.0f;
        return (byte < 0 ? -size : size) * unit;
    }
    return tensor["offset"].get<float>() +
           static_cast<float>(byte >> tensor["drop"].get<int>()) * unit;
}

// The stored forms of all 256 bytes.
std::vector<uint32_t> stored_values(const json& tensor) {
    const std::string dtype = tensor["dtype"];
    std::vector<uint32_t> stored;
    for (int byte = 0; byte < 256; ++byte) {
        const float value = value_of(tensor, static_cast<int8_t>(byte));
        const uint32_t bits = dtype == "F32"   ? std::bit_cast<uint32_t>(value)
                              : dtype == "F16" ? to_f16(value).bits
                                               : to_bf16(value).bits;
        const float back = dtype == "F32"   ? value
                           : dtype == "F16" ? to_float(F16{static_cast<uint16_t>(bits)})
                                            : to_float(BF16{static_cast<uint16_t>(bits)});
        if (back != value) throw std::runtime_error("a made weight is not exact in " + dtype);
        stored.push_back(bits);
    }
    return stored;
}

void write_tensor(std::ofstream& file, const json& tensor) {
    if (tensor.contains("value")) {
        const auto value = static_cast<int32_t>(tensor["value"].get<int64_t>());
        file.write(reinterpret_cast<const char*>(&value), sizeof value);
        return;
    }
    const bool raw = !tensor.contains("exponent");
    const int64_t width = element_bytes(tensor["dtype"]);
    const int64_t count = elements(tensor) * (raw ? width : 1);
    const uint64_t seed = name_hash(tensor["name"]);
    const std::vector<uint32_t> stored = raw ? std::vector<uint32_t>{} : stored_values(tensor);
    std::vector<int8_t> bytes;
    std::vector<char> out;
    for (int64_t first = 0; first < count; first += kChunk) {
        fill(bytes, seed, first, std::min(kChunk, count - first));
        if (raw) {
            file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
            continue;
        }
        out.resize(bytes.size() * static_cast<size_t>(width));
        char* to = out.data();
        for (const int8_t byte : bytes) {
            std::memcpy(to, &stored[static_cast<uint8_t>(byte)], static_cast<size_t>(width));
            to += width;
        }
        file.write(out.data(), std::ssize(out));
    }
}

}  // namespace

std::vector<int8_t> name_stream(const std::string& name, int64_t count) {
    std::vector<int8_t> bytes;
    fill(bytes, name_hash(name), 0, count);
    return bytes;
}

void write_made_checkpoint(const std::filesystem::path& folder, const std::string& config,
                           const std::string& tensors) {
    std::ofstream(folder / "config.json") << config;
    std::vector<json> list = json::parse(tensors);
    // Wide elements first, so that every tensor is aligned to its own.
    std::ranges::stable_sort(list, std::greater<>(),
                             [](const json& tensor) { return element_bytes(tensor["dtype"]); });
    json header;
    int64_t at = 0;
    for (const json& tensor : list) {
        const int64_t end = at + elements(tensor) * element_bytes(tensor["dtype"]);
        header[tensor["name"].get<std::string>()] = {
            {"dtype", tensor["dtype"]}, {"shape", tensor["shape"]}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const auto size = static_cast<uint64_t>(text.size());
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << text;
    for (const json& tensor : list) write_tensor(file, tensor);
    if (!file.flush()) throw std::runtime_error("cannot write " + folder.string());
}

}  // namespace quadrille::test
