// SPDX-License-Identifier: Apache-2.0
// Writes prompts.h5 (io/FORMAT.md). Records are added one by one and written in batches to
// OUT.partial, which takes the name OUT when the file is complete: whoever sees OUT sees all of it.
#pragma once

#include "io/h5/h5.h"
#include "io/prompts/option_table.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace quadrille {

// One record to be written. Texts hold no NUL, where HDF5's strings end.
struct PromptRecord {
    std::variant<std::string, std::vector<int32_t>> prompt;  // text or tokens
    std::variant<std::monostate, int64_t, std::string> id;
    // In the order of the tables in io/prompts/option_table.h; nullopt: the column's default
    // marker.
    std::array<std::optional<int64_t>, options::kInts.size()> ints;
    std::array<std::optional<double>, options::kFloats.size()> floats;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_text;
    bool completion = false;  // asked for as a completion of OpenAI's, not as a chat
    bool chat = false;        // made by the chat template
    // Text that `score` scores behind the prompt, which is text too; "": none. Whoever writes the
    // record makes tokens and score_from of both (join_continuation).
    std::string continuation;
    std::string kind;   // a name that statistics go by; "": none
    std::string error;  // why it cannot be run: its prompt and options count for nothing

    bool is_text() const { return prompt.index() == 0; }
};

// What a file holds beside the prompts: known before its first record.
struct PromptColumns {
    enum class Id : uint8_t { none, integers, strings };

    bool text = true;  // false: tokens
    Id id = Id::none;
    std::set<std::string> options;  // names of io/prompts/option_table.h
    bool completion = false;
    bool kind = false;
    bool error = false;
    int64_t expected = 0;  // records that will come, about: sizes of chunks; 0: nobody knows

    // Adds what `record` has beside prompt and id.
    void note(const PromptRecord& record);
};

class PromptWriter {
  public:
    // Error{io} when the file cannot be made.
    PromptWriter(const std::filesystem::path& out, const PromptColumns& columns);
    ~PromptWriter();  // a file that was not finished leaves nothing behind
    PromptWriter(const PromptWriter&) = delete;
    PromptWriter& operator=(const PromptWriter&) = delete;

    // The prompt must be of the file's form, unless there is an error; integer ids are written as
    // text into a string column.
    void add(PromptRecord record);
    // Writes what is left, closes, seals, syncs and renames. Nothing may be added afterwards.
    void finish();
    int64_t records() const { return records_; }

  private:
    void discard() noexcept;  // the unfinished file
    void create_columns();
    void flush();
    void flush_prompts();
    void flush_remarks();
    void flush_options();
    h5::Dataset& column(const std::string& name) { return datasets_.at(name); }

    std::filesystem::path out_;
    std::filesystem::path partial_;
    PromptColumns columns_;
    std::optional<h5::File> file_;
    std::optional<h5::Group> prompts_;
    std::map<std::string, h5::Dataset> datasets_;
    std::vector<PromptRecord> batch_;
    int64_t batch_bytes_ = 0;
    int64_t records_ = 0;
    int64_t tokens_ = 0;  // written so far, as are the next two
    int64_t stop_tokens_ = 0;
    int64_t stop_texts_ = 0;
};

}  // namespace quadrille
