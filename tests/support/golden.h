// SPDX-License-Identifier: Apache-2.0
// Golden: reads the HDF5 files under tests/data (values made by other implementations) for tests.
// Independent of io/h5, so that a defect there cannot hide behind itself. Any failure throws
// std::runtime_error naming file and dataset.
#pragma once

#include "kernels/dtype.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace quadrille::test {

// tests/data/NAME.
std::filesystem::path data_path(const std::string& name);

template <class T>
struct GoldenArray {
    std::vector<int64_t> shape;  // empty: a scalar
    std::vector<T> values;       // row-major

    int64_t size() const { return static_cast<int64_t>(values.size()); }
};

class Golden {
  public:
    explicit Golden(const std::filesystem::path& path);
    ~Golden();
    Golden(const Golden&) = delete;
    Golden& operator=(const Golden&) = delete;

    bool has(const std::string& path) const;
    std::vector<std::string> children(const std::string& group = "/") const;  // ascending

    // T: float, double, int32_t, int64_t (HDF5 converts; float16 to float is exact), uint16_t,
    // int16_t and uint8_t (integers of any width), F16 (float16 only: the stored bits).
    template <class T>
    GoldenArray<T> read(const std::string& path) const;
    std::vector<std::string> read_strings(const std::string& path) const;

    // Attributes of a group or dataset.
    bool has_attribute(const std::string& path, const std::string& name) const;
    std::string text(const std::string& path, const std::string& attribute) const;
    double number(const std::string& path, const std::string& attribute) const;

    // Ragged datasets: `path` holds the values, `path`_offsets the bounds.
    template <class T>
    std::vector<std::vector<T>> read_ragged(const std::string& path) const {
        const GoldenArray<T> all = read<T>(path);
        const GoldenArray<int64_t> bounds = read<int64_t>(path + "_offsets");
        std::vector<std::vector<T>> parts;
        for (size_t i = 0; i + 1 < bounds.values.size(); ++i) {
            parts.emplace_back(all.values.begin() + bounds.values[i],
                               all.values.begin() + bounds.values[i + 1]);
        }
        return parts;
    }

  private:
    void read_into(const std::string& path, int64_t memory_type, std::vector<int64_t>& shape,
                   std::vector<unsigned char>& bytes, int64_t element) const;

    std::string name_;
    int64_t file_ = -1;  // hid_t
};

}  // namespace quadrille::test
