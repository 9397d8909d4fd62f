// SPDX-License-Identifier: Apache-2.0
// Packs lines and reads back what became of them: records, refusals of the file, errors of a
// record.
#pragma once

#include "io/prompts/prompt_reader.h"
#include "jobs/files/pack.h"
#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace quadrille::test {

class Pack : public testing::Test {
  protected:
    PackOptions options(std::vector<std::string> names) const {
        PackOptions result;
        for (const std::string& name : names) result.inputs.push_back((folder_ / name).string());
        result.out = (folder_ / "out.h5").string();
        return result;
    }
    // Packs one file and reads back what it became.
    std::vector<Prompt> packed(const std::string& name, const std::string& content) {
        folder_.write(name, content);
        PackOptions pack_options = options({name});
        pack_options.output_exists = OutputExists::overwrite;
        summary_ = pack(pack_options);
        return read_back();
    }
    std::vector<Prompt> read_back() {
        reader_.reset();
        reader_.emplace(folder_ / "out.h5", RecordOptions());
        EXPECT_EQ(reader_->notices(), std::vector<std::string>{});
        EXPECT_EQ(reader_->record_count(), summary_.records);
        return reader_->read(0, reader_->record_count());
    }
    void refused(const std::string& content, std::initializer_list<std::string> parts) {
        folder_.write("in.jsonl", content);
        std::filesystem::remove(folder_ / "out.h5");
        expect_error(ErrorKind::input, parts, [&] { pack(options({"in.jsonl"})); });
        EXPECT_FALSE(std::filesystem::exists(folder_ / "out.h5"));
        EXPECT_FALSE(std::filesystem::exists(folder_ / "out.h5.partial"));
    }

    // The line becomes a record that carries the error; the record after it is untouched.
    void failed(const std::string& line, std::initializer_list<std::string> parts) {
        const bool batch = line.find("custom_id") != std::string::npos;
        const auto prompts = packed("in.jsonl", line + (line.ends_with('\n') ? "" : "\n") +
                                                    (batch ? R"({"custom_id": "good", "body": )"
                                                             R"({"prompt": "fine"}})"
                                                           : R"({"text": "fine"})"));
        ASSERT_EQ(prompts.size(), 2u) << line;
        for (const std::string& part : parts) {
            EXPECT_NE(prompts[0].error.find(part), std::string::npos)
                << prompts[0].error << " lacks " << part;
        }
        EXPECT_EQ(prompts[0].text, "");
        EXPECT_EQ(prompts[1].error, "");
        EXPECT_EQ(prompts[1].text, "fine");
        ASSERT_FALSE(summary_.notices.empty());
        EXPECT_NE(summary_.notices[0].find("1 records have an error"), std::string::npos);
    }

    TempFolder folder_;
    PackSummary summary_;
    std::optional<PromptReader> reader_;
};

}  // namespace quadrille::test
