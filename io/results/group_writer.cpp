// SPDX-License-Identifier: Apache-2.0
#include "io/results/group_writer.h"

#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/generation_reader.h"

#include <fmt/format.h>

#include <utility>

namespace quadrille {
namespace {

std::string text_of(const RecordId& id) {
    if (const auto* number = std::get_if<int64_t>(&id)) return fmt::format("{}", *number);
    const auto* text = std::get_if<std::string>(&id);
    return text == nullptr ? std::string() : *text;
}

RecordId pick(const Ids& ids, int64_t index) {
    const auto at = static_cast<size_t>(index);
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&ids)) return numbers->at(at);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&ids)) return texts->at(at);
    return {};
}

}  // namespace

// Several prompt files may name their records differently: then all ids become strings, the ids of
// a file without any being "".
IdKind common_kind(const std::vector<const Ids*>& ids) {
    if (ids.empty()) return IdKind::none;
    const IdKind first = kind_of(*ids.front());
    for (const Ids* other : ids)
        if (kind_of(*other) != first) return IdKind::string;
    return first;
}

GroupWriter::GroupWriter(Options options, RunLock& lock)
    : options_(std::move(options)),
      lock_(lock),
      part_(options_.folder, options_.group, options_.layout, options_.run,
            options_.before_commit) {}

RecordId GroupWriter::id_of(const RecordKey& key) const {
    if (options_.layout.id == IdKind::none) return {};
    RecordId id = pick(*options_.ids.at(static_cast<size_t>(key.source)), key.prompt_index);
    if (options_.layout.id == IdKind::string) id = text_of(id);
    return id;
}

void GroupWriter::add(Generation generation) {
    generation.id = id_of(key_of(generation));
    lock_.count(1);
    part_.add(std::move(generation));
}

void GroupWriter::keep(std::vector<Generation> running) {
    if (running.empty()) return;
    for (Generation& generation : running) generation.id = id_of(key_of(generation));
    if (partial_.empty()) partial_ = next_partial(options_.folder, options_.group);
    write_part(partial_, options_.layout, options_.run, running, options_.before_commit);
}

std::map<RecordKey, Generation> read_kept(const std::filesystem::path& folder,
                                          const std::string& run) {
    std::map<RecordKey, Generation> kept;
    for (const std::filesystem::path& path : list_partials(folder)) {
        if (!seal_holds(path)) continue;
        const GenerationReader reader(path, schema::kPart);
        if (reader.file().attribute(schema::kRunAttribute) != h5::Value(run)) continue;
        for (Generation& generation : reader.read(0, reader.record_count())) {
            Generation& longest = kept[key_of(generation)];
            if (generation.tokens.size() > longest.tokens.size()) longest = std::move(generation);
        }
    }
    return kept;
}

}  // namespace quadrille
