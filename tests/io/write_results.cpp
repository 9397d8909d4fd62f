// SPDX-License-Identifier: Apache-2.0
// Writes a small result in parts, for failing_disk_test.py: write_results write|check OUT.
// `check` prints whether it is whole and its number of records.
#include "io/generation_reader.h"
#include "io/result_writer.h"
#include "io/schema.h"
#include "kernels/check.h"
#include "tests/support/made_results.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace quadrille {
namespace {

constexpr int64_t kRecords = 8;

int write(const std::filesystem::path& out) {
    ResultOptions options;
    options.out = out;
    options.overwrite = true;
    options.layout.k = 2;
    options.layout.text = true;
    options.records = first_records(kRecords);
    options.fingerprint = {{"target_digest", "0"}};
    ResultWriter writer(options);
    for (int64_t i = 0; i < kRecords; ++i) {
        writer.add(test::make_generation((i * 3) % kRecords, 1 + i, 2));
        if (i == kRecords / 2) writer.commit();
    }
    writer.finish({{"version", "1"}});
    return 0;
}

int check(const std::filesystem::path& out) {
    const GenerationReader reader(out, schema::kGenerations);
    fmt::print("{} {}\n", reader.is_complete() ? "whole" : "incomplete",
               reader.read(0, reader.record_count()).size());
    return 0;
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    using namespace quadrille;
    if (argc != 3) return 2;
    try {
        return std::string(argv[1]) == "write" ? write(argv[2]) : check(argv[2]);
    } catch (const Error& error) {
        fmt::print(stderr, "{} error: {}\n", name(error.kind()), error.what());
        return error.exit_code();
    }
}
