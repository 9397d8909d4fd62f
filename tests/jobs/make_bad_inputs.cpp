// SPDX-License-Identifier: Apache-2.0
// Writes prompts files, good and bad, for cli_cases.py: make_bad_inputs FOLDER. One file a defect,
// named after it; every bad file is good.h5 with one thing changed.
#include "io/h5/h5.h"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using h5::Element;

// Contents of a prompts file; the makers below change one thing.
struct Content {
    h5::Attributes root = {{"quadrille_format", int64_t{1}}, {"kind", std::string("prompts")}};
    bool has_tokens = true;
    bool has_offsets = true;
    std::vector<int64_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    std::vector<int64_t> offsets = {0, 2, 5, 9};
    std::vector<std::string> text;
    bool has_text = false;
    std::function<void(h5::Group&)> more = [](h5::Group&) {};
};

template <typename T>
void put(h5::Group& group, const std::string& name, Element element, const std::vector<T>& values) {
    h5::Dataset data = group.create_dataset(name, element, {static_cast<int64_t>(values.size())});
    data.write<T>(0, values);
}

void put_strings(h5::Group& group, const std::string& name,
                 const std::vector<std::string>& values) {
    h5::Dataset data =
        group.create_dataset(name, Element::string, {static_cast<int64_t>(values.size())});
    data.write_strings(0, values);
}

void write(const std::filesystem::path& path, const Content& content) {
    h5::File file = h5::File::create(path);
    {
        h5::Group prompts = file.create_group("prompts");
        if (content.has_tokens) put(prompts, "tokens", Element::i64, content.tokens);
        if (content.has_offsets) put(prompts, "offsets", Element::i64, content.offsets);
        if (content.has_text) put_strings(prompts, "text", content.text);
        content.more(prompts);
    }
    file.set_attributes(content.root);
    file.close();
}

class Folder {
  public:
    explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}

    void make(const std::string& name, const std::function<void(Content&)>& change) const {
        Content content;
        change(content);
        write(path_ / (name + ".h5"), content);
    }
    // One more column or attribute in a good file.
    void with(const std::string& name, const std::function<void(h5::Group&)>& more) const {
        make(name, [&](Content& c) { c.more = more; });
    }

  private:
    std::filesystem::path path_;
};

void text_file(Content& c, std::vector<std::string> text) {
    c.has_tokens = c.has_offsets = false;
    c.has_text = true;
    c.text = std::move(text);
}

void file_level(const Folder& folder) {
    folder.make("good", [](Content&) {});
    folder.make("no-records", [](Content& c) { c.tokens = {}, c.offsets = {0}; });
    folder.make("no-stamp", [](Content& c) { c.root = {}; });
    folder.make("newer-format", [](Content& c) { c.root["quadrille_format"] = int64_t{2}; });
    folder.make("format-text", [](Content& c) { c.root["quadrille_format"] = std::string("1"); });
    folder.make("other-kind", [](Content& c) { c.root["kind"] = std::string("generations"); });
    folder.make("both", [](Content& c) { c.has_text = true, c.text = {"a", "b", "c"}; });
    folder.make("neither", [](Content& c) { c.has_tokens = c.has_offsets = false; });
    folder.make("no-offsets", [](Content& c) { c.has_offsets = false; });
    folder.make("no-tokens", [](Content& c) { c.has_tokens = false; });
    folder.make("offsets-start", [](Content& c) { c.offsets = {1, 2, 5, 9}; });
    folder.make("offsets-fall", [](Content& c) { c.offsets = {0, 5, 2, 9}; });
    folder.make("offsets-end", [](Content& c) { c.offsets = {0, 2, 5, 8}; });
    folder.make("offsets-huge", [](Content& c) { c.offsets = {0, 2, INT64_MAX, 9}; });
    folder.make("offsets-empty", [](Content& c) { c.offsets = {}; });
    folder.make("tokens-float", [](Content& c) {
        c.has_tokens = false;
        c.more = [](h5::Group& g) { put<float>(g, "tokens", Element::f32, std::vector<float>(9)); };
    });
    folder.make("tokens-2d", [](Content& c) {
        c.has_tokens = false;
        c.more = [](h5::Group& g) { g.create_dataset("tokens", Element::i32, {3, 3}); };
    });
    folder.make("offsets-float", [](Content& c) {
        c.has_offsets = false;
        c.more = [](h5::Group& g) { put<double>(g, "offsets", Element::f64, {0, 2, 5, 9}); };
    });
    folder.make("text-numbers", [](Content& c) {
        c.has_tokens = c.has_offsets = false;
        c.more = [](h5::Group& g) { put<int64_t>(g, "text", Element::i64, {1, 2, 3}); };
    });
    folder.make("text", [](Content& c) {
        text_file(c, {"The king said", "int main(", "Blessed"});
    });
}

void columns(const Folder& folder) {
    const auto ints = [&](const std::string& file, const std::string& name,
                          const std::vector<int64_t>& values) {
        folder.with(file, [=](h5::Group& g) { put(g, name, Element::i64, values); });
    };
    const auto floats = [&](const std::string& file, const std::string& name,
                            const std::vector<double>& values) {
        folder.with(file, [=](h5::Group& g) { put(g, name, Element::f64, values); });
    };
    ints("column-length", "max_new_tokens", {4, 4});
    floats("column-type", "max_new_tokens", {4, 4, 4});
    ints("id-twice", "id", {7, 8, 7});
    ints("id-length", "id", {7, 8});
    floats("id-float", "id", {7, 8, 9});
    ints("temperature-type", "temperature", {0, 1, 0});
    floats("logprobs-type", "logprobs", {-1, 3, -1});
    folder.with("stop-text", [](h5::Group& g) {
        put_strings(g, "stop_text", {"end"});
        put<int64_t>(g, "stop_text_offsets", Element::i64, {0, 0, 1, 1});
    });
    folder.with("stop-offsets", [](h5::Group& g) {
        put<int64_t>(g, "stop_tokens", Element::i64, {5});
        put<int64_t>(g, "stop_tokens_offsets", Element::i64, {0, 1, 1});
    });
    folder.with("stop-alone",
                [](h5::Group& g) { put<int64_t>(g, "stop_tokens", Element::i64, {5}); });
    folder.with("temperature-attribute",
                [](h5::Group& g) { g.set_attribute("temperature", -0.5); });
    folder.with("top-p-attribute", [](h5::Group& g) { g.set_attribute("top_p", 1.5); });
    folder.with("seed-attribute", [](h5::Group& g) { g.set_attribute("seed", std::string("x")); });
    folder.with("attribute-type",
                [](h5::Group& g) { g.set_attribute("max_new_tokens", std::string("many")); });
    ints("unknown-column", "colour", {1, 2, 3});
}

void record_level(const Folder& folder) {
    folder.make("record-empty", [](Content& c) { c.offsets = {0, 5, 5, 9}; });
    folder.make("record-token-high", [](Content& c) { c.tokens[3] = 768; });
    folder.make("record-token-negative", [](Content& c) { c.tokens[3] = -1; });
    folder.make("record-token-huge", [](Content& c) { c.tokens[3] = INT64_MAX; });
    folder.make("record-too-long", [](Content& c) {
        c.tokens.assign(2107, 1);
        c.offsets = {0, 2, 2102, 2107};
    });
    folder.make("record-utf8", [](Content& c) {
        text_file(c, {"The king", "\xff\xfe", "Blessed"});
    });
    folder.with("record-temperature", [](h5::Group& g) {
        put<double>(g, "temperature", Element::f64, {0.5, -0.5, 0.5});
    });
    folder.with("record-top-p", [](h5::Group& g) {
        put<double>(g, "top_p", Element::f64, {1.0, 0.0, 0.5});
    });
    folder.with("record-logprobs", [](h5::Group& g) {
        put<int64_t>(g, "logprobs", Element::i64, {2, 257, -1});
    });
    folder.with("record-limit", [](h5::Group& g) {
        put<int64_t>(g, "max_new_tokens", Element::i64, {4, -2, 4});
    });
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    try {
        if (argc != 2) return 2;
        const quadrille::Folder folder{std::filesystem::path(argv[1])};
        quadrille::file_level(folder);
        quadrille::columns(folder);
        quadrille::record_level(folder);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "make_bad_inputs: %s\n", error.what());
        return 1;
    }
}
