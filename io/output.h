// SPDX-License-Identifier: Apache-2.0
// The name of an output, looked at before anything is computed or written: nothing but an earlier
// output of the same kind is ever replaced.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

struct OutputRules {
    std::string option = "--out";              // for messages
    bool overwrite = false;                    // an earlier output of the same kind may be replaced
    std::vector<std::filesystem::path> taken;  // the job's inputs and its other outputs
    // Why a file that is there is not of the output's kind; "": it is. Absent: none is.
    std::function<std::string(const std::filesystem::path&)> objection;
};

// The file that `name` stands for, links followed, also one that does not exist yet. Error{usage}:
// it names no file, or a folder, a device, a pipe, a file of another kind, one that may not be
// replaced, or one of `taken`, which the files that a job makes beside its output (.tmp, .parts)
// must not be either. Error{io}: its folder is missing or not writable. Writes nothing.
std::filesystem::path output_path(const std::filesystem::path& name, const OutputRules& rules);

// `path` without the symbolic link, or chain of them, that it is. Error{io}: a circle of links.
std::filesystem::path follow_links(std::filesystem::path path);

// Objections to files that do not start as JSON does: `expected` says what they should be; `keys`
// are those of the object that a single document must hold, none for JSON lines.
std::string not_json(const std::filesystem::path& path, const std::string& expected,
                     const std::vector<std::string>& keys);

// Writes `text` to PATH.tmp, which then takes the name. Error{io}.
void replace_file(const std::filesystem::path& path, std::string_view text);

}  // namespace quadrille
