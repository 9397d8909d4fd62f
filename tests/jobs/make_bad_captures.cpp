// SPDX-License-Identifier: Apache-2.0
// Captures with one fault each, made of a good one: make_bad_captures CAPTURE FOLDER. All are
// complete and sealed, so that the fault itself has to be found.
#include "io/capture/capture_reader.h"
#include "io/capture/capture_writer.h"
#include "io/h5/schema.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

struct Content {
    CaptureLayout layout;
    CaptureText text;
    std::vector<uint16_t> taps;
    std::vector<float> hidden;
};

Content read(const fs::path& path) {
    Content content;
    h5::Attributes identity = h5::File::open(path).group("capture").attributes();
    content.layout.layers = std::get<std::vector<int64_t>>(identity.at("layers"));
    content.layout.hidden_size = std::get<int64_t>(identity.at("hidden_size"));
    content.layout.vocab_size = std::get<int64_t>(identity.at("vocab_size"));
    content.layout.greedy = true;
    for (const char* name : {"layers", "hidden_size", "vocab_size", "tap", "greedy", "version"}) {
        identity.erase(name);
    }
    content.layout.identity = std::move(identity);
    const CaptureReader reader(path, {.tap_layers = content.layout.layers,
                                      .hidden = content.layout.hidden_size,
                                      .vocab = content.layout.vocab_size,
                                      .checkpoint_digest = ""});
    CaptureText& text = content.text;
    for (int64_t s = 0; s < reader.sequences(); ++s) {
        const int64_t length = reader.length(s);
        text.tokens.insert(text.tokens.end(), reader.tokens_of(s), reader.tokens_of(s) + length);
        text.loss_mask.insert(text.loss_mask.end(), reader.mask_of(s), reader.mask_of(s) + length);
        text.offsets.push_back(text.rows());
        text.prompt_index.push_back(s);
        text.kind.emplace_back();
        const CaptureRows rows = reader.read(s, 0, length);
        content.taps.insert(content.taps.end(), rows.taps.begin(), rows.taps.end());
        content.hidden.insert(content.hidden.end(), rows.final_hidden.begin(),
                              rows.final_hidden.end());
    }
    return content;
}

void write(const fs::path& path, const Content& content) {
    CaptureWriter writer(path, content.layout, content.text, true);
    writer.write(0, content.taps, content.hidden);
    writer.commit(content.text.sequences());
    writer.finish();
}

// No sequence, as our writer makes none.
void write_empty(const fs::path& good, const fs::path& path) {
    h5::File file = h5::File::create(path);
    schema::stamp(file, schema::kCapture);
    {
        h5::Group group = file.create_group("capture");
        group.set_attributes(h5::File::open(good).group("capture").attributes());
        group.create_dataset("tokens", h5::Element::i32, {0});
        group.create_dataset("loss_mask", h5::Element::u8, {0});
        const int64_t zero = 0;
        for (const char* name : {"offsets", "done"}) {
            group.create_dataset(name, h5::Element::i64, {1}).write(0, std::span(&zero, 1));
        }
    }
    file.close();
}

void write_all(const fs::path& good, const fs::path& folder) {
    const Content whole = read(good);
    const auto changed = [&](const char* name, const std::function<void(Content&)>& change) {
        Content content = whole;
        change(content);
        write(folder / name, content);
    };
    changed("same.h5", [](Content&) {});
    // In every row, as any may be drawn.
    changed("nan_tap.h5", [](Content& c) {
        const auto width = static_cast<size_t>(c.layout.tap_columns());
        for (size_t i = 3; i < c.taps.size(); i += width) c.taps[i] = 0x7fc0;
    });
    changed("infinite_hidden.h5", [](Content& c) {
        const auto width = static_cast<size_t>(c.layout.hidden_size);
        for (size_t i = 5; i < c.hidden.size(); i += width) {
            c.hidden[i] = std::numeric_limits<float>::infinity();
        }
    });
    changed("other_checkpoint.h5", [](Content& c) {
        c.layout.identity["checkpoint_digest"] = std::string("0123456789abcdef");
    });
    changed("other_layers.h5", [](Content& c) { c.layout.layers.back() += 1; });
    changed("nothing_generated.h5",
            [](Content& c) { c.text.loss_mask.assign(c.text.loss_mask.size(), 0); });
    changed("token.h5",
            [](Content& c) { c.text.tokens[7] = static_cast<int32_t>(c.layout.vocab_size); });
    changed("one_sequence.h5", [](Content& c) {
        c.text.offsets.resize(2);
        const auto rows = static_cast<size_t>(c.text.offsets.back());
        c.text.tokens.resize(rows);
        c.text.loss_mask.resize(rows);
        c.text.prompt_index.resize(1);
        c.text.kind.resize(1);
        c.taps.resize(rows * static_cast<size_t>(c.layout.tap_columns()));
        c.hidden.resize(rows * static_cast<size_t>(c.layout.hidden_size));
    });
    write_empty(good, folder / "empty.h5");
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    try {
        if (argc != 3) throw std::runtime_error("make_bad_captures CAPTURE FOLDER");
        quadrille::write_all(argv[1], argv[2]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
