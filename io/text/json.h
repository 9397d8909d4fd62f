// SPDX-License-Identifier: Apache-2.0
// Strict JSON for files from outside: UTF-8, no repeated keys, bounded depth, and fields read by
// type and range. Every failure is Error{input} "FILE: field: expected …, found …".
#pragma once

#include "kernels/error.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

// `place` names the text in messages (a file, or "file:line").
nlohmann::json parse_json(std::string_view text, const std::string& place);
// Keeps the order of keys, for texts in which it matters. Here numbers must fit 64 bits (they are
// printed again, unlike those that JsonObject checks) and an object has at most 4096 keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& place);
nlohmann::json read_json(const std::filesystem::path& file, int64_t max_bytes);

// Whole file. Error{input} when it is missing, not a file or larger; Error{io} when reading fails.
std::string read_file(const std::filesystem::path& file, int64_t max_bytes);

// The value as it is printed in messages, cut to a readable length.
std::string shown(const nlohmann::json& value);

// A value of the right type that is outside its range. It concerns its record alone, where a wrong
// type concerns the file, as in prompts.h5.
class ValueError final : public Error {
  public:
    explicit ValueError(const std::string& what) : Error(ErrorKind::input, what) {}
};

// View of an object inside a parsed document (which must outlive it). A null counts as absent.
class JsonObject {
  public:
    // Throws unless `value` is an object. `path` is its own name inside the file, "" at the top.
    JsonObject(const nlohmann::json& value, std::string place, std::string path = "");

    const nlohmann::json* find(const std::string& key) const;  // nullptr: absent
    bool has(const std::string& key) const { return find(key) != nullptr; }
    const nlohmann::json& at(const std::string& key, const std::string& expected) const;
    const nlohmann::json& value() const { return *value_; }

    JsonObject object(const std::string& key) const;
    bool boolean(const std::string& key) const;
    int64_t integer(const std::string& key, int64_t low, int64_t high) const;
    double number(const std::string& key, double low, double high) const;  // finite
    std::string string(const std::string& key) const;
    std::vector<int64_t> integers(const std::string& key, int64_t low, int64_t high) const;
    std::vector<std::string> strings(const std::string& key) const;

    // "FILE: field: expected …, found …" about a key of this object.
    [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
    // The same as a ValueError.
    [[noreturn]] void reject(const std::string& key, const std::string& expected) const;
    std::string name(const std::string& key) const;  // "text_config.hidden_size"
    const std::string& place() const { return place_; }

  private:
    std::string complaint(const std::string& key, const std::string& expected) const;

    const nlohmann::json* value_;
    std::string place_;
    std::string path_;
};

}  // namespace quadrille
