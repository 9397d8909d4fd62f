// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/results_tsv.h"

#include "io/files.h"
#include "jobs/common/table.h"
#include "jobs/common/version.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>

namespace quadrille {

namespace {

// Free text as one field of a row.
std::string field(std::string text) {
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
    return text;
}

}  // namespace

std::string result_row(const ResultPlace& place, const std::string& bench, const std::string& shape,
                       double value, const char* unit, double fraction) {
    if (std::isnan(value)) return "";
    const std::string of_floor = std::isnan(fraction) ? "" : fmt::format("{:.3f}", fraction);
    return fmt::format("{}\t{}\t{}\t{}\t{}\t{:.6g}\t{}\t{}\n", place.date, place.version,
                       field(place.hardware), bench, field(shape), value, unit, of_floor);
}

std::string version_and_commit() {
    return commit().empty() ? version() : fmt::format("{} {}", version(), commit());
}

std::string last_name(const std::string& path) {
    const auto whole = std::filesystem::absolute(path).lexically_normal();
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void append_results(const std::filesystem::path& path, const std::string& rows) {
    const auto fail = [&](const char* verb) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot {}: {}", path.string(), verb, system_reason(errno)));
    };
    std::string first;
    bool ended = true;
    if (std::ifstream old(path, std::ios::binary); old) {
        std::getline(old, first);
        if (!first.empty() && first != kResultColumns) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: expected a first line of '{}', found '{}'", path.string(),
                                    kResultColumns, excerpt(first, 60)));
        }
        old.clear();
        old.seekg(-1, std::ios::end);
        ended = first.empty() || old.get() == '\n';
    }
    std::ofstream file(path, std::ios::binary | std::ios::app);
    if (!file) fail("open");
    if (rows.empty()) return;
    if (first.empty()) file << kResultColumns << '\n';
    if (!ended) file << '\n';
    file << rows << std::flush;
    if (!file) fail("write");
}

}  // namespace quadrille
