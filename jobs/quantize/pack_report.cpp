// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_report.h"

#include "io/checkpoint/module_names.h"
#include "jobs/common/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace quadrille {
namespace {

constexpr const char* kNative = "as it was";

struct ClassTotals {
    int64_t matrices = 0;
    int64_t weights = 0;
    int64_t bytes = 0;
    double bits = 0;   // sum over weights
    double proxy = 0;  // sums over matrices
    double relative = 0;
    const MatrixRecord* worst = nullptr;  // by proxy error
    bool calibrated = false;

    double mean_bits() const { return bits / static_cast<double>(std::max<int64_t>(weights, 1)); }
    double mean(double sum) const {
        return sum / static_cast<double>(std::max<int64_t>(matrices, 1));
    }
};

std::map<std::string, ClassTotals> by_class(const Checkpoint& pack,
                                            const std::vector<MatrixRecord>& records) {
    std::map<std::string, ClassTotals> classes;
    std::map<std::string, const MatrixRecord*> by_module;
    for (const MatrixRecord& record : records) {
        by_module[record.module] = &record;
        ClassTotals& totals = classes[record.kind];
        ++totals.matrices;
        totals.weights += record.n * record.k;
        totals.bits += static_cast<double>(record.bits * record.n * record.k);
        totals.proxy += record.proxy_error;
        totals.relative += record.relative_error;
        totals.calibrated = totals.calibrated || record.rows > 0;
        if (totals.worst == nullptr || record.proxy_error > totals.worst->proxy_error) {
            totals.worst = &record;
        }
    }
    for (const auto& [name, tensor] : pack.tensors()) {
        const auto found = by_module.find(parse_tensor_name(name).module);
        ClassTotals& totals = classes[found == by_module.end() ? kNative : found->second->kind];
        totals.bytes += std::ssize(tensor.bytes);
        if (found == by_module.end()) {
            totals.weights += tensor.elements();
            totals.bits += 8.0 * static_cast<double>(tensor.bytes.size());
        }
    }
    return classes;
}

}  // namespace

std::string report_table(const Checkpoint& pack, const std::vector<MatrixRecord>& records) {
    Table table("lrrrrrrl");
    table.row(
        {"class", "matrices", "weights", "bits", "bytes", "proxy error", "relative", "worst"});
    ClassTotals all;
    for (const auto& [kind, totals] : by_class(pack, records)) {
        all.matrices += totals.matrices;
        all.weights += totals.weights;
        all.bytes += totals.bytes;
        all.bits += totals.bits;
        const bool packed = totals.worst != nullptr;
        table.row({kind, fmt::to_string(totals.matrices), fmt::to_string(totals.weights),
                   fmt::format("{:.2f}", totals.mean_bits()), fmt::to_string(totals.bytes),
                   packed ? fmt::format("{:.6f}", totals.mean(totals.proxy)) : "",
                   packed ? fmt::format("{:.6f}", totals.mean(totals.relative)) : "",
                   packed
                       ? fmt::format("{:.6f} {}", totals.worst->proxy_error, totals.worst->module)
                       : ""});
    }
    table.row({"all", fmt::to_string(all.matrices), fmt::to_string(all.weights),
               fmt::format("{:.2f}", all.mean_bits()), fmt::to_string(all.bytes), "", "", ""});
    return table.text(0);
}

nlohmann::ordered_json report_json(const Checkpoint& pack, const std::vector<MatrixRecord>& records,
                                   const std::vector<BitGroup>& groups) {
    nlohmann::ordered_json classes;
    for (const auto& [kind, totals] : by_class(pack, records)) {
        classes[kind] = {{"matrices", totals.matrices},
                         {"weights", totals.weights},
                         {"bits", totals.mean_bits()},
                         {"bytes", totals.bytes}};
        if (totals.worst == nullptr) continue;
        classes[kind]["proxy_error"] = totals.mean(totals.proxy);
        classes[kind]["relative_error"] = totals.mean(totals.relative);
        classes[kind]["worst"] = totals.worst->module;
        classes[kind]["calibrated"] = totals.calibrated;
    }
    nlohmann::json matrices = nlohmann::json::array();
    for (const MatrixRecord& record : records) matrices.push_back(as_json(record));
    nlohmann::ordered_json report = {{"pack", pack.folder().string()}, {"classes", classes}};
    if (!groups.empty()) report["bits"] = as_json(groups);
    report["matrices"] = matrices;
    return report;
}

}  // namespace quadrille
