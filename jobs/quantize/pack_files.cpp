// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_files.h"

#include "io/checkpoint/fp8.h"
#include "io/checkpoint/module_names.h"
#include "io/checkpoint/safetensors_writer.h"
#include "io/files.h"
#include "io/text/json.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <set>
#include <utility>

namespace quadrille {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRun = "run.json";
constexpr const char* kRecords = "quadrille_matrices";
constexpr int64_t kMaxRun = 1 << 20;
constexpr std::string_view kCopied[] = {".json", ".jinja", ".txt", ".model", ".py"};

MatrixRecord as_record(const json& value) {
    return {.module = value.at("module").get<std::string>(),
            .kind = value.at("kind").get<std::string>(),
            .n = value.at("n").get<int64_t>(),
            .k = value.at("k").get<int64_t>(),
            .bits = value.at("bits").get<int64_t>(),
            .rows = value.at("rows").get<int64_t>(),
            .left_out = value.at("left_out").get<int64_t>(),
            .proxy_error = value.at("proxy_error").get<double>(),
            .relative_error = value.at("relative_error").get<double>()};
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
}

// The tensors of a quantized matrix; `marker` outlives them.
void add_tensors(std::vector<NewTensor>& tensors, const std::string& module,
                 const QuantizedMatrix& matrix, const uint32_t& marker) {
    const auto add = [&](TensorPart part, Dtype dtype, std::vector<int64_t> shape,
                         std::span<const std::byte> bytes) {
        tensors.push_back({.name = tensor_name(module, part),
                           .dtype = dtype,
                           .shape = std::move(shape),
                           .bytes = bytes});
    };
    add(TensorPart::trellis, Dtype::i16,
        {matrix.k_padded / exl3::kTile, matrix.n_padded / exl3::kTile,
         exl3::kTile * int64_t{matrix.code.bits}},
        bytes_of(matrix.trellis));
    add(TensorPart::suh, Dtype::f16, {matrix.k_padded}, bytes_of(matrix.suh));
    add(TensorPart::svh, Dtype::f16, {matrix.n_padded}, bytes_of(matrix.svh));
    if (matrix.code.codebook == Codebook::three_inst) return;
    add(matrix.code.codebook == Codebook::mcg ? TensorPart::mcg : TensorPart::mul1, Dtype::i32, {},
        std::as_bytes(std::span(&marker, 1)));
}

uint32_t marker_of(Codebook codebook) {
    return codebook == Codebook::mcg ? exl3::kMcgMultiplier : exl3::kMul1Multiplier;
}

// An FP8 tensor that is not quantized, as the release's own loaders use it.
std::vector<BF16> as_bf16(const Checkpoint& source, const Tensor& tensor) {
    const std::string module = parse_tensor_name(tensor.name).module;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    NativeMatrix(source, module, tensor.shape.at(0), tensor.shape.at(1)).read(values);
    std::vector<BF16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), [](float value) { return to_bf16(value); });
    return rounded;
}

std::string differences(const json& found, const json& expected) {
    std::string text;
    for (const auto& [key, value] : expected.items()) {
        const json before = found.contains(key) ? found.at(key) : json();
        if (before != value) {
            text += fmt::format("\n  {}: was {}, is {}", key, shown(before), shown(value));
        }
    }
    return text;
}

}  // namespace

json as_json(const MatrixRecord& record) {
    return {{"module", record.module},
            {"kind", record.kind},
            {"n", record.n},
            {"k", record.k},
            {"bits", record.bits},
            {"rows", record.rows},
            {"left_out", record.left_out},
            {"proxy_error", record.proxy_error},
            {"relative_error", record.relative_error}};
}

PackFiles::PackFiles(const fs::path& out, json run, Locking locking)
    : out_(out), run_(std::move(run)), locking_(locking) {
    std::string name = out_.string();
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    out_ = name;
    parts_ = name + ".parts";
}

void PackFiles::check_run() const {
    const json found = read_json(parts_ / kRun, kMaxRun);
    const std::string text = differences(found, run_);
    if (text.empty()) return;
    throw Error(ErrorKind::usage,
                fmt::format("{}: its unfinished pack was started otherwise; give the same options "
                            "or another --out:{}",
                            out_.string(), text));
}

void PackFiles::open_as_leader(int64_t bytes_needed) {
    std::error_code code;
    if (fs::exists(out_ / "config.json", code)) {
        throw Error(
            ErrorKind::usage,
            fmt::format("--out: {} is a complete checkpoint; name another folder", out_.string()));
    }
    const bool resumes = fs::exists(parts_ / kRun, code);
    if (!resumes && fs::exists(out_, code) && !fs::is_empty(out_, code)) {
        throw Error(ErrorKind::usage,
                    fmt::format("--out: expected a new or empty folder, found {} with files in it",
                                out_.string()));
    }
    create_folder(out_);
    lock_.emplace(parts_, locking_);
    if (resumes) {
        check_run();
        return;
    }
    const fs::space_info space = fs::space(out_, code);
    if (!code && space.available < static_cast<uintmax_t>(bytes_needed)) {
        throw Error(ErrorKind::io, fmt::format("{}: expected room for {} bytes, found {}",
                                               out_.string(), bytes_needed, space.available));
    }
    write_durably(parts_ / kRun, run_.dump(2) + "\n");
}

void PackFiles::open_as_member() const {
    std::error_code code;
    if (!fs::exists(parts_ / kRun, code)) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: not seen by this rank: --out must lie where all ranks write",
                                (parts_ / kRun).string()));
    }
    check_run();
}

fs::path PackFiles::part_file(const PlannedTask& task) const {
    return parts_ / (task.name + ".safetensors");
}

std::optional<Checkpoint> PackFiles::finished(const PlannedUnit& unit) const {
    std::error_code code;
    if (!fs::exists(out_ / unit.file, code)) return std::nullopt;
    try {
        Checkpoint checkpoint(out_, {unit.file});
        if (seal_holds(checkpoint, 0)) return checkpoint;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
    }
    return std::nullopt;
}

bool PackFiles::has_part(const PlannedTask& task) const {
    std::error_code code;
    if (!fs::exists(part_file(task), code)) return false;
    try {
        return seal_holds(Checkpoint(parts_, {part_file(task).filename().string()}), 0);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        return false;
    }
}

void PackFiles::commit(const PlannedTask& task, const QuantizedTask& result) const {
    std::vector<NewTensor> tensors;
    json records = json::array();
    const uint32_t marker = marker_of(result.matrices.front().code.codebook);
    for (size_t i = 0; i < result.matrices.size(); ++i) {
        add_tensors(tensors, task.matrices[i].module, result.matrices[i], marker);
        records.push_back(as_json(result.records[i]));
    }
    write_safetensors(part_file(task), std::move(tensors), {{kRecords, records.dump()}});
}

void PackFiles::assemble(const PlannedUnit& unit, const Checkpoint& source) const {
    std::vector<NewTensor> tensors;
    std::set<std::string> packed;
    json records = json::array();
    std::list<Checkpoint> parts;  // mapped until the file is written
    for (const PlannedTask& task : unit.tasks) {
        parts.emplace_back(parts_, std::vector{part_file(task).filename().string()});
        for (const auto& [name, tensor] : parts.back().tensors()) {
            tensors.push_back(as_stored(tensor));
        }
        for (const PlannedMatrix& matrix : task.matrices) packed.insert(matrix.module);
        const json own = json::parse(parts.back().metadata(0).at(kRecords));
        records.insert(records.end(), own.begin(), own.end());
    }
    std::list<std::vector<BF16>> widened;
    for (const Tensor* tensor : unit.tensors) {
        const TensorName name = parse_tensor_name(tensor->name);
        const bool weight = name.part == TensorPart::weight;
        if (packed.contains(name.module) && (weight || name.part == TensorPart::weight_scale_inv)) {
            continue;
        }
        if (name.part == TensorPart::weight_scale_inv) continue;
        tensors.push_back(as_stored(*tensor));
        if (tensor->dtype != Dtype::f8_e4m3) continue;
        widened.push_back(as_bf16(source, *tensor));
        tensors.back().dtype = Dtype::bf16;
        tensors.back().bytes = bytes_of(widened.back());
    }
    write_safetensors(out_ / unit.file, std::move(tensors), {{kRecords, records.dump()}});
    std::error_code ignored;
    for (const PlannedTask& task : unit.tasks) fs::remove(part_file(task), ignored);
}

void PackFiles::finish(const PackPlan& plan, const Checkpoint& source,
                       const nlohmann::ordered_json& config) {
    std::vector<std::string> files;
    for (const PlannedUnit& unit : plan.units) files.push_back(unit.file);
    write_safetensors_index(out_, Checkpoint(out_, files));
    for (const fs::directory_entry& entry : fs::directory_iterator(source.folder())) {
        const std::string name = entry.path().filename().string();
        const bool ours = name == "config.json" || name == "quantization_config.json" ||
                          name.ends_with(".safetensors.index.json");
        const bool wanted = std::ranges::any_of(
            kCopied, [&](std::string_view suffix) { return name.ends_with(suffix); });
        if (ours || !wanted || !entry.is_regular_file()) continue;
        std::error_code code;
        fs::copy_file(entry.path(), out_ / name, fs::copy_options::overwrite_existing, code);
        if (code) {
            throw Error(ErrorKind::io, fmt::format("{}: cannot copy {}: {}", out_.string(),
                                                   entry.path().string(), code.message()));
        }
        sync_file(out_ / name);
    }
    write_durably(out_ / "config.json", config.dump(1) + "\n");
    lock_.reset();
    std::error_code ignored;
    fs::remove_all(parts_, ignored);
}

std::vector<MatrixRecord> read_records(const Checkpoint& pack) {
    std::vector<MatrixRecord> records;
    for (size_t file = 0; file < pack.files().size(); ++file) {
        const auto found = pack.metadata(file).find(kRecords);
        if (found == pack.metadata(file).end()) continue;
        for (const json& value : json::parse(found->second)) records.push_back(as_record(value));
    }
    return records;
}

}  // namespace quadrille
