// SPDX-License-Identifier: Apache-2.0
// same_results A B…: whether generations files are equal in every dataset and attribute outside
// /provenance. Prints the first difference of each; exit 1 if there is one. Of an equal file it
// prints restarts and records_computed.
#include "io/h5/h5.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <string>

namespace {

using namespace quadrille;

std::string difference(const h5::Dataset& a, const h5::Dataset& b) {
    if (a.describe() != b.describe()) return fmt::format("{} and {}", a.describe(), b.describe());
    const int64_t rows = a.rows();
    const auto compare = [&](const auto& left, const auto& right) -> std::string {
        for (size_t i = 0; i < left.size(); ++i) {
            if (std::memcmp(&left[i], &right[i], sizeof left[i]) != 0) {
                return fmt::format("element {}: {} and {}", i, left[i], right[i]);
            }
        }
        return "";
    };
    switch (a.type().kind) {
        case h5::TypeClass::integer:
            return compare(a.read<int64_t>(0, rows), b.read<int64_t>(0, rows));
        case h5::TypeClass::floating:
            return compare(a.read<double>(0, rows), b.read<double>(0, rows));
        case h5::TypeClass::string: {
            const auto left = a.read_strings(0, rows);
            const auto right = b.read_strings(0, rows);
            for (size_t i = 0; i < left.size(); ++i) {
                if (left[i] != right[i]) {
                    return fmt::format("row {}: '{}' and '{}'", i, left[i], right[i]);
                }
            }
            return "";
        }
        default:
            return "a type that is not compared";
    }
}

// "PATH: what differs", or "" for equal groups.
std::string difference(const h5::Group& a, const h5::Group& b, const std::string& path) {
    const auto describe_all = [](const h5::Object& object) {
        std::string text;
        for (const auto& [name, value] : object.attributes()) {
            text += fmt::format("{} = {}; ", name, h5::describe(value));
        }
        return text;
    };
    if (describe_all(a) != describe_all(b)) {
        return fmt::format("{}: attributes {}and {}", path, describe_all(a), describe_all(b));
    }
    if (a.names() != b.names()) return fmt::format("{}: other objects in it", path);
    for (const std::string& name : a.names()) {
        if (path == "/" && name == "provenance") continue;
        const std::string here = path + name;
        if (a.has_group(name)) {
            const std::string found = difference(a.group(name), b.group(name), here + "/");
            if (!found.empty()) return found;
            continue;
        }
        const h5::Dataset left = a.dataset(name);
        const h5::Dataset right = b.dataset(name);
        if (describe_all(left) != describe_all(right)) return here + ": attributes";
        const std::string found = difference(left, right);
        if (!found.empty()) return fmt::format("{}: {}", here, found);
    }
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    try {
        int differing = 0;
        const h5::File first = h5::File::open(argv[1]);
        for (int i = 2; i < argc; ++i) {
            const h5::File other = h5::File::open(argv[i]);
            const std::string found = difference(first, other, "/");
            if (found.empty()) {
                h5::Attributes made_by = other.group("provenance").attributes();
                fmt::print("equal, restarts {}, records_computed {}\n",
                           h5::describe(made_by["restarts"]),
                           h5::describe(made_by["records_computed"]));
                continue;
            }
            fmt::print("{} and {} differ: {}\n", argv[1], argv[i], found);
            ++differing;
        }
        return differing == 0 ? 0 : 1;
    } catch (const std::exception& error) {
        fmt::print("{}\n", error.what());
        return 2;
    }
}
