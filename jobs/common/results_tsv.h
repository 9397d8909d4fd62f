// SPDX-License-Identifier: Apache-2.0
// Rows of measurements, as in docs/results.tsv.
#pragma once

#include <filesystem>
#include <string>

namespace quadrille {

inline constexpr const char* kResultColumns =
    "date\tcommit\thardware\tbench\tshape\tvalue\tunit\tfloor";

// What was measured, when and where: the first fields of a row.
struct ResultPlace {
    std::string date;     // UTC, ISO 8601
    std::string version;  // and commit
    std::string hardware;
};

// A row, ended by a line feed; "" where the value is NaN. `fraction`: of the floor; NaN: not known.
std::string result_row(const ResultPlace& place, const std::string& bench, const std::string& shape,
                       double value, const char* unit, double fraction);
// The version of this program and its commit.
std::string version_and_commit();
// A folder's or file's own name.
std::string last_name(const std::string& path);

// Appends rows; a file that is not there or empty gets the columns first. Error{input}: the file
// begins with another line. Error{io}: it cannot be written. No rows: only checks.
void append_results(const std::filesystem::path& path, const std::string& rows);

}  // namespace quadrille
