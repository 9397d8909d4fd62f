// SPDX-License-Identifier: Apache-2.0
#include "io/results/result_files.h"

#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/output.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

// Why `out` is no result of ours; "": it is one.
std::string not_a_result(const fs::path& out, const std::string& wanted) {
    try {
        const h5::File file = h5::File::open(out);
        std::vector<std::string> notices;
        const std::string kind = schema::kind_of(file, notices);
        if (kind == wanted) return "";
        return fmt::format("it is no result of this program but a file of kind '{}'", kind);
    } catch (const Error& error) {
        return fmt::format("it is no result of this program: {}", error.what());
    }
}

int64_t part_number(const fs::path& part) {
    const std::string stem = part.stem().string();
    int64_t number = 0;
    for (size_t i = stem.rfind('-') + 1; i < stem.size(); ++i) {
        if (stem[i] < '0' || stem[i] > '9' || number > 1'000'000'000) return -1;
        number = number * 10 + (stem[i] - '0');
    }
    return number;
}

std::string part_prefix(int group) {
    return fmt::format("part-{}-", group);
}

std::string partial_prefix(int group) {
    return fmt::format("partial-{}-", group);
}

std::vector<fs::path> list_files(const fs::path& folder, const char* prefix) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (name.starts_with(prefix) && name.ends_with(".h5")) files.push_back(entry->path());
    }
    if (error)
        throw Error(ErrorKind::io,
                    fmt::format("cannot list the folder {}: {}", folder.string(), error.message()));
    std::sort(files.begin(), files.end());
    return files;
}

// One more than the largest number that a file of this prefix has.
int64_t next_number(const std::vector<fs::path>& files, const std::string& prefix) {
    int64_t next = 0;
    for (const fs::path& file : files)
        if (file.filename().string().starts_with(prefix))
            next = std::max(next, part_number(file) + 1);
    return next;
}

}  // namespace

fs::path parts_folder(const fs::path& out) {
    fs::path folder = out;
    folder += ".parts";
    return folder;
}

std::vector<fs::path> list_parts(const fs::path& folder) {
    return list_files(folder, "part-");
}

std::vector<fs::path> list_partials(const fs::path& folder) {
    return list_files(folder, "partial-");
}

fs::path next_partial(const fs::path& folder, int group) {
    const std::string prefix = partial_prefix(group);
    return folder / fmt::format("{}{:06}.h5", prefix, next_number(list_partials(folder), prefix));
}

fs::path part_path(const fs::path& folder, int group, int64_t number) {
    return folder / fmt::format("{}{:06}.h5", part_prefix(group), number);
}

fs::path check_output(const fs::path& out, const std::string& kind, bool overwrite,
                      const std::vector<fs::path>& taken) {
    const auto objection = [&](const fs::path& path) { return not_a_result(path, kind); };
    return output_path(out, {.overwrite = overwrite, .taken = taken, .objection = objection});
}

PartWriter::PartWriter(fs::path folder, int group, GenerationLayout layout, std::string run,
                       std::function<void()> before_commit)
    : folder_(std::move(folder)),
      group_(group),
      layout_(std::move(layout)),
      run_(std::move(run)),
      before_commit_(std::move(before_commit)) {
    layout_.sources.clear();  // the names are the whole file\'s
    next_part_ = next_number(list_parts(folder_), part_prefix(group_));
    first_part_ = next_part_;
}

void PartWriter::add(Generation generation) {
    const std::string violation = find_violation(generation, layout_.k);
    if (!violation.empty())
        throw Error(ErrorKind::internal, fmt::format("statistics of record {} disagree: {}",
                                                     generation.prompt_index, violation));
    if (held_.empty()) oldest_ = Clock::now();
    held_tokens_ += std::ssize(generation.tokens);
    held_.push_back(std::move(generation));
    if (std::ssize(held_) >= kRecords || held_tokens_ >= kTokens)
        commit();
    else
        commit_if_old();
}

void PartWriter::commit_if_old() {
    if (!held_.empty() && Clock::now() - oldest_ >= kAge) commit();
}

void write_part(const fs::path& path, const GenerationLayout& layout, const std::string& run,
                const std::vector<Generation>& records,
                const std::function<void()>& before_commit) {
    std::vector<int64_t> offsets = {0};
    std::vector<int64_t> trace_offsets = {0};
    for (const Generation& generation : records) {
        offsets.push_back(offsets.back() + std::ssize(generation.tokens));
        trace_offsets.push_back(trace_offsets.back() + std::ssize(generation.acceptance.trace));
    }
    fs::path unfinished = path;
    unfinished += ".tmp";
    h5::File file = h5::File::create(unfinished);
    schema::stamp(file, schema::kPart);
    file.set_attribute(schema::kRunAttribute, run);
    {
        GenerationTable table(file, layout, std::move(offsets), std::move(trace_offsets));
        table.write(0, records);
        file.set_attribute(schema::kCompleteAttribute, int64_t{1});
        file.flush();
    }
    file.close();
    seal_file(unfinished);
    if (before_commit) before_commit();
    rename_durably(unfinished, path);
}

void PartWriter::commit() {
    if (held_.empty()) return;
    write_part(part_path(folder_, group_, next_part_), layout_, run_, held_, before_commit_);
    ++next_part_;
    held_tokens_ = 0;
    held_.clear();
}

}  // namespace quadrille
