// SPDX-License-Identifier: Apache-2.0
#include "io/results/run_folder.h"

#include "io/digest.h"
#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/crash_log.h"
#include "io/results/generation_reader.h"
#include "io/results/result_files.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFile = "run.h5";
constexpr const char* kRecordsAttribute = "records";

void write_run(const fs::path& path, const h5::Attributes& fingerprint, int64_t records) {
    fs::path unfinished = path;
    unfinished += ".tmp";
    h5::File file = h5::File::create(unfinished);
    schema::stamp(file, schema::kRun);
    file.set_attribute(kRecordsAttribute, records);
    file.create_group("fingerprint").set_attributes(fingerprint);
    file.close();
    seal_file(unfinished);
    rename_durably(unfinished, path);
}

h5::Attributes read_run(const fs::path& path) {
    if (!seal_holds(path))
        throw Error(ErrorKind::input,
                    fmt::format("{}: truncated or damaged, so nobody can tell of which run the "
                                "parts beside it are: choose another name, or remove the folder",
                                path.string()));
    const h5::File file = h5::File::open(path);
    std::vector<std::string> notices;
    schema::expect_kind(file, schema::kRun, notices);
    return file.group("fingerprint").attributes();
}

// "k was 2, is 3; seed was 0, is 7". Fields that `then` lacks are left out.
std::string difference(const h5::Attributes& then, const h5::Attributes& now) {
    const auto shown = [](const h5::Attributes& fields, const std::string& name) {
        const auto found = fields.find(name);
        if (found == fields.end()) return std::string("unknown");
        const std::string text = h5::describe(found->second);
        return text.empty() ? std::string("none") : text;
    };
    std::string text;
    for (const auto& [name, before] : then) {
        const auto after = now.find(name);
        if (after != now.end() && before == after->second) continue;
        text += fmt::format("{}{} was {}, is {}", text.empty() ? "" : "; ", name, shown(then, name),
                            shown(now, name));
    }
    return text;
}

bool is_work(const std::string& name) {
    return name.starts_with("part-") || name.starts_with("partial-");
}

// Figures of a start (jobs/generate/start_figures.h).
bool is_figures(const std::string& name) {
    return name.starts_with("figures-") && (name.ends_with(".json") || name.ends_with(".tmp"));
}

bool is_unfinished(const std::string& name) {
    return name.ends_with(".h5.tmp") && (is_work(name) || name.starts_with(kRunFile));
}

// A part, or tokens of records that were running.
bool holds_work(const fs::path& folder) {
    return !list_parts(folder).empty() || !list_partials(folder).empty();
}

// True: a run made this file; one that was set aside no longer counts.
bool is_ours(const fs::path& path) {
    const std::string name = path.filename().string();
    return is_unfinished(name) || name == kRunFile || name == kCrashLog || RunLock::is_lock(name) ||
           is_figures(name) || (is_work(name) && name.ends_with(".h5"));
}

std::vector<fs::path> entries(const fs::path& folder) {
    std::vector<fs::path> paths;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
        paths.push_back(entry->path());
    return paths;
}

// What a run that has ended calls its folder while it removes it.
fs::path done_folder(const fs::path& folder) {
    fs::path done = folder;
    done += ".done";
    return done;
}

// Parts first: a folder without parts is nobody's.
void remove_files(const fs::path& folder) {
    std::error_code ignored;
    std::vector<fs::path> files = entries(folder);
    std::ranges::partition(files,
                           [](const fs::path& file) { return is_work(file.filename().string()); });
    for (const fs::path& file : files)
        if (is_ours(file)) fs::remove(file, ignored);
    fs::remove(folder, ignored);  // fails where something else is in it
}

}  // namespace

std::string run_name(const h5::Attributes& fingerprint) {
    Digest digest;
    for (const auto& [name, value] : fingerprint) {
        digest.add(name);
        digest.add(h5::describe(value));
    }
    return digest.hex();
}

EarlierRun check_run(const fs::path& folder, const h5::Attributes& fingerprint) {
    std::error_code error;
    if (!fs::is_directory(folder, error) || !holds_work(folder)) return {};
    if (!fs::exists(folder / kRunFile, error))
        throw Error(ErrorKind::usage,
                    fmt::format("{} holds parts of an unknown run ({} is missing): choose another "
                                "name, or remove the folder",
                                folder.string(), kRunFile));
    const h5::Attributes then = read_run(folder / kRunFile);
    const std::string changed = difference(then, fingerprint);
    if (!changed.empty())
        throw Error(ErrorKind::usage,
                    fmt::format("{} holds parts of a run with other settings ({}): go on with "
                                "those, choose another name, or remove the folder",
                                folder.string(), changed));
    EarlierRun run{.name = run_name(then), .unsaid = {}};
    for (const auto& [name, value] : fingerprint)
        if (!then.contains(name)) run.unsaid.push_back(name);
    return run;
}

int64_t records_of_run(const fs::path& folder) {
    const auto records = h5::File::open(folder / kRunFile).attribute(kRecordsAttribute);
    const auto* count = records ? std::get_if<int64_t>(&*records) : nullptr;
    return count == nullptr ? -1 : *count;
}

RunFolder::RunFolder(const fs::path& folder, const h5::Attributes& fingerprint, int64_t records,
                     Locking locking)
    : path_(folder), run_(run_name(fingerprint)), lock_(folder, locking) {
    try {
        by_groups_before_ = RunLock::settle_groups(path_, locking);
    } catch (...) {  // what is there is still another's
        lock_.withdraw();
        throw;
    }
    try {
        EarlierRun earlier = check_run(path_, fingerprint);
        if (!earlier.name.empty()) run_ = std::move(earlier.name);
        unsaid_ = std::move(earlier.unsaid);
        remove_unfinished();
        remove_files(done_folder(path_));
        if (!holds_work(path_)) begin(fingerprint, records);
    } catch (...) {
        tidy();
        throw;
    }
}

// Nothing is done yet. What earlier starts say of their ends counts if they were of this run.
void RunFolder::begin(const h5::Attributes& fingerprint, int64_t records) {
    const fs::path file = path_ / kRunFile;
    std::error_code ignored;
    if (fs::exists(path_ / kCrashLog, ignored)) {
        const bool same =
            fs::exists(file, ignored) && seal_holds(file) && run_name(read_run(file)) == run_;
        if (!same) fs::remove(path_ / kCrashLog, ignored);
    }
    for (const fs::path& entry : entries(path_))  // of starts that kept nothing
        if (is_figures(entry.filename().string())) fs::remove(entry, ignored);
    write_run(file, fingerprint, records);
}

int64_t check_result(const fs::path& out, const std::string& kind,
                     const h5::Attributes& fingerprint) {
    const GenerationReader results(out, kind);
    h5::Attributes then;
    if (results.file().has_group("provenance")) {
        then = results.file().group("provenance").attributes();
        std::erase_if(then, [&](const auto& field) { return !fingerprint.contains(field.first); });
    }
    const std::string differing =
        then.empty() ? "it does not say how it was made" : difference(then, fingerprint);
    if (!results.is_complete() || !differing.empty())
        throw Error(
            ErrorKind::usage,
            fmt::format("--output-exists skip: {} holds results of another run: {}", out.string(),
                        results.is_complete() ? differing : "it is not complete"));
    const auto errors = results.file().attribute(schema::kErrorsAttribute);
    const auto* count = errors ? std::get_if<int64_t>(&*errors) : nullptr;
    return count == nullptr ? 0 : *count;
}

RunFolder::~RunFolder() {
    if (!removed_) tidy();
}

void RunFolder::tidy() noexcept {
    try {
        // Parts that another host has just committed may not be listed here yet.
        if (by_groups_ > 0) return;
        std::error_code ignored;
        if (!holds_work(path_) && !fs::exists(path_ / kCrashLog, ignored))
            remove();
        else if (lock_.computed_now() == 0)
            lock_.withdraw();
    } catch (const std::exception&) {
        // The folder is gone or cannot be read: there is nothing left to tidy.
    }
}

fs::path RunFolder::set_aside(const fs::path& part) {
    fs::path aside = part;
    aside += ".bad";
    std::error_code error;
    for (int number = 2; fs::exists(fs::symlink_status(aside, error)); ++number) {
        aside = part;
        aside += fmt::format(".bad-{}", number);
    }
    rename_durably(part, aside);
    return aside;
}

void RunFolder::remove_unfinished() const {
    std::error_code ignored;
    for (const fs::path& path : entries(path_))
        if (is_unfinished(path.filename().string())) fs::remove(path, ignored);
}

// The folder loses its name first: should this be interrupted, nobody takes the rest for a run.
void RunFolder::remove() {
    const fs::path done = done_folder(path_);
    remove_files(done);
    std::error_code error = std::make_error_code(std::errc::directory_not_empty);
    if (std::ranges::all_of(entries(path_), is_ours)) fs::rename(path_, done, error);
    // A network file system keeps a file that is open, and with it the folder.
    if (!error) lock_.release();
    remove_files(error ? path_ : done);
    removed_ = true;
}

}  // namespace quadrille
