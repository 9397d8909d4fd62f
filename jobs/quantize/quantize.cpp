// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/quantize.h"

#include "io/files.h"
#include "io/output.h"
#include "io/text/json.h"
#include "io/text/tokenizer.h"
#include "jobs/common/model_session.h"
#include "jobs/prompts/prompt_files.h"
#include "jobs/prompts/record_source.h"
#include "jobs/quantize/bit_groups.h"
#include "jobs/quantize/bit_probe.h"
#include "jobs/quantize/pack_config.h"
#include "jobs/quantize/pack_files.h"
#include "jobs/quantize/pack_maker.h"
#include "jobs/quantize/pack_plan.h"
#include "jobs/quantize/pack_progress.h"
#include "jobs/quantize/pack_report.h"
#include "jobs/quantize/task_quantizer.h"
#include "jobs/quantize/unit_inputs.h"
#include "runtime/ranks/record_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kBlock = 64;              // calibration records broadcast at once
constexpr const char* kBits = "bits.json";  // in the folder of parts: what --bpw came to
constexpr int64_t kMostBytes = 1 << 20;     // of it

class QuantizeJob {
  public:
    QuantizeJob(const QuantizeJobOptions& options, const RankStart& start)
        : options_(options),
          session_(options_, start),
          progress_(session_.log(), start.session.rank() == 0) {}
    int run();

  private:
    bool leads() const { return session_.leads_run(); }
    const Checkpoint& source() const { return session_.models().checkpoint(); }

    void start_up();
    void read_calibration();
    void share_calibration();
    void open_output();
    void quantize_all();
    void choose_bits(const PackMaker& maker);
    std::vector<BitGroup> measure_groups(const PackMaker& maker);
    void finish();

    QuantizeJobOptions options_;
    mutable ModelSession session_;
    std::optional<PackPlan> plan_;
    std::optional<PackFiles> files_;
    std::vector<Prompt> calibration_;
    std::string calibration_digest_ = "none";
    std::unique_ptr<TrellisEncoder> encoder_;
    int32_t threads_ = 1;
    std::optional<CalibrationRows> rows_;
    std::optional<CalibrationModel> model_;
    PackProgress progress_;
    std::vector<BitGroup> groups_;  // of --bpw
};

int QuantizeJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] {
        quantize_all();
        if (leads()) finish();
        session_.world().barrier();
        return kSuccess;
    });
}

void QuantizeJob::start_up() {
    session_.choose_backend();
    session_.read_checkpoint(0);
    session_.agree("plan",
                   [&] { plan_ = plan_pack(source(), session_.models().config(), options_); });
    session_.agree("calibration", [&] {
        if (leads() && !options_.prompts.empty()) read_calibration();
    });
    share_calibration();
    session_.agree("output", [&] { open_output(); });
    session_.agree("output of all ranks", [&] {
        if (!leads()) files_->open_as_member();
    });
    session_.agree("encoder", [&] {
        const MpiSession& mpi = session_.mpi();
        const auto cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
        threads_ = options_.threads > 0 ? static_cast<int32_t>(options_.threads)
                                        : std::max(1, cores / mpi.local_size());
        const bool gpu = session_.backend().name() == "cuda";
        encoder_ = make_trellis_encoder(gpu ? "cuda" : "cpu", threads_,
                                        gpu ? mpi.local_rank() % gpu_count() : 0);
    });
}

void QuantizeJob::read_calibration() {
    std::unique_ptr<Tokenizer> tokenizer;
    if (has_tokenizer(options_.target) && text_supported()) {
        tokenizer = make_tokenizer(options_.target);
    }
    const ModelConfig& config = session_.models().config();
    const PromptFiles files(options_, options_.target);
    RecordSource records(options_, files.paths(), options_.target, config.vocab_size,
                         tokenizer.get());
    records.set_context(config.max_position_embeddings + 1);
    const std::string error = records.first_error();
    if (!error.empty()) {
        throw Error(ErrorKind::input,
                    fmt::format("--calibration: expected rows without an error, found {}", error));
    }
    calibration_ = records.read(0, records.record_count());
    calibration_digest_ = records.digest();
}

void QuantizeJob::share_calibration() {
    Communicator& world = session_.world();
    calibration_digest_ = gather_texts(world, calibration_digest_).front();
    int64_t count = std::ssize(calibration_);
    world.broadcast_host(&count, sizeof count, 0);
    std::vector<Prompt> all;
    for (int64_t first = 0; first < count; first += kBlock) {
        std::vector<Prompt> block;
        if (leads()) {
            block.assign(calibration_.begin() + first,
                         calibration_.begin() + std::min(first + kBlock, count));
        }
        for (Prompt& prompt : broadcast_records(world, 0, std::move(block))) {
            all.push_back(std::move(prompt));
        }
    }
    calibration_ = std::move(all);
}

// What makes the files of two runs the same. The backend is in it: inputs differ in the last bits.
void QuantizeJob::open_output() {
    const auto bits = [&](WeightClass kind) { return options_.bits(kind, -1); };
    nlohmann::json layers = nlohmann::json::object();
    for (const auto& [layer, count] : options_.layer_bits) layers[std::to_string(layer)] = count;
    nlohmann::json run = {{"source", source().digest()},
                          {"routed_bits", options_.routed_bits},
                          {"layer_bits", layers},
                          {"attention_bits", bits(WeightClass::attention)},
                          {"shared_bits", bits(WeightClass::shared)},
                          {"mlp_bits", bits(WeightClass::mlp)},
                          {"head_bits", bits(WeightClass::head)},
                          {"bpw", options_.bpw},
                          {"codebook", name(options_.codebook)},
                          {"calibration", calibration_digest_},
                          {"seed", options_.seed},
                          {"backend", session_.backend().name()}};
    if (leads() && !options_.report.empty()) {
        const auto objection = [](const std::filesystem::path& path) {
            return not_json(path, "a report of quantize, which is replaced", {"matrices"});
        };
        output_path(options_.report, {.option = "--report",
                                      .overwrite = true,
                                      .taken = {options_.prompts.begin(), options_.prompts.end()},
                                      .objection = objection});
    }
    files_.emplace(options_.out, std::move(run), options_.locking);
    if (leads()) files_->open_as_leader(plan_->bytes());
}

void QuantizeJob::quantize_all() {
    const ModelConfig& config = session_.models().config();
    if (!plan_->kept.empty()) {
        session_.log().notice(
            fmt::format("{} matrices stay as they are: their inputs are not whole blocks of 128 "
                        "channels, the first is {}",
                        plan_->kept.size(), plan_->kept.front()));
    }
    if (!calibration_.empty()) {
        CalibrationRows::Sequences sequences;
        for (const Prompt& prompt : calibration_) sequences.push_back(prompt.tokens);
        rows_.emplace(session_.backend(), config, std::move(sequences),
                      options_.max_batched_tokens);
        session_.log().notice(
            fmt::format("{} calibration rows of {} records", rows_->rows(), calibration_.size()));
    } else {
        session_.log().notice(
            "no --calibration: errors are not weighed by what the model's inputs are");
    }
    model_.emplace(CalibrationModel{.backend = session_.backend(),
                                    .config = config,
                                    .prefix = plan_->prefix,
                                    .rows = rows_ ? &*rows_ : nullptr});
    const TaskQuantizer quantizer(
        source(), *encoder_,
        {.codebook = options_.codebook, .seed = options_.seed, .threads = threads_});
    const PackMaker maker(session_.world(), source(), quantizer, progress_);
    progress_.expect(plan_->weights());
    if (options_.bpw > 0) choose_bits(maker);
    for (const PlannedUnit& unit : plan_->units) {
        const Checkpoint file = maker.make(unit, *files_, *model_);
        pass_unit(*model_, file, unit);
    }
}

// Plans again with the bits that each layer's classes get.
void QuantizeJob::choose_bits(const PackMaker& maker) {
    Communicator& world = session_.world();
    const std::filesystem::path kept = files_->parts() / kBits;
    std::error_code code;
    if (world.max_host(std::filesystem::exists(kept, code) ? 0 : 1) == 0) {
        groups_ = as_groups(read_json(kept, kMostBytes), kept.string());
    } else {
        groups_ = measure_groups(maker);
        allocate_bits(groups_, options_.bpw);
        if (leads()) write_durably(kept, as_json(groups_).dump(1) + "\n");
        world.barrier();
    }
    for (const BitGroup& group : groups_) {
        options_.chosen_bits[{group.layer, group.kind}] = group.bits;
    }
    plan_ = plan_pack(source(), session_.models().config(), options_);
    if (leads()) session_.log().notice("bits by layer\n" + group_table(groups_));
}

// Routed experts in one pack and the rest in another: two classes of a layer share a file.
std::vector<BitGroup> QuantizeJob::measure_groups(const PackMaker& maker) {
    std::list<PackPlan> plans;
    std::list<PackFiles> files;
    std::vector<ProbedPack> packs;
    for (const bool routed : {true, false}) {
        QuantizeJobOptions some = options_;
        if (!routed) some.routed_bits = 0;
        if (routed) some.dense_bits = some.attention_bits = some.shared_bits = some.mlp_bits = 0;
        if (routed) some.head_bits = 16;
        PackPlan plan = plan_pack(source(), session_.models().config(), some);
        for (PlannedUnit& unit : plan.units) {
            if (unit.kind == UnitKind::mtp) unit.tasks.clear();
        }
        if (plan.weights() == 0) continue;
        progress_.expect(plan.weights());
        nlohmann::json run = files_->run();
        run["measured"] = routed ? "routed" : "others";
        const std::string name = fmt::format("measured-{}", routed ? "routed" : "others");
        plans.push_back(std::move(plan));
        files.emplace_back(files_->parts() / name, std::move(run), options_.locking);
        if (leads()) files.back().open_as_leader(plans.back().bytes());
        session_.world().barrier();
        if (!leads()) files.back().open_as_member();
        packs.push_back({plans.back(), files.back()});
    }
    CalibrationRows::Sequences sequences;
    for (const Prompt& prompt : calibration_) sequences.push_back(prompt.tokens);
    BitProbe probe(session_.world(), *model_, source(), BitProbe::choose(sequences), threads_);
    return probe.measure(plan_->units, packs, maker);
}

void QuantizeJob::finish() {
    int64_t longest = 0;
    for (const Prompt& prompt : calibration_) {
        longest = std::max(longest, std::ssize(prompt.tokens));
    }
    files_->finish(*plan_, source(),
                   pack_config(source(), *plan_, options_,
                               {.rows = std::ssize(calibration_), .cols = longest}));
    const Checkpoint pack(files_->out());
    const std::vector<MatrixRecord> records = read_records(pack);
    show(stdout, report_table(pack, records));
    if (!options_.report.empty()) {
        replace_file(options_.report, report_json(pack, records, groups_).dump(2) + "\n");
    }
}

}  // namespace

int run_quantize(const QuantizeJobOptions& options, const RankStart& start) {
    return QuantizeJob(options, start).run();
}

}  // namespace quadrille
