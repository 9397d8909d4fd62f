// SPDX-License-Identifier: Apache-2.0
// The floor of a pass against numbers worked out by hand from the full model's shapes, against the
// bytes that a loaded model really holds, and its rules one by one.
#include "runtime/model/work_bound.h"

#include "io/checkpoint/made_model.h"
#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/full_model.h"
#include "tests/support/golden.h"
#include "tests/support/model_case.h"
#include "tests/support/stored_modules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

namespace quadrille::test {
namespace {

// Routed experts of `bits` bits, everything else BF16: how the K2 and TR3 packs are stored.
StorageOf routed_only(int32_t bits) {
    return [bits](const std::string& module) -> std::optional<Storage> {
        if (module.find("qkv_proj") != std::string::npos) return std::nullopt;
        if (module.find(".experts.") == std::string::npos) return Storage{};
        return Storage{.bits = bits, .codebook = Codebook::mcg, .dtype = Dtype::f16};
    };
}

std::map<WorkKind, WorkSum> full_pass(int ranks, int rank, const PassShape& pass,
                                      int32_t bits = 2) {
    const ModelConfig config = full_config();
    return sums_by_kind(
        target_work(config, routed_only(bits), plan_shards(config, ranks, rank), pass));
}

double non_routed(const std::map<WorkKind, WorkSum>& sums) {
    double bytes = 0;
    for (const auto& [kind, sum] : sums) bytes += kind == WorkKind::experts ? 0.0 : sum.weights;
    return bytes;
}

TEST(DistinctExperts, OfUniformIndependentDraws) {
    EXPECT_DOUBLE_EQ(distinct_experts(1, 288, 8), 8.0);
    EXPECT_NEAR(distinct_experts(3, 288, 8), 23.3, 0.05);
    EXPECT_NEAR(distinct_experts(8, 288, 8), 58.1, 0.05);
    EXPECT_GT(distinct_experts(192, 288, 8), 286.5);  // 64 records of 3 rows: all but one
    EXPECT_DOUBLE_EQ(distinct_experts(0, 288, 8), 0.0);
    EXPECT_DOUBLE_EQ(distinct_experts(5, 8, 8), 8.0);
}

TEST(DistinctExperts, OfRowsThatShareHalfTheirChoices) {
    EXPECT_NEAR(distinct_experts(1, 288, 8, 0.5), 8.0, 1e-9);
    // 4 common ones, and 4 of the other 284 a row: 284 (1 - (280/284)^3) = 11.83.
    EXPECT_NEAR(distinct_experts(3, 288, 8, 0.5), 15.83, 0.005);
    EXPECT_NEAR(distinct_experts(8, 288, 8, 0.5), 34.47, 0.005);
    EXPECT_NEAR(distinct_experts(64, 288, 8, 1.0), 8.0, 1e-9);
}

// The published traffic of the 2-bit pack: 4.59 GB of non-routed weights and 0.53 GB of experts a
// token and rank of four; 1.06 GB of experts at 4 bits (scales are 9 MB of it).
TEST(Floor, OfOneTokenOnFourRanksIsTheKnownTraffic) {
    const PassShape token = {.contexts = {0}};
    const auto sums = full_pass(4, 0, token);
    EXPECT_NEAR(non_routed(sums), 4.587e9, 0.003e9);
    const WorkSum experts = sums.at(WorkKind::experts);
    EXPECT_DOUBLE_EQ(experts.decoded, 42.0 * 8 * 25165824 / 4);
    EXPECT_DOUBLE_EQ(experts.decoded * 2 / 8, 528482304.0);
    EXPECT_DOUBLE_EQ(experts.weights, 528482304.0 + 42.0 * 8 * 3 * 2 * (4096 + 512));
    const WorkSum four_bits = full_pass(4, 0, token, 4).at(WorkKind::experts);
    EXPECT_DOUBLE_EQ(four_bits.weights, 2 * 528482304.0 + 42.0 * 8 * 3 * 2 * (4096 + 512));
}

// By hand, for one of four ranks: BF16 matrices, fp32 vectors.
TEST(Floor, OfEveryKindIsThatOfItsShapes) {
    const auto sums = full_pass(4, 3, {.contexts = {0}});
    const auto weights = [&](WorkKind kind) { return sums.at(kind).weights; };
    EXPECT_DOUBLE_EQ(weights(WorkKind::embed), 2.0 * 4096);
    EXPECT_DOUBLE_EQ(weights(WorkKind::hyper), 90.0 * (2 * 24 * 16384 + 4 * (24 + 3 + 4096)));
    EXPECT_DOUBLE_EQ(
        weights(WorkKind::kda),
        34.0 * (2 * (3 * 2048 * 4096 + 2 * 128 * 4096 + 2 * 2048 * 128 + 16 * 4096 + 4096 * 2048) +
                4 * (3 * 2048 * 4 + 16 + 2048 + 128)));
    EXPECT_DOUBLE_EQ(weights(WorkKind::mla), 11.0 * (2 * (1536 * 4096 + 4096 * 1536 + 512 * 4096 +
                                                          8192 * 512 + 4096 * 4096) +
                                                     4 * (1536 + 512)));
    EXPECT_DOUBLE_EQ(
        weights(WorkKind::indexer),
        11.0 * (2 * (4096 * 1536 + 128 * 4096 + 32 * 4096 + 128 * 4096) + 4 * (2 + 4) * 128));
    EXPECT_DOUBLE_EQ(weights(WorkKind::dense), 3.0 * 2 * 3 * 3072 * 4096);
    EXPECT_DOUBLE_EQ(weights(WorkKind::router), 42.0 * (2 * 288 * 4096 + 4 * 288));
    EXPECT_DOUBLE_EQ(weights(WorkKind::shared), 42.0 * 2 * 3 * 512 * 4096);
    EXPECT_DOUBLE_EQ(weights(WorkKind::head), 2.0 * 38656 * 4096 + 4 * 4096);  // 302 blocks of 128
    EXPECT_EQ(sums.count(WorkKind::draft), 0u);
}

TEST(Floor, CountsStateOfEverySequence) {
    const double kda = 34.0 * 4 * (16 * 128 * 128 + 3 * 6144);
    EXPECT_DOUBLE_EQ(full_pass(4, 0, {.contexts = {0}}).at(WorkKind::kda).state, kda);
    const PassShape two = {.rows = 2, .contexts = {7, 2050}, .pending = 3};
    const auto sums = full_pass(4, 0, two);
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::kda).state, 2 * (kda + 34.0 * 4 * 3 * (4 * 2048 + 16)));
    // 8 and 2051 tokens are all attended to: no pool is scored.
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::mla).state, 11.0 * 4 * 512 * (8 + 2051));
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::indexer).state, 0.0);
}

TEST(Floor, AttendsToAChoiceOfTokensBeyondTheSparseLimit) {
    const auto sums = full_pass(4, 0, {.contexts = {2051}});  // 2052 tokens: 513 pools, no tail
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::mla).state, 11.0 * 4 * 512 * 2048);
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::indexer).state, 11.0 * 4 * 128 * 513);
    const auto longer = full_pass(4, 0, {.contexts = {100002}});
    EXPECT_DOUBLE_EQ(longer.at(WorkKind::mla).state, 11.0 * 4 * 512 * (2048 + 3));
    EXPECT_DOUBLE_EQ(longer.at(WorkKind::indexer).state, 11.0 * 4 * 128 * 25000);
}

TEST(Floor, RanksTogetherDecodeTheWholeModel) {
    const PassShape pass = {.rows = 3, .logit_rows = 3, .contexts = {10}};
    const double whole = full_pass(1, 0, pass).at(WorkKind::experts).decoded;
    for (const int ranks : {2, 4}) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            sum += full_pass(ranks, rank, pass).at(WorkKind::experts).decoded;
        }
        EXPECT_NEAR(sum, whole, 1e-6 * whole) << ranks;
    }
    EXPECT_NEAR(whole, 42 * 25165824.0 * 23.343, 1e-3 * whole);
}

TEST(Floor, WeightsOfAPassGrowOnlyWithTheExpertsItTouches) {
    const auto one = full_pass(4, 0, {.contexts = {0}});
    const auto many = full_pass(4, 0, {.rows = 64, .logit_rows = 64, .contexts = {0}});
    EXPECT_DOUBLE_EQ(non_routed(one), non_routed(many) - 2.0 * 63 * 4096);
    EXPECT_GT(many.at(WorkKind::experts).weights, 30 * one.at(WorkKind::experts).weights);
    EXPECT_DOUBLE_EQ(many.at(WorkKind::kda).activations, 64 * one.at(WorkKind::kda).activations);
}

TEST(Floor, WithoutLogitsReadsNoHead) {
    EXPECT_EQ(full_pass(4, 0, {.rows = 64, .logit_rows = 0, .contexts = {0}}).count(WorkKind::head),
              0u);
}

TEST(Floor, PadsExl3MatricesToBlocks) {
    const Storage three = {.bits = 3};
    const OpWork op = matrix_work(WorkKind::dense, three, 192, 130, 2.5);
    EXPECT_DOUBLE_EQ(op.decoded, 256 * 256);
    EXPECT_DOUBLE_EQ(op.weights, 256 * 256 * 3 / 8 + 2 * 512);
    EXPECT_DOUBLE_EQ(op.multiplied, 2.5 * 192 * 130);
    const OpWork native = matrix_work(WorkKind::dense, {.dtype = Dtype::f32}, 192, 130, 1);
    EXPECT_DOUBLE_EQ(native.weights, 4.0 * 192 * 130);
    EXPECT_DOUBLE_EQ(native.decoded, 0.0);
}

TEST(Floor, CountsWhatIsMultiplied) {
    const auto sums = [](double rows) {
        std::map<WorkKind, double> multiplied;
        const ModelConfig config = full_config();
        for (const OpWork& op :
             target_work(config, routed_only(2), plan_shards(config, 2, 0),
                         {.rows = rows, .logit_rows = 3, .contexts = {0}, .pending = 0})) {
            multiplied[op.kind] += op.multiplied;
        }
        return multiplied;
    };
    // Half of an expert to a rank; eight of them for every row, however many are distinct.
    EXPECT_DOUBLE_EQ(sums(500)[WorkKind::experts], 500.0 * 8 * 42 * 3 * 4096 * 1024);
    EXPECT_DOUBLE_EQ(sums(1)[WorkKind::experts], 8.0 * 42 * 3 * 4096 * 1024);
    EXPECT_DOUBLE_EQ(sums(500)[WorkKind::head], 3.0 * 77440 * 4096);
    EXPECT_DOUBLE_EQ(sums(500)[WorkKind::dense], 500.0 * 3 * 3 * 4096 * 6144);
}

TEST(Floor, IsBoundByMemoryDecodingOrMultiplying) {
    const Storage two = {.bits = 2};
    const std::vector<OpWork> ops = {
        {.kind = WorkKind::kda, .weights = 100, .state = 20, .activations = 30},
        {.kind = WorkKind::experts, .weights = 50, .decoded = 400, .storage = two},
    };
    MachineRates rates{.read = 10, .decode = {{two, 20}}};
    EXPECT_DOUBLE_EQ(floor_seconds(ops, rates), 15 + 20);
    rates.decode[two] = 100;
    EXPECT_DOUBLE_EQ(floor_seconds(ops, rates), 15 + 5);
    rates.decode.clear();  // not known: bound by memory alone
    EXPECT_DOUBLE_EQ(floor_seconds(ops, rates), 15 + 5);
    EXPECT_DOUBLE_EQ(floor_seconds(ops, {}), 0.0);
    const std::vector<OpWork> many = {{.kind = WorkKind::kda, .weights = 10, .multiplied = 60},
                                      {.kind = WorkKind::kda, .weights = 20},
                                      {.kind = WorkKind::head, .weights = 30, .multiplied = 60}};
    rates.multiply = 30;
    EXPECT_DOUBLE_EQ(floor_seconds(many, rates), 2 + 2 + 3);
    const auto floors = floors_by_kind(many, rates);
    EXPECT_EQ(floors.size(), 2u);
    EXPECT_DOUBLE_EQ(floors.at(WorkKind::kda), 2 + 2);
}

TEST(Floor, NamesAMissingModule) {
    const ModelConfig config = full_config();
    const StorageOf nothing = [](const std::string& module) -> std::optional<Storage> {
        if (module == "layers.7.self_attn.kv_b_proj") return std::nullopt;
        return Storage{};
    };
    expect_error(ErrorKind::input, {"layers.7.self_attn.kv_b_proj"}, [&] {
        target_work(config, nothing, plan_shards(config, 1, 0), {.contexts = {0}});
    });
}

TEST(StoredIn, ReadsFormsFromHeaders) {
    const Checkpoint pack(data_path("models") / "demo-full-4bpw");
    const StorageOf storage = stored_in(pack);
    const auto form = [&](const char* module) { return storage(module).value(); };
    EXPECT_EQ(form("lm_head"),
              (Storage{.bits = 6, .codebook = Codebook::mul1, .dtype = Dtype::f16}));
    EXPECT_EQ(form("layers.0.self_attn.qkv_proj").bits, 6);
    EXPECT_EQ(form("layers.5.mlp.experts.7.down_proj").bits, 4);
    EXPECT_EQ(form("layers.3.self_attn.kv_b_proj"), (Storage{.dtype = Dtype::f16}));
    EXPECT_EQ(form("layers.2.hc_attn_fn").bits, 0);
    EXPECT_EQ(form("embed_tokens"), (Storage{.dtype = Dtype::bf16}));
    EXPECT_FALSE(storage("layers.0.self_attn.q_proj"));
    const Checkpoint toy(data_path("models") / "toy-vocab768");
    const StorageOf mixed = stored_in(toy);
    EXPECT_EQ(mixed("layers.2.mlp.experts.0.gate_proj").value().codebook, Codebook::mcg);
}

// One prefix, that of the embedding; only a number behind ".rank" makes a part.
TEST(StoredIn, ReadsNamesAsTheModelDoes) {
    const StoredModules stored(
        {zeros("embed_tokens.weight", "BF16", {2}), zeros("model.tower.weight", "F16", {2}),
         zeros("ranked.ranking.trellis", "I16", {8, 8, 32}),
         zeros("split.rank0.trellis", "I16", {8, 8, 48}), marker("split", Codebook::mcg)});
    const StorageOf storage = stored_in(stored.checkpoint());
    EXPECT_EQ(storage("embed_tokens").value().dtype, Dtype::bf16);
    EXPECT_EQ(storage("model.tower").value().dtype, Dtype::f16);
    EXPECT_FALSE(storage("tower"));
    EXPECT_EQ(storage("ranked.ranking").value().bits, 2);
    EXPECT_EQ(storage("split").value(),
              (Storage{.bits = 3, .codebook = Codebook::mcg, .dtype = Dtype::f16}));
    EXPECT_FALSE(storage("split.mcg"));
}

// A pass that chooses every expert reads all that was loaded, but for rows of the embedding.
TEST(Floor, OfAPassThatTouchesEverythingIsWhatTheModelHolds) {
    for (const char* name : {"demo-full-4bpw", "toy-vocab768", "toy-native", "toy-padded"}) {
        const std::unique_ptr<Communicator> comm = make_self_comm();
        ModelCase loaded(data_path("models") / name, *comm,
                         {.slots = 1, .capacity = 64, .max_rows = 64, .max_block = 1});
        const Checkpoint checkpoint(data_path("models") / name);
        const ModelConfig& config = loaded.config();
        const auto sums =
            sums_by_kind(target_work(config, stored_in(checkpoint), plan_shards(config, 1, 0),
                                     {.rows = 1e6, .contexts = {0}}));
        double weights = 0;
        for (const auto& [kind, sum] : sums) weights += kind == WorkKind::embed ? 0 : sum.weights;
        const Matrix& table = loaded.model().embedding();
        weights += static_cast<double>(table.n * table.k * size_of(table.dtype));
        // Everything loaded starts on a boundary of 64 bytes; tables of experts are counted too.
        const auto held = static_cast<double>(loaded.model().weight_bytes());
        EXPECT_LE(weights, held) << name;
        EXPECT_GT(weights, 0.97 * held) << name;
    }
}

// A model made up has the shapes of the released one.
TEST(WorkBound, OfAModelMadeUpIsThatOfTheFullModel) {
    const MadeTarget made = make_glm_target({});
    const PassShape pass = {.rows = 3, .logit_rows = 3, .contexts = {150}, .pending = 1};
    const auto expected = full_pass(1, 0, pass);
    const auto found = sums_by_kind(
        target_work(made.config, stored_in(made.checkpoint), plan_shards(made.config, 1, 0), pass));
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [kind, sum] : found) {
        EXPECT_EQ(sum.bytes(), expected.at(kind).bytes()) << name(kind);
        EXPECT_EQ(sum.decoded, expected.at(kind).decoded) << name(kind);
    }
    const MadeDrafter drafter = make_glm_drafter(45);
    EXPECT_EQ(drafter.config.target_layer_ids, full_draft_config().target_layer_ids);
    EXPECT_EQ(make_glm_drafter(5).config.target_layer_ids, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace quadrille::test
