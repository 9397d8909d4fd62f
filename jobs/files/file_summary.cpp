// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/file_summary.h"

#include "io/h5/h5.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/prompts/prompt_reader.h"
#include "io/results/generation_reader.h"
#include "jobs/common/table.h"
#include "jobs/files/generation_totals.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kSlice = 256;
constexpr int64_t kTextWidth = 60;
constexpr size_t kTokensShown = 12;
constexpr int64_t kListShown = 64;  // of a list, more than a line holds

std::string ratio(double value) {
    return std::isnan(value) ? "-" : fmt::format("{:.4f}", value);
}

std::string share(int64_t part, int64_t whole) {
    return whole == 0 ? "-"
                      : fmt::format("{:.1f} %",
                                    100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void add_datasets(const h5::Group& group, const std::string& path, Table& table) {
    for (const std::string& name : group.names()) {
        const std::string full = path + "/" + name;
        try {
            if (group.has_dataset(name))
                table.row({full, group.dataset(name).describe()});
            else if (group.has_group(name))
                add_datasets(group.group(name), full, table);
        } catch (const Error& error) {  // a link to nothing, in a place that is not read
            table.row({full, error.what()});
        }
    }
}

std::string dataset_table(const h5::File& file) {
    Table table("ll");
    add_datasets(file, "", table);
    return table.empty() ? "" : '\n' + table.text();
}

void add_fact(const std::string& name, const h5::Value& value, Table& table) {
    table.row({name, excerpt(h5::describe(value), 100)});
}

// One line an attribute; strings of several lines become one.
std::string attribute_table(const h5::Object& object) {
    Table table("ll");
    for (const auto& [name, value] : object.attributes()) add_fact(name, value, table);
    return table.text();
}

// Its lists are datasets; in older files they are attributes too.
std::string provenance_table(const h5::Group& provenance) {
    Table table("ll");
    for (const auto& [name, value] : provenance.attributes()) add_fact(name, value, table);
    for (const std::string& name : provenance.names()) {
        const h5::Dataset list = provenance.dataset(name);
        add_fact(name, list.read_strings(0, std::min(list.rows(), kListShown)), table);
    }
    return table.text();
}

std::string seal_text(const std::filesystem::path& path) {
    return seal_of(path) == Seal::holds ? "holds: the file is as it was written"
                                        : "none: another program wrote or changed the file";
}

std::string token_list(std::span<const int32_t> tokens) {
    const size_t shown = std::min(tokens.size(), kTokensShown);
    return fmt::format("[{}{}]", fmt::join(tokens.first(shown), ", "),
                       shown < tokens.size() ? ", …" : "");
}

std::string id_text(const RecordId& id) {
    if (const auto* number = std::get_if<int64_t>(&id)) return fmt::format("{}", *number);
    const auto* text = std::get_if<std::string>(&id);
    return text == nullptr ? "" : excerpt(*text, 24);
}

std::string id_text(const Ids& ids, int64_t record) {
    const auto at = static_cast<size_t>(record);
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&ids))
        return id_text(RecordId((*numbers)[at]));
    if (const auto* texts = std::get_if<std::vector<std::string>>(&ids))
        return id_text(RecordId((*texts)[at]));
    return "";
}

const char* id_kind(const Ids& ids) {
    switch (kind_of(ids)) {
        case IdKind::none:
            return "none";
        case IdKind::integer:
            return "integers";
        case IdKind::string:
            return "strings";
    }
    return "?";
}

std::string indented(const std::vector<std::string>& notices) {
    std::string out;
    for (const std::string& notice : notices) out += "  note: " + notice + '\n';
    return out;
}

// ---- prompts ------------------------------------------------------------------------------------

std::string options_present(const h5::Group& prompts) {
    std::vector<std::string> present;
    for (const std::string& name : PromptOptions::names()) {
        if (prompts.has(name)) present.push_back(name);
        if (const auto value = prompts.attribute(name))
            present.push_back(fmt::format("{} = {}", name, h5::describe(*value)));
    }
    return present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", "));
}

struct PromptTotals {
    int64_t size = 0;  // tokens or bytes
    int64_t shortest = 0;
    int64_t longest = 0;
    int64_t errors = 0;
    std::string first_error;
};

int64_t size_of(const Prompt& prompt, const PromptReader& reader) {
    return reader.is_text() ? std::ssize(prompt.text) : reader.prompt_tokens(prompt.index);
}

PromptTotals add_up(const PromptReader& reader) {
    PromptTotals totals;
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        for (const Prompt& prompt : reader.read(first, count)) {
            const int64_t size = size_of(prompt, reader);
            totals.size += size;
            totals.shortest = prompt.index == 0 ? size : std::min(totals.shortest, size);
            totals.longest = std::max(totals.longest, size);
            if (prompt.error.empty()) continue;
            if (totals.errors++ == 0)
                totals.first_error = fmt::format("record {}: {}", prompt.index, prompt.error);
        }
    }
    return totals;
}

std::string prompt_records(const PromptReader& reader, int64_t limit) {
    const int64_t shown = std::min(limit, reader.record_count());
    if (shown == 0) return "";
    Table table("rlrl");
    table.row({"record", "id", reader.is_text() ? "bytes" : "tokens", "prompt"});
    for (const Prompt& prompt : reader.read(0, shown))
        table.row({fmt::format("{}", prompt.index), id_text(reader.ids(), prompt.index),
                   fmt::format("{}", size_of(prompt, reader)),
                   !prompt.error.empty() ? "error: " + prompt.error
                   : reader.is_text()    ? excerpt(prompt.text, kTextWidth)
                                         : token_list(prompt.tokens)});
    return '\n' + table.text();
}

// ---- generations --------------------------------------------------------------------------------

std::string named_counts(const std::vector<int64_t>& counts,
                         const std::vector<std::string>& names) {
    std::vector<std::string> out;
    for (size_t i = 0; i < counts.size(); ++i)
        if (counts[i] > 0) out.push_back(fmt::format("{} {}", counts[i], names[i]));
    return out.empty() ? "none" : fmt::format("{}", fmt::join(out, ", "));
}

std::string with_error(double value, double error) {
    return std::isnan(error) ? ratio(value) : fmt::format("{:.4f} ± {:.4f}", value, error);
}

// ± one standard error.
std::string kind_table(const ResultSummary& sums) {
    if (sums.kinds.empty()) return "";
    Table table("lrrl");
    table.row({"kind", "records", "accept length", "drafts accepted by position"});
    for (const auto& [kind, of_kind] : sums.kinds) {
        std::string positions;
        for (size_t i = 0; i < of_kind.by_position.size(); ++i) {
            positions += fmt::format("{}{:.3f}", i == 0 ? "" : " ", of_kind.position_rate(i));
        }
        table.row({excerpt(kind, 24), fmt::format("{}", of_kind.records),
                   with_error(of_kind.accept_length(), of_kind.accept_length_error()), positions});
    }
    return '\n' + table.text();
}

std::string acceptance_table(const ResultSummary& sums, int64_t k) {
    Table totals("lr");
    totals.row({"steps", fmt::format("{}", sums.steps)})
        .row({"drafted", fmt::format("{}", sums.drafted)})
        .row({"accepted", fmt::format("{}", sums.accepted)})
        .row({"emitted", fmt::format("{}", sums.emitted)})
        .row({"accepted per step", ratio(sums.accepted_per_step())})
        .row({"emitted per step", ratio(sums.emitted_per_step())})
        .row({"accept length", with_error(sums.accept_length(), sums.accept_length_error())});
    std::string out = "\nacceptance, K = " + fmt::format("{}", k) + '\n' + totals.text();
    if (k == 0 || sums.steps == 0) return out;
    Table positions("rrrrr");
    positions.row({"drafts", "steps with at least", "of steps", "steps with exactly", "of steps"});
    for (size_t j = 0; j < sums.histogram.size(); ++j) {
        const int64_t at_least = j == 0 ? sums.steps : sums.by_position[j - 1];
        positions.row({fmt::format("{}", j), fmt::format("{}", at_least),
                       share(at_least, sums.steps), fmt::format("{}", sums.histogram[j]),
                       share(sums.histogram[j], sums.steps)});
    }
    return out + '\n' + positions.text() + kind_table(sums);
}

GenerationTotals totals_of(const RunView& view) {
    GenerationTotals totals;
    FirstOnly first_only;
    for (const std::filesystem::path& path : view.files) {
        totals.add(GenerationReader(path, generations_kind(path)), first_only);
    }
    return totals;
}

std::string generation_records(const GenerationReader& reader, int64_t limit) {
    const int64_t shown = std::min(limit, reader.record_count());
    if (shown == 0) return "";
    const bool origin = reader.layout().origin;
    Table table(origin ? "rrrllrrl" : "rllrrl");
    std::vector<std::string> head = {"record", "id", "finish", "tokens", "accept length", "output"};
    if (origin) head.insert(head.begin() + 1, {"file", "sample"});
    table.row(head);
    for (const Generation& g : reader.read(0, shown)) {
        ResultSummary one;
        one.add(g);
        const std::string finish = schema::kFinishNames[static_cast<size_t>(g.finish_reason)];
        std::vector<std::string> row = {fmt::format("{}", g.prompt_index),
                                        id_text(g.id),
                                        finish,
                                        fmt::format("{}", g.tokens.size()),
                                        ratio(one.accept_length()),
                                        !g.error.empty()       ? "error: " + g.error
                                        : reader.layout().text ? excerpt(g.text, kTextWidth)
                                                               : token_list(g.tokens)};
        if (origin) {
            row.insert(row.begin() + 1, {fmt::format("{}", g.source), fmt::format("{}", g.sample)});
        }
        table.row(row);
    }
    return '\n' + table.text();
}

}  // namespace

std::string describe_prompts(const std::filesystem::path& path, int64_t limit) {
    const PromptReader reader(path, RecordOptions{});
    const PromptTotals totals = add_up(reader);
    const char* unit = reader.is_text() ? "text bytes" : "tokens";
    Table table("ll");
    table.row({"records", fmt::format("{}", reader.record_count())})
        .row({unit, fmt::format("{} (shortest {}, longest {})", totals.size, totals.shortest,
                                totals.longest)})
        .row({"ids", id_kind(reader.ids())})
        .row({"options", options_present(h5::File::open(path).group("prompts"))})
        .row({"record errors", totals.errors == 0
                                   ? "none"
                                   : fmt::format("{}; {}", totals.errors, totals.first_error)})
        .row({"digest", reader.digest()})
        .row({"seal", seal_text(path)});
    return fmt::format("{}: prompts, format {}\n", path.string(), schema::kFormat) +
           indented(reader.notices()) + table.text() + dataset_table(h5::File::open(path)) +
           prompt_records(reader, limit);
}

std::string describe_generations(const std::filesystem::path& path, const std::string& kind,
                                 int64_t limit) {
    const GenerationReader reader(path, kind);
    GenerationTotals totals;
    totals.add(reader);
    Table table("ll");
    table.row({"records", fmt::format("{}", reader.record_count())})
        .row({"tokens", fmt::format("{}", totals.sums.tokens)})
        .row({"seal", seal_text(path)})
        .row({"status", named_counts(totals.status, schema::kStatusNames)})
        .row({"finish reasons", named_counts(totals.finish, schema::kFinishNames)})
        .row({"statistics", totals.violations == 0
                                ? "consistent"
                                : fmt::format("{} records disagree; {}", totals.violations,
                                              totals.first_violation)});
    if (!reader.layout().sources.empty())
        table.row({"prompt files", fmt::format("{}", fmt::join(reader.layout().sources, ", "))});
    std::string out = fmt::format("{}: {}, format {}, {}\n", path.string(), kind, schema::kFormat,
                                  reader.is_complete() ? "complete" : "NOT complete") +
                      table.text() + dataset_table(reader.file()) +
                      acceptance_table(totals.sums, reader.layout().k);
    if (reader.file().has_group("provenance"))
        out += "\nprovenance\n" + provenance_table(reader.file().group("provenance"));
    return out + generation_records(reader, limit);
}

std::string describe_parts(const RunView& view) {
    const GenerationTotals totals = totals_of(view);
    Table table("ll");
    table.row({"parts", fmt::format("{}", view.files.size())})
        .row({"tokens", fmt::format("{}", totals.sums.tokens)})
        .row({"status", named_counts(totals.status, schema::kStatusNames)})
        .row({"finish reasons", named_counts(totals.finish, schema::kFinishNames)});
    return view.progress(totals.sums.records) + '\n' + table.text() +
           acceptance_table(totals.sums, std::ssize(totals.sums.by_position));
}

std::vector<std::string> overview_row(const RunView& view) {
    const ResultSummary sums = totals_of(view).sums;
    const int64_t records = view.parts ? view.records : sums.records;
    return {view.path.string(),
            fmt::format("{}", sums.records),
            records < 0 ? "?" : fmt::format("{}", records),
            fmt::format("{}", sums.errors),
            fmt::format("{}", sums.tokens),
            sums.accepted > 0 ? with_error(sums.accept_length(), sums.accept_length_error()) : "-"};
}

std::string describe_any(const std::filesystem::path& path, const std::string& kind) {
    const h5::File file = h5::File::open(path);
    std::string out = fmt::format("{}: {}\n", path.string(), kind) + attribute_table(file);
    for (const std::string& name : file.names())
        if (file.has_group(name) && !file.group(name).attribute_names().empty())
            out += '\n' + name + '\n' + attribute_table(file.group(name));
    return out + dataset_table(file);
}

}  // namespace quadrille
