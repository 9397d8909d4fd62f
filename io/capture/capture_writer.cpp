// SPDX-License-Identifier: Apache-2.0
#include "io/capture/capture_writer.h"

#include "io/digest.h"
#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <variant>

namespace quadrille {
namespace {

template <class T>
void add_values(Digest& digest, const std::vector<T>& values) {
    digest.add(std::as_bytes(std::span(values)));
}

h5::Attributes attributes(const CaptureLayout& layout) {
    h5::Attributes all = layout.identity;
    all["layers"] = layout.layers;
    all["tap"] = std::string("stream_mean");
    all["hidden_size"] = layout.hidden_size;
    all["vocab_size"] = layout.vocab_size;
    all["greedy"] = int64_t{layout.greedy ? 1 : 0};
    return all;
}

// Two captures of this name have the same rows.
std::string run_of(const CaptureLayout& layout, const CaptureText& text) {
    Digest digest;
    for (const auto& [name, value] : attributes(layout)) {
        digest.add(name);
        digest.add(h5::describe(value));
    }
    add_values(digest, text.tokens);
    add_values(digest, text.offsets);
    add_values(digest, text.loss_mask);
    add_values(digest, text.prompt_index);
    for (const std::string& kind : text.kind) digest.add(kind);
    return digest.hex();
}

template <class T>
void put(h5::Group& group, const char* name, h5::Element element, const std::vector<T>& values) {
    group.create_dataset(name, element, {std::ssize(values)}).write(0, std::span<const T>(values));
}

// The first write gives a dataset its room in the file.
template <class T>
h5::Dataset make_rows(h5::Group& group, const char* name, h5::Element element, int64_t rows,
                      int64_t columns) {
    h5::Dataset dataset = group.create_dataset(name, element, {rows, columns});
    const std::vector<T> row(static_cast<size_t>(columns), T{});
    dataset.write(0, std::span<const T>(row));
    return dataset;
}

}  // namespace

CaptureWriter::CaptureWriter(const std::filesystem::path& out, const CaptureLayout& layout,
                             const CaptureText& text, bool overwrite)
    : out_(out), partial_(out.string() + ".partial"), sequences_(text.sequences()) {
    require(sequences_ > 0 && text.offsets.back() == text.rows() &&
                text.loss_mask.size() == text.tokens.size() &&
                std::ssize(text.prompt_index) == sequences_ && std::ssize(text.kind) == sequences_,
            "a capture of whole sequences");
    const std::string run = run_of(layout, text);
    if (!take_up(run, overwrite)) make(layout, text, run);
}

// False: nothing is there that could be gone on with.
bool CaptureWriter::take_up(const std::string& run, bool overwrite) {
    std::error_code ignored;
    if (!std::filesystem::exists(partial_, ignored)) return false;
    try {
        file_.emplace(h5::File::open_write(partial_));
        const auto found = file_->attribute(schema::kRunAttribute);
        const auto* name = found ? std::get_if<std::string>(&*found) : nullptr;
        if (name != nullptr && *name == run) {
            open_rows(file_->group("capture"));
            done_ = rows_->done.read<int64_t>(0, 1)[0];
            if (done_ >= 0 && done_ <= sequences_) return true;
            done_ = 0;
        } else if (name != nullptr && !overwrite) {
            throw Error(ErrorKind::usage,
                        fmt::format("{}: belongs to another capture (other prompts, options, "
                                    "checkpoint or layers); --output-exists overwrite replaces it",
                                    partial_.string()));
        }
    } catch (const Error& error) {  // a process died while it made the file: no row is in it yet
        if (error.kind() != ErrorKind::input) throw;
    }
    rows_.reset();
    file_.reset();
    return false;
}

void CaptureWriter::open_rows(const h5::Group& group) {
    rows_.emplace(Datasets{.taps = group.dataset("taps"),
                           .hidden = group.dataset("final_hidden"),
                           .done = group.dataset("done")});
}

// The name of the run comes last: a file without it was never whole.
void CaptureWriter::make(const CaptureLayout& layout, const CaptureText& text,
                         const std::string& run) {
    file_.emplace(h5::File::create(partial_));
    schema::stamp(*file_, schema::kCapture);
    h5::Group group = file_->create_group("capture");
    group.set_attributes(attributes(layout));
    put(group, "tokens", h5::Element::i32, text.tokens);
    put(group, "offsets", h5::Element::i64, text.offsets);
    put(group, "loss_mask", h5::Element::u8, text.loss_mask);
    put(group, "prompt_index", h5::Element::i64, text.prompt_index);
    group.create_dataset("kind", h5::Element::string, {sequences_}).write_strings(0, text.kind);
    put(group, "done", h5::Element::i64, std::vector<int64_t>{0});
    make_rows<uint16_t>(group, "taps", h5::Element::u16, text.rows(), layout.tap_columns())
        .set_attribute("dtype", std::string("bf16"));
    make_rows<float>(group, "final_hidden", h5::Element::f32, text.rows(), layout.hidden_size);
    file_->flush();
    file_->set_attribute(schema::kRunAttribute, run);
    file_->flush();
    sync_file(partial_);
    open_rows(group);
}

void CaptureWriter::write(int64_t row, std::span<const uint16_t> taps,
                          std::span<const float> hidden) {
    rows_->taps.write(row, taps);
    rows_->hidden.write(row, hidden);
}

// Rows reach the disk before the number that vouches for them.
void CaptureWriter::commit(int64_t done) {
    file_->flush();
    sync_file(partial_);
    done_ = done;
    rows_->done.write(0, std::span<const int64_t>(&done_, 1));
    file_->flush();
    sync_file(partial_);
}

void CaptureWriter::finish() {
    require(done_ == sequences_, "a capture is finished when every sequence is written");
    rows_.reset();
    file_->close();
    file_.reset();
    seal_file(partial_);
    rename_durably(partial_, out_);
}

}  // namespace quadrille
