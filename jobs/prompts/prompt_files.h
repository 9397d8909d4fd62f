// SPDX-License-Identifier: Apache-2.0
// The prompts of a run as prompts.h5 files, whatever they were given as: text lines (.txt), JSON
// lines (.jsonl, .ndjson) and texts from the command line are packed into a temporary folder first,
// by the rules of `quadrille pack`.
#pragma once

#include "jobs/prompts/prompt_source_options.h"

#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {

class PromptFiles {
  public:
    // One file for each of options.prompts, then one for all of options.prompt_texts. `target`: the
    // checkpoint whose tokenizer is used where lines need one. Errors: those of pack.
    PromptFiles(const PromptSourceOptions& options, const std::string& target);

    const std::vector<std::string>& paths() const { return paths_; }
    const std::vector<std::string>& notices() const { return notices_; }
    // Removes the temporary files once readers have them open: a process that dies leaves none.
    void discard() { scratch_.remove(); }

  private:
    // A folder of our own, made when first asked for, removed at the end.
    class Scratch {
      public:
        Scratch() = default;
        ~Scratch();
        Scratch(const Scratch&) = delete;
        Scratch& operator=(const Scratch&) = delete;
        const std::filesystem::path& folder();
        void remove();

      private:
        std::filesystem::path folder_;
    };
    std::string pack_lines(const std::string& input, const std::string& target);
    std::string pack_texts(const std::vector<std::string>& texts);
    std::filesystem::path scratch_file();

    Scratch scratch_;
    std::vector<std::string> paths_;
    std::vector<std::string> notices_;
};

// /prompts/kind of each file, by record; empty where a file has none.
std::vector<std::vector<std::string>> read_kinds(const std::vector<std::string>& paths);

}  // namespace quadrille
