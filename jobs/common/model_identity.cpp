// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/model_identity.h"

#include "io/digest.h"
#include "io/text/json.h"
#include "jobs/common/table.h"
#include "runtime/ranks/mpi.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFile = int64_t{1} << 30;

using Ranks = std::vector<size_t>;

// "" for a file that is not there.
std::string file_digest(const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error)) return {};
    Digest digest;
    digest.add(read_file(path, kMaxFile));
    return digest.hex();
}

std::map<std::string, std::string> fields_of(const std::string& text) {
    std::map<std::string, std::string> fields;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        const size_t blank = text.find(' ', begin);
        fields[text.substr(begin, blank - begin)] = text.substr(blank + 1, end - blank - 1);
        begin = end + 1;
    }
    return fields;
}

// "node1 (0, 2), node2 (1)"
std::string hosts_of(const Ranks& ranks, std::span<const std::string> hosts) {
    std::map<std::string, Ranks> by_host;
    for (const size_t rank : ranks) by_host[hosts[rank]].push_back(rank);
    std::vector<std::string> parts;
    for (const auto& [host, there] : by_host)
        parts.push_back(fmt::format("{} ({})", host, fmt::join(there, ", ")));
    return fmt::format("{}", fmt::join(parts, ", "));
}

bool is_setting(std::string_view variable) {
    constexpr std::array kPrefixes = {"NCCL_", "UCX_", "OMPI_MCA_"};
    constexpr std::array kByLauncher = {"NCCL_HOSTID",
                                        "OMPI_MCA_orte_",
                                        "OMPI_MCA_ess",
                                        "OMPI_MCA_pmix",
                                        "OMPI_MCA_initial_wdir",
                                        "OMPI_MCA_shmem_",
                                        "OMPI_MCA_mpi_oversubscribe"};
    const auto begins = [&](const char* prefix) { return variable.starts_with(prefix); };
    return std::ranges::any_of(kPrefixes, begins) && std::ranges::none_of(kByLauncher, begins);
}

}  // namespace

h5::Attributes model_identity(const Checkpoint& target, const Checkpoint* drafter) {
    const fs::path& folder = target.folder();
    return {{"config_digest", file_digest(folder / "config.json")},
            {"generation_config_digest", file_digest(folder / "generation_config.json")},
            {"tokenizer_digest", file_digest(folder / "tokenizer.json")},
            {"template_digest", file_digest(folder / "chat_template.jinja")},
            {"checkpoint_digest", target.digest()},
            {"draft_config_digest",
             drafter == nullptr ? std::string() : file_digest(drafter->folder() / "config.json")},
            {"drafter_digest", drafter == nullptr ? std::string() : drafter->digest()}};
}

h5::Attributes surroundings(std::span<const std::string> libraries) {
    h5::Attributes fields = {{"MPI", mpi::library_version()}, {"HDF5", h5::library_version()}};
    for (const std::string& library : libraries) {
        const size_t blank = std::min(library.find(' '), library.size());
        fields[library.substr(0, blank)] = library.substr(std::min(blank + 1, library.size()));
    }
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const size_t equals = text.find('=');
        if (equals == std::string_view::npos || !is_setting(text.substr(0, equals))) continue;
        std::string value(text.substr(equals + 1));
        std::ranges::replace(value, '\n', ' ');
        fields[std::string(text.substr(0, equals))] = std::move(value);
    }
    return fields;
}

std::string field_lines(const h5::Attributes& fields) {
    std::string text;
    for (const auto& [name, value] : fields)
        text += fmt::format("{} {}\n", name, h5::describe(value));
    return text;
}

std::string differing_fields(std::span<const std::string> texts,
                             std::span<const std::string> hosts) {
    std::map<std::string, std::map<std::string, Ranks>> values;  // of each field
    for (size_t rank = 0; rank < texts.size(); ++rank)
        for (const auto& [name, value] : fields_of(texts[rank]))
            values[name][value].push_back(rank);
    Table table("lll");
    table.row({"field", "value", "hosts (ranks)"});
    bool equal = true;
    for (const auto& [name, by_value] : values) {
        if (by_value.size() == 1 && by_value.begin()->second.size() == texts.size()) continue;
        equal = false;
        for (const auto& [value, ranks] : by_value)
            table.row({name, value.empty() ? "none" : value, hosts_of(ranks, hosts)});
    }
    if (equal) return {};
    std::string text = table.text();
    text.pop_back();  // the message's own line end follows
    return text;
}

}  // namespace quadrille
