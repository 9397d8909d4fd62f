// SPDX-License-Identifier: Apache-2.0
// Writes a small result in parts, for failing_disk_test.py: write_results write|check OUT.
// `write` goes on where an earlier one has ended and prints what that has left; `check` prints
// whether the result is whole, and its number of records if they hold what they must.
#include "io/h5/schema.h"
#include "io/results/generation_reader.h"
#include "io/results/result_writer.h"
#include "kernels/error.h"
#include "tests/support/made_results.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kRecords = 8;

// Which record is finished as the i-th, and what it holds.
int64_t record(int64_t i) {
    return (i * 3) % kRecords;
}

Generation made(int64_t i) {
    return test::make_generation(record(i), 1 + i, 2);
}

int write(const std::filesystem::path& out) {
    ResultOptions options;
    options.out = out;
    options.overwrite = true;
    options.layout.k = 2;
    options.layout.text = true;
    options.records = first_records(kRecords);
    options.fingerprint = {{"target_digest", "0"}};
    ResultWriter writer(options);
    fmt::print("resumed {}\n", writer.resumed().records);
    for (int64_t i = 0; i < kRecords; ++i) {
        if (!writer.is_done({.prompt_index = record(i)})) writer.add(made(i));
        if (i == kRecords / 2) writer.commit();
    }
    writer.finish({{"version", "1"}});
    return 0;
}

int check(const std::filesystem::path& out) {
    const GenerationReader reader(out, schema::kGenerations);
    const std::vector<Generation> found = reader.read(0, reader.record_count());
    for (int64_t i = 0; i < kRecords; ++i) {
        const auto& generation = found.at(static_cast<size_t>(record(i)));
        if (generation.tokens != made(i).tokens || generation.text != made(i).text) return 1;
    }
    fmt::print("{} {}\n", reader.is_complete() ? "whole" : "incomplete", found.size());
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
