// SPDX-License-Identifier: Apache-2.0
// Prompts files made by tests, good and bad, and the reader that takes or refuses them.
#pragma once

#include "io/h5/schema.h"
#include "io/prompts/prompt_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

namespace quadrille::test {

// A prompts file under construction: three records of two, one and three tokens unless changed.
class PromptsMaker {
  public:
    explicit PromptsMaker(const std::filesystem::path& path)
        : file_(h5::File::create(path)), prompts_(file_.create_group("prompts")) {
        schema::stamp(file_, schema::kPrompts);
    }

    PromptsMaker& ints(const std::string& name, const std::vector<int64_t>& values) {
        prompts_.create_dataset(name, h5::Element::i64, {std::ssize(values)})
            .write<int64_t>(0, values);
        return *this;
    }
    PromptsMaker& floats(const std::string& name, const std::vector<double>& values) {
        prompts_.create_dataset(name, h5::Element::f64, {std::ssize(values)})
            .write<double>(0, values);
        return *this;
    }
    PromptsMaker& strings(const std::string& name, const std::vector<std::string>& values) {
        prompts_.create_dataset(name, h5::Element::string, {std::ssize(values)})
            .write_strings(0, values);
        return *this;
    }
    PromptsMaker& attribute(const std::string& name, const h5::Value& value) {
        prompts_.set_attribute(name, value);
        return *this;
    }
    PromptsMaker& tokens() {
        return ints("tokens", {5, 6, 7, 8, 9, 10}).ints("offsets", {0, 2, 3, 6});
    }
    h5::File& file() { return file_; }
    h5::Group& group() { return prompts_; }

  private:
    h5::File file_;
    h5::Group prompts_;
};

class PromptsFileTest : public testing::Test {
  protected:
    using Make = std::function<void(PromptsMaker&)>;

    std::filesystem::path make(const Make& fill) {
        const auto path = folder_ / fmt::format("prompts{}.h5", ++files_);
        PromptsMaker maker(path);
        fill(maker);
        return path;
    }
    PromptReader open(const Make& fill, const RecordOptions& flags = {},
                      const std::set<std::string>& honoured = PromptOptions::names()) {
        return PromptReader(make(fill), flags, honoured);
    }
    void rejects(std::initializer_list<std::string> parts, const Make& fill,
                 const std::set<std::string>& honoured = PromptOptions::names()) {
        expect_error(ErrorKind::input, parts, [&] { open(fill, {}, honoured); });
    }
    static std::vector<std::string> errors(const std::vector<Prompt>& prompts) {
        std::vector<std::string> out;
        for (const Prompt& prompt : prompts) out.push_back(prompt.error);
        return out;
    }

    TempFolder folder_;
    int files_ = 0;
};

}  // namespace quadrille::test
