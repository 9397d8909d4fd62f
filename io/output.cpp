// SPDX-License-Identifier: Apache-2.0
#include "io/output.h"

#include "io/files.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unistd.h>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as the system's
// What jobs make beside their outputs.
constexpr std::array<const char*, 4> kBeside = {"", ".tmp", ".partial", ".parts"};

bool same_file(const fs::path& a, const fs::path& b) {
    std::error_code error;
    if (fs::equivalent(a, b, error)) return true;
    const fs::path left = fs::weakly_canonical(follow_links(a), error);
    const fs::path right = fs::weakly_canonical(follow_links(b), error);
    return !error && left == right;
}

const char* kind_name(fs::file_type type) {
    switch (type) {
        case fs::file_type::directory:
            return "a folder";
        case fs::file_type::character:
        case fs::file_type::block:
            return "a device";
        case fs::file_type::fifo:
            return "a pipe";
        case fs::file_type::socket:
            return "a socket";
        default:
            return "no regular file";
    }
}

void check_folder(const fs::path& folder, const std::string& what) {
    std::error_code error;
    const bool is_folder = fs::is_directory(folder, error);
    if (is_folder && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
    throw Error(ErrorKind::io,
                fmt::format("{}: cannot write in the folder {}: {}", what, folder.string(),
                            error       ? error.message()
                            : is_folder ? system_reason(errno)
                                        : system_reason(ENOTDIR)));
}

void check_taken(const fs::path& path, const std::string& what, const OutputRules& rules) {
    for (const fs::path& other : rules.taken) {
        for (const char* suffix : kBeside) {
            fs::path made = path;
            made += suffix;
            if (!same_file(made, other)) continue;
            throw Error(ErrorKind::usage,
                        fmt::format("{}: expected a name of its own, found {}, which this job {}",
                                    what, other.string(),
                                    *suffix == '\0' ? "reads or writes otherwise"
                                                    : "would replace while it writes"));
        }
    }
}

void check_existing(const fs::path& path, const std::string& what, const OutputRules& rules) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return;
    if (!fs::is_regular_file(status))
        throw Error(ErrorKind::usage, fmt::format("{} is {}, expected the name of a file", what,
                                                  kind_name(status.type())));
    const std::string objection = rules.objection ? rules.objection(path) : "it is there already";
    if (!objection.empty())
        throw Error(ErrorKind::usage,
                    fmt::format("{} exists and is left as it is: {}", what, objection));
    if (!rules.overwrite)
        throw Error(
            ErrorKind::usage,
            fmt::format("{} exists: choose another name or --output-exists overwrite", what));
}

}  // namespace

fs::path follow_links(fs::path path) {
    std::error_code error;
    for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
        if (links == kMostLinks)
            throw Error(ErrorKind::io, fmt::format("{}: {}", path.string(), system_reason(ELOOP)));
        const fs::path target = fs::read_symlink(path, error);
        if (error)
            throw Error(ErrorKind::io, fmt::format("{}: {}", path.string(), error.message()));
        path = target.is_absolute() ? target : folder_of(path) / target;
    }
    return path;
}

fs::path output_path(const fs::path& name, const OutputRules& rules) {
    if (!name.has_filename())
        throw Error(ErrorKind::usage,
                    fmt::format("{} '{}' names no file", rules.option, name.string()));
    const fs::path path = follow_links(name);
    const std::string what = fmt::format("{} {}", rules.option, name.string());
    check_folder(folder_of(path), what);
    check_taken(path, what, rules);
    check_existing(path, what, rules);
    return path;
}

std::string not_json(const fs::path& path, const std::string& expected,
                     const std::vector<std::string>& keys) {
    std::ifstream file(path, std::ios::binary);
    const int first = file.peek();
    if (file.eof()) return "";
    const std::string objection = fmt::format("expected {}", expected);
    if (!file || first != '{') return objection;
    if (keys.empty()) return "";
    const auto document =
        nlohmann::json::parse(std::istreambuf_iterator<char>(file), {}, nullptr, false);
    const bool all = std::ranges::all_of(keys, [&](const std::string& key) {
        return document.is_object() && document.contains(key);
    });
    return all ? "" : objection;
}

void replace_file(const fs::path& path, std::string_view text) {
    fs::path next = path;
    next += ".tmp";
    FileHandle file(next, O_WRONLY | O_CREAT | O_TRUNC);
    try {
        file.write(0, text);
        file.close();
        std::error_code error;
        fs::rename(next, path, error);
        if (error)
            throw Error(ErrorKind::io, path.string() + ": cannot be replaced: " + error.message());
    } catch (const Error&) {
        std::error_code ignored;
        fs::remove(next, ignored);
        throw;
    }
}

}  // namespace quadrille
