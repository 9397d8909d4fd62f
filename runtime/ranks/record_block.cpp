// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/record_block.h"

#include "kernels/error.h"

#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace quadrille {

namespace {

// The same walk over a record's fields writes and reads it, so that the two cannot differ.
class Writer {
  public:
    template <class T>
    void operator()(const T& value) {
        if constexpr (std::is_trivially_copyable_v<T>) {
            append(&value, sizeof value);
        } else {
            (*this)(std::ssize(value));
            if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
                append(value.data(), value.size() * sizeof(typename T::value_type));
            } else {
                for (const auto& element : value) (*this)(element);
            }
        }
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

  private:
    void append(const void* data, size_t size) {
        const auto* first = static_cast<const std::byte*>(data);
        bytes_.insert(bytes_.end(), first, first + size);
    }
    std::vector<std::byte> bytes_;
};

class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

    template <class T>
    void operator()(T& value) {
        if constexpr (std::is_trivially_copyable_v<T>) {
            take(&value, sizeof value);
        } else {
            ptrdiff_t size = 0;
            (*this)(size);
            require(size >= 0 && static_cast<size_t>(size) <= left_.size(),
                    "a record block is whole");
            value.resize(static_cast<size_t>(size));
            if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
                take(value.data(), value.size() * sizeof(typename T::value_type));
            } else {
                for (auto& element : value) (*this)(element);
            }
        }
    }

  private:
    void take(void* to, size_t size) {
        require(size <= left_.size(), "a record block is whole");
        if (size > 0) std::memcpy(to, left_.data(), size);
        left_ = left_.subspan(size);
    }
    std::span<const std::byte> left_;
};

template <class Visitor, class P>
void visit(Visitor& field, P& prompt) {
    field(prompt.index);
    field(prompt.source);
    field(prompt.sample);
    field(prompt.tokens);
    field(prompt.error);
    auto& kept = prompt.kept;
    field(kept.tokens);
    field(kept.chosen_logprobs);
    field(kept.top_ids);
    field(kept.top_logprobs);
    auto& acceptance = kept.acceptance;
    for (auto* count :
         {&acceptance.steps, &acceptance.drafted, &acceptance.accepted, &acceptance.emitted}) {
        field(*count);
    }
    field(acceptance.by_position);
    field(acceptance.histogram);
    field(acceptance.trace);
    auto& options = prompt.options;
    field(options.max_new_tokens);
    field(options.temperature);
    field(options.top_p);
    field(options.top_k);
    field(options.min_p);
    field(options.repetition_penalty);
    field(options.seed);
    field(options.logprobs);
    field(options.ignore_eos);
    field(options.score_from);
    field(options.stop_tokens);
    field(options.stop_text);
}

}  // namespace

std::vector<std::byte> pack_records(const std::vector<Prompt>& prompts) {
    Writer writer;
    writer(std::ssize(prompts));
    for (const Prompt& prompt : prompts) visit(writer, prompt);
    return writer.take();
}

std::vector<Prompt> unpack_records(const std::vector<std::byte>& block) {
    Reader reader(block);
    ptrdiff_t count = 0;
    reader(count);
    std::vector<Prompt> prompts(static_cast<size_t>(count));
    for (Prompt& prompt : prompts) visit(reader, prompt);
    return prompts;
}

std::vector<Prompt> broadcast_records(Communicator& comm, int root, std::vector<Prompt> prompts) {
    if (comm.size() == 1) return prompts;
    std::vector<std::byte> block;
    if (comm.rank() == root) block = pack_records(prompts);
    int64_t size = std::ssize(block);
    comm.broadcast_host(&size, sizeof size, root);
    block.resize(static_cast<size_t>(size));
    comm.broadcast_host(block.data(), size, root);
    return comm.rank() == root ? std::move(prompts) : unpack_records(block);
}

}  // namespace quadrille
