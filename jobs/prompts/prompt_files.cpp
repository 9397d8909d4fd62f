// SPDX-License-Identifier: Apache-2.0
#include "jobs/prompts/prompt_files.h"

#include "io/files.h"
#include "io/h5/h5.h"
#include "io/h5/trial.h"
#include "io/prompts/prompt_lines.h"
#include "io/prompts/prompt_writer.h"
#include "io/text/tokenizer.h"
#include "io/text/utf8.h"
#include "jobs/files/pack.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <stdlib.h>
#include <system_error>

namespace quadrille {

namespace fs = std::filesystem;

namespace {

bool holds_lines(const fs::path& path) {
    const fs::path suffix = path.extension();
    return suffix == ".txt" || suffix == ".TXT" || line_format_of(path) == LineFormat::jsonl;
}

}  // namespace

PromptFiles::Scratch::~Scratch() {
    remove();
}

void PromptFiles::Scratch::remove() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
    folder_.clear();
}

const fs::path& PromptFiles::Scratch::folder() {
    if (folder_.empty()) {
        std::error_code code;
        const fs::path parent = fs::temp_directory_path(code);
        if (code) {
            const char* const given = std::getenv("TMPDIR");
            throw Error(ErrorKind::io,
                        fmt::format("TMPDIR: expected a folder for temporary files, found {}: {}",
                                    given == nullptr ? "/tmp" : given, code.message()));
        }
        std::string name = (parent / "quadrille-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            throw Error(ErrorKind::io, fmt::format("{}: cannot create a temporary folder: {}",
                                                   parent.string(), system_reason(errno)));
        }
        folder_ = name;
    }
    return folder_;
}

PromptFiles::PromptFiles(const PromptSourceOptions& options, const std::string& target) {
    std::vector<fs::path> given;
    for (const std::string& input : options.prompts)
        if (!holds_lines(input)) given.emplace_back(input);
    try_files(given);
    for (const std::string& input : options.prompts) {
        paths_.push_back(holds_lines(input) ? pack_lines(input, target) : input);
    }
    if (!options.prompt_texts.empty()) paths_.push_back(pack_texts(options.prompt_texts));
}

fs::path PromptFiles::scratch_file() {
    return scratch_.folder() / fmt::format("{}.h5", paths_.size());
}

std::string PromptFiles::pack_lines(const std::string& input, const std::string& target) {
    PackOptions options;
    options.inputs = {input};
    options.out = scratch_file().string();
    if (has_tokenizer(target) && text_supported()) options.target = target;
    const PackSummary summary = pack(options);
    notices_.insert(notices_.end(), summary.notices.begin(), summary.notices.end());
    return options.out;
}

std::string PromptFiles::pack_texts(const std::vector<std::string>& texts) {
    const fs::path out = scratch_file();
    PromptWriter writer(out, {});
    for (const std::string& text : texts) {
        if (find_broken_utf8(text) != std::string::npos) {
            throw Error(ErrorKind::usage, "--prompt: expected UTF-8, found a broken sequence");
        }
        PromptRecord record;
        record.prompt = text;
        writer.add(std::move(record));
    }
    writer.finish();
    return out.string();
}

std::vector<std::vector<std::string>> read_kinds(const std::vector<std::string>& paths) {
    std::vector<std::vector<std::string>> kinds;
    for (const std::string& path : paths) {
        const h5::File file = h5::File::open(path);
        kinds.emplace_back();
        if (!file.has("prompts/kind")) continue;
        const h5::Dataset dataset = file.dataset("prompts/kind");
        kinds.back() = dataset.read_strings(0, dataset.rows());
    }
    return kinds;
}

}  // namespace quadrille
