// SPDX-License-Identifier: Apache-2.0
// Strict parsing on top of nlohmann_json, and typed access with messages that name the field.
#include "io/text/json.h"

#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <type_traits>
#include <vector>

namespace quadrille {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxShown = 80;

// Cuts at a character boundary.
std::string shortened(std::string text, size_t limit) {
    if (text.size() <= limit) return text;
    size_t end = limit;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
    text.resize(end);
    return text + "…";
}

// What the parser says, without its class tag; its quote of the text may be as long as the text.
std::string reason(const json::exception& error) {
    const std::string text = error.what();
    const size_t tag = text.find("] ");
    return shortened(tag == std::string::npos ? text : text.substr(tag + 2), 240);
}

[[noreturn]] void not_json(const std::string& place, const std::string& problem) {
    throw Error(ErrorKind::input, fmt::format("{}: expected JSON, found: {}", place, problem));
}

// Builds the document from the parser's events; refuses repeated keys and deep nesting, which the
// library's own builder takes.
template <class Json>
class StrictBuilder final : public nlohmann::json_sax<Json> {
  public:
    StrictBuilder(Json& result, const std::string& place) : result_(result), place_(place) {}

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(int64_t value) override { return add(value); }
    bool number_unsigned(uint64_t value) override { return add(value); }
    bool number_float(double value, const std::string& text) override {
        if (kOrdered && text.find_first_of(".eE") == std::string::npos) {
            refuse(fmt::format("the integer {} does not fit 64 bits", shortened(text, 40)));
        }
        return add(value);
    }
    bool string(std::string& value) override { return add(std::move(value)); }
    bool binary(typename Json::binary_t&) override { not_json(place_, "binary data"); }
    bool start_object(size_t) override { return open(Json::object()); }
    bool end_object() override { return close(); }
    bool start_array(size_t) override { return open(Json::array()); }
    bool end_array() override { return close(); }

    bool key(std::string& value) override {
        auto& members = stack_.back()->template get_ref<typename Json::object_t&>();
        // An ordered object is searched from end to end.
        if (kOrdered && members.size() == kMaxOrderedKeys) {
            refuse(fmt::format("an object has more than {} keys", kMaxOrderedKeys));
        }
        const auto [at, inserted] = members.emplace(std::move(value), nullptr);
        if (!inserted) {
            refuse(fmt::format("the key {} appears twice in one object", shown(at->first)));
        }
        slot_ = &at->second;
        return true;
    }

    bool parse_error(size_t, const std::string&,
                     const nlohmann::detail::exception& error) override {
        not_json(place_, reason(error));
    }

  private:
    static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
    static constexpr size_t kMaxOrderedKeys = 4096;

    [[noreturn]] void refuse(const std::string& problem) const {
        throw Error(ErrorKind::input, fmt::format("{}: {}", place_, problem));
    }
    bool add(Json&& value) {
        at() = std::move(value);
        return true;
    }
    bool open(Json&& value) {
        if (stack_.size() == kMaxDepth) {
            refuse(fmt::format("JSON nested deeper than {} levels", kMaxDepth));
        }
        Json& place = at();
        place = std::move(value);
        stack_.push_back(&place);
        return true;
    }
    bool close() {
        stack_.pop_back();
        return true;
    }
    // The place of the next value. Pointers into a container stay good: it does not grow while one
    // of its own members is open.
    Json& at() {
        if (stack_.empty()) return result_;
        if (!stack_.back()->is_array()) return *slot_;
        return stack_.back()->template get_ref<typename Json::array_t&>().emplace_back();
    }

    Json& result_;
    const std::string& place_;
    std::vector<Json*> stack_;  // open objects and arrays
    Json* slot_ = nullptr;      // where the value of the last key goes
};

template <class Json>
Json parse_strictly(std::string_view text, const std::string& place) {
    Json result;
    StrictBuilder<Json> builder(result, place);
    Json::sax_parse(text.begin(), text.end(), &builder);
    return result;
}

bool is_integer_in(const json& value, int64_t low, int64_t high) {
    if (value.is_number_unsigned()) {
        const auto number = value.get<uint64_t>();
        return high >= 0 && number <= static_cast<uint64_t>(high) &&
               (low <= 0 || number >= static_cast<uint64_t>(low));
    }
    if (!value.is_number_integer()) return false;
    const auto number = value.get<int64_t>();
    return number >= low && number <= high;
}

std::string range_text(const char* what, int64_t low, int64_t high) {
    if (high == INT64_MAX) return fmt::format("{} of at least {}", what, low);
    return fmt::format("{} in {}..{}", what, low, high);
}

}  // namespace

std::string shown(const json& value) {
    // Bounded depth (parse_json) bounds the recursion of dump().
    return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), kMaxShown);
}

json parse_json(std::string_view text, const std::string& place) {
    return parse_strictly<json>(text, place);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& place) {
    return parse_strictly<nlohmann::ordered_json>(text, place);
}

std::string read_file(const std::filesystem::path& file, int64_t max_bytes) {
    std::error_code code;
    if (!std::filesystem::exists(file, code)) {
        throw Error(ErrorKind::input, fmt::format("{}: no such file", file.string()));
    }
    if (!std::filesystem::is_regular_file(file, code)) {
        throw Error(ErrorKind::input, fmt::format("{}: not a regular file", file.string()));
    }
    const auto size = std::filesystem::file_size(file, code);
    if (code) {
        throw Error(ErrorKind::io, fmt::format("{}: {}", file.string(), code.message()));
    }
    if (size > static_cast<uint64_t>(max_bytes)) {
        throw Error(ErrorKind::input, fmt::format("{}: expected at most {} bytes, found {}",
                                                  file.string(), max_bytes, size));
    }
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot open: {}", file.string(), std::strerror(errno)));
    }
    std::string text(size, '\0');
    in.read(text.data(), static_cast<std::streamsize>(size));
    if (static_cast<uint64_t>(in.gcount()) != size) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: read {} of {} bytes", file.string(), in.gcount(), size));
    }
    return text;
}

json read_json(const std::filesystem::path& file, int64_t max_bytes) {
    return parse_json(read_file(file, max_bytes), file.string());
}

JsonObject::JsonObject(const json& value, std::string place, std::string path)
    : value_(&value), place_(std::move(place)), path_(std::move(path)) {
    if (value.is_object()) return;
    throw Error(ErrorKind::input, fmt::format("{}: {}expected an object, found {}", place_,
                                              path_.empty() ? "" : path_ + ": ", shown(value)));
}

const json* JsonObject::find(const std::string& key) const {
    const auto found = value_->find(key);
    return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const json& JsonObject::at(const std::string& key, const std::string& expected) const {
    const json* found = find(key);
    if (!found) fail(key, expected);
    return *found;
}

JsonObject JsonObject::object(const std::string& key) const {
    return {at(key, "an object"), place_, name(key)};
}

bool JsonObject::boolean(const std::string& key) const {
    const json& found = at(key, "true or false");
    if (!found.is_boolean()) fail(key, "true or false");
    return found.get<bool>();
}

int64_t JsonObject::integer(const std::string& key, int64_t low, int64_t high) const {
    const std::string expected = range_text("an integer", low, high);
    const json& found = at(key, expected);
    if (!is_integer_in(found, low, high)) fail(key, expected);
    return found.get<int64_t>();
}

double JsonObject::number(const std::string& key, double low, double high) const {
    const std::string expected = fmt::format("a number in {}..{}", low, high);
    const json& found = at(key, expected);
    if (!found.is_number()) fail(key, expected);
    const auto number = found.get<double>();
    if (!std::isfinite(number) || number < low || number > high) fail(key, expected);
    return number;
}

std::string JsonObject::string(const std::string& key) const {
    const json& found = at(key, "a string");
    if (!found.is_string()) fail(key, "a string");
    return found.get<std::string>();
}

std::vector<int64_t> JsonObject::integers(const std::string& key, int64_t low, int64_t high) const {
    const std::string expected = range_text("a list of integers", low, high);
    const json& found = at(key, expected);
    if (!found.is_array()) fail(key, expected);
    std::vector<int64_t> result;
    result.reserve(found.size());
    for (const json& item : found) {
        if (!is_integer_in(item, low, high)) {
            throw Error(
                ErrorKind::input,
                fmt::format("{}: {}[{}]: expected {}, found {}", place_, name(key), result.size(),
                            range_text("an integer", low, high), shown(item)));
        }
        result.push_back(item.get<int64_t>());
    }
    return result;
}

std::vector<std::string> JsonObject::strings(const std::string& key) const {
    const json& found = at(key, "a list of strings");
    if (!found.is_array()) fail(key, "a list of strings");
    std::vector<std::string> result;
    result.reserve(found.size());
    for (const json& item : found) {
        if (!item.is_string()) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: {}[{}]: expected a string, found {}", place_, name(key),
                                    result.size(), shown(item)));
        }
        result.push_back(item.get<std::string>());
    }
    return result;
}

void JsonObject::fail(const std::string& key, const std::string& expected) const {
    throw Error(ErrorKind::input, complaint(key, expected));
}

void JsonObject::reject(const std::string& key, const std::string& expected) const {
    throw ValueError(complaint(key, expected));
}

std::string JsonObject::complaint(const std::string& key, const std::string& expected) const {
    const auto found = value_->find(key);
    return fmt::format("{}: {}: expected {}, found {}", place_, name(key), expected,
                       found == value_->end() ? "nothing" : shown(*found));
}

std::string JsonObject::name(const std::string& key) const {
    return path_.empty() ? key : path_ + "." + key;
}

}  // namespace quadrille
