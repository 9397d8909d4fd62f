// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/inspect.h"

#include "io/h5/h5.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/h5/trial.h"
#include "jobs/common/table.h"
#include "jobs/files/checkpoint_summary.h"
#include "jobs/files/file_summary.h"
#include "jobs/files/generation_totals.h"
#include "jobs/files/run_view.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

// The parts of a run that has not finished: all of them together, then each.
std::string describe_run(const RunView& view, int64_t limit) {
    refuse_broken_seal(view.path / "run.h5");
    for (const fs::path& part : view.files) refuse_broken_seal(part);
    std::string out =
        describe_parts(view) + '\n' + describe_any(view.path / "run.h5", schema::kRun);
    for (const fs::path& part : view.files) {
        out += '\n' + describe_generations(part, schema::kPart, limit);
    }
    return out;
}

// The HDF5 files that a report on `path` reads.
std::vector<fs::path> files_of(const fs::path& path) {
    std::error_code ignored;
    if (!is_run(path) && fs::is_directory(path, ignored)) return {};
    const RunView view = view_run(path);
    std::vector<fs::path> files = view.files;
    if (view.parts) files.push_back(view.path / "run.h5");
    return files;
}

std::string json_of(const fs::path& path) {
    const RunView view = view_run(path);
    for (const fs::path& file : view.files) {
        refuse_broken_seal(file);
        const std::string kind = generations_kind(file);
        if (kind == schema::kGenerations || kind == schema::kScores || kind == schema::kPart) {
            continue;
        }
        throw Error(ErrorKind::usage,
                    fmt::format("--json: {}: expected generations, found {}", path.string(), kind));
    }
    return generations_json(view);
}

// A line an output, where there are several.
std::string overview(const std::vector<std::string>& paths) {
    Table table("lrrrrl");
    table.row({"output", "done", "of", "errors", "tokens", "accept length"});
    for (const std::string& path : paths) {
        std::error_code ignored;
        if (!is_run(path) && fs::is_directory(path, ignored)) continue;  // a checkpoint
        const RunView view = view_run(path);
        if (!view.parts) {
            const std::string kind = generations_kind(view.path);
            if (kind != schema::kGenerations && kind != schema::kScores) continue;
        }
        table.row(overview_row(view));
    }
    return table.text();
}

}  // namespace

std::string describe_path(const fs::path& path, int64_t limit) {
    std::error_code ignored;
    if (is_run(path)) return describe_run(view_run(path), limit);
    if (fs::is_directory(path, ignored)) return describe_checkpoint(path);
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
    if (options.paths.size() > 1 && !options.json) {
        std::fputs(('\n' + overview(options.paths)).c_str(), stdout);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(ErrorKind::io, "cannot write to standard output");
    return 0;
}

}  // namespace quadrille
