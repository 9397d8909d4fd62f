// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/inspect.h"

#include "io/h5/h5.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/h5/trial.h"
#include "io/results/result_files.h"
#include "jobs/files/checkpoint_summary.h"
#include "jobs/files/file_summary.h"
#include "jobs/files/generation_totals.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

// OUT.parts of a run that has not finished.
std::string describe_parts(const fs::path& folder, int64_t limit) {
    refuse_broken_seal(folder / "run.h5");
    std::string out = describe_any(folder / "run.h5", schema::kRun);
    for (const fs::path& part : list_parts(folder)) {
        refuse_broken_seal(part);
        out += '\n' + describe_generations(part, schema::kPart, limit);
    }
    return out;
}

// The HDF5 files that a report on `path` reads.
std::vector<fs::path> files_of(const fs::path& path) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) return {path};
    if (!fs::exists(path / "run.h5", ignored)) return {};
    std::vector<fs::path> files = list_parts(path);
    files.push_back(path / "run.h5");
    return files;
}

std::string json_of(const fs::path& path) {
    refuse_broken_seal(path);
    std::vector<std::string> notices;
    const std::string kind = schema::kind_of(h5::File::open(path), notices);
    if (kind != schema::kGenerations && kind != schema::kScores && kind != schema::kPart) {
        throw Error(ErrorKind::usage,
                    fmt::format("--json: {}: expected generations, found {}", path.string(), kind));
    }
    return generations_json(GenerationReader(path, kind), kind);
}

}  // namespace

std::string describe_path(const fs::path& path, int64_t limit) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored))
        return fs::exists(path / "run.h5", ignored) ? describe_parts(path, limit)
                                                    : describe_checkpoint(path);
    refuse_broken_seal(path);
    std::vector<std::string> notices;
    const std::string kind = schema::kind_of(h5::File::open(path), notices);
    if (kind == schema::kPrompts) return describe_prompts(path, limit);
    if (kind == schema::kGenerations || kind == schema::kScores || kind == schema::kPart)
        return describe_generations(path, kind, limit);
    return describe_any(path, kind);
}

int run_inspect(const InspectOptions& options) {
    for (const std::string& path : options.paths) try_files(files_of(path));
    for (size_t i = 0; i < options.paths.size(); ++i) {
        const std::string text =
            options.json ? json_of(options.paths[i])
                         : (i == 0 ? "" : "\n") + describe_path(options.paths[i], options.limit);
        std::fputs(text.c_str(), stdout);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(ErrorKind::io, "cannot write to standard output");
    return 0;
}

}  // namespace quadrille
