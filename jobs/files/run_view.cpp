// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/run_view.h"

#include "io/results/result_files.h"
#include "io/results/run_folder.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <system_error>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

bool holds_run(const fs::path& folder) {
    std::error_code ignored;
    return fs::is_directory(folder, ignored) && fs::exists(folder / "run.h5", ignored);
}

// "" where `path` is no folder of parts and stands for none.
fs::path parts_of(const fs::path& path) {
    std::error_code ignored;
    if (holds_run(path)) return path;
    if (!fs::exists(path, ignored) && holds_run(parts_folder(path))) return parts_folder(path);
    return {};
}

}  // namespace

std::string RunView::progress(int64_t done) const {
    return fmt::format("{}: {} of {} records done", path.string(), done,
                       records < 0 ? "an unknown number of" : fmt::to_string(records));
}

bool is_run(const fs::path& path) {
    return !parts_of(path).empty();
}

RunView view_run(const fs::path& path) {
    const fs::path folder = parts_of(path);
    std::error_code ignored;
    if (!folder.empty()) {
        return {.path = folder,
                .files = list_parts(folder),
                .parts = true,
                .records = records_of_run(folder)};
    }
    if (fs::is_directory(path, ignored)) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected generations or the parts of a run, found a folder "
                                "without run.h5",
                                path.string()));
    }
    return {.path = path, .files = {path}};
}

}  // namespace quadrille
