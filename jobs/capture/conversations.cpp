// SPDX-License-Identifier: Apache-2.0
#include "jobs/capture/conversations.h"

#include "io/h5/schema.h"
#include "io/results/generation_reader.h"
#include "io/text/tokenizer.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kSlice = 256;
// Fields of the provenance of generations that decided them. Paths, times and machines are left
// out, so that a capture of the same rows is the same file.
constexpr const char* kIdentity[] = {"backend",
                                     "checkpoint_digest",
                                     "config_digest",
                                     "decoded_form",
                                     "tokenizer_digest",
                                     "template_digest",
                                     "k",
                                     "max_new_tokens",
                                     "prompts_digest",
                                     "temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "seed",
                                     "samples",
                                     "shard",
                                     "repetition_penalty",
                                     "drafter_digest",
                                     "version",
                                     "generation_config_digest"};

h5::Attributes identity_of(const GenerationReader& reader) {
    const h5::Group provenance = reader.file().group("provenance");
    h5::Attributes identity;
    for (const char* name : kIdentity) {
        if (const auto value = provenance.attribute(name)) identity[name] = *value;
    }
    return identity;
}

void add(Conversations& all, const Prompt& prompt, const Generation& generation,
         const std::vector<std::string>& kinds) {
    if (key_of(prompt) != key_of(generation)) {
        throw Error(ErrorKind::input, fmt::format("generations: expected prompt {}, found {}",
                                                  prompt.index, generation.prompt_index));
    }
    if (generation.status != Status::ok || generation.tokens.empty() || !prompt.error.empty()) {
        ++all.left_out;
        return;
    }
    CaptureText& text = all.text;
    text.tokens.insert(text.tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
    text.loss_mask.resize(text.tokens.size(), 0);
    text.tokens.insert(text.tokens.end(), generation.tokens.begin(), generation.tokens.end());
    text.loss_mask.resize(text.tokens.size(), 1);
    text.offsets.push_back(text.rows());
    text.prompt_index.push_back(prompt.index);
    const auto at = static_cast<size_t>(prompt.index);
    text.kind.push_back(at < kinds.size() ? kinds[at] : std::string());
    all.longest = std::max(all.longest, std::ssize(prompt.tokens) + std::ssize(generation.tokens));
    const RecordOptions& options = prompt.options;
    all.greedy = all.greedy && options.temperature == 0 && options.repetition_penalty == 1;
}

}  // namespace

Conversations read_conversations(const GenerateOptions& options, const ModelConfig& config) {
    std::unique_ptr<Tokenizer> tokenizer;
    if (has_tokenizer(options.target) && text_supported()) {
        tokenizer = make_tokenizer(options.target);
    }
    const PromptFiles files(options, options.target);
    RecordSource source(options, files.paths(), options.target, config.vocab_size, tokenizer.get());
    source.set_context(config.max_position_embeddings);
    const std::vector<std::vector<std::string>> kinds = read_kinds(files.paths());
    const GenerationReader reader(options.out, schema::kGenerations);
    if (reader.record_count() != source.record_count()) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected {} records, as the prompts have, found {}",
                                options.out, source.record_count(), reader.record_count()));
    }
    Conversations all;
    all.identity = identity_of(reader);
    for (int64_t first = 0; first < source.record_count(); first += kSlice) {
        const std::vector<Prompt> prompts = source.read(first, kSlice);
        const std::vector<Generation> generations = reader.read(first, std::ssize(prompts));
        for (size_t i = 0; i < prompts.size(); ++i) {
            add(all, prompts[i], generations[i], kinds[static_cast<size_t>(prompts[i].source)]);
        }
    }
    if (all.text.sequences() == 0) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected records with tokens, found none", options.out));
    }
    return all;
}

}  // namespace quadrille
