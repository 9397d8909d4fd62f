// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/model_session.h"

#include "io/checkpoint/verify.h"
#include "jobs/common/model_identity.h"
#include "jobs/common/version.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace quadrille {

namespace {

using namespace std::chrono_literals;

constexpr auto kTurn = 300ms;

}  // namespace

ModelSession::~ModelSession() {
    start_.signals.end_through({});
}

// Groups are told apart before anything else: the watchdog must know who waits for whom.
ModelSession::ModelSession(const ModelOptions& options, const RankStart& start)
    : options_(options), start_(start), log_(start.session.rank() == 0) {
    MpiSession& session = start_.session;
    const std::vector<Placement> all =
        agree("ranks", [&] { return place_ranks(session.hosts(), options_.tp); });
    for (const Placement& placement : all) group_of_rank_.push_back(placement.group);
    placement_ = all[static_cast<size_t>(session.rank())];
    if (group_count() == 1) return;
    group_ = session.split(placement_.group, placement_.rank_in_group);
}

void ModelSession::watch(std::chrono::seconds silence, std::function<void()> at_end,
                         std::function<void(const Error&)> on_error) {
    const MpiSession& session = start_.session;
    fatal_.emplace(
        Fatal::Rank{.rank = session.rank(), .size = session.size(), .host = session.host()},
        position_, &MpiSession::abort);
    if (at_end) fatal_->at_end(std::move(at_end));
    fatal_->on_error(std::move(on_error));
    fatal_->at_abort([this] {
        if (device_.device_comm) device_.device_comm->abort();
    });
    start_.signals.end_through([this](const std::string& why) {
        // The first rank that ends takes the others along: one line is enough.
        std::this_thread::sleep_for(start_.session.rank() == 0 ? 0ms : kTurn);
        fatal_->stop(kResumable, why);
    });
    if (silence.count() > 0) {
        watchdog_.emplace(session, position_, *fatal_, start_.launcher, silence, group_of_rank_);
    }
}

// Groups must agree in every bit, as ranks do; and where one fails, all do.
void ModelSession::choose_backend() {
    std::string name = options_.backend;
    if (group_count() > 1 && name == "auto") {
        name = world().max_host(gpu_count() > 0 ? 0 : 1) == 0 ? "cuda" : "cpu";
    }
    std::exception_ptr error;
    try {
        device_ = quadrille::choose_backend(name, options_.comm, start_.session, group(), log_);
    } catch (const AgreedError&) {
        error = std::current_exception();
    }
    agree_on(world(), "backend of all groups", error);
}

void ModelSession::read_checkpoint(int32_t k) {
    agree("checkpoint", [&] {
        position_.about(options_.target);
        models_.emplace(ModelChoice{.target = options_.target,
                                    .draft = options_.draft,
                                    .placement = options_.draft_placement,
                                    .k = k,
                                    .made = options_.made},
                        group().size(), group().rank(),
                        [this](const std::filesystem::path& file) { position_.about(file); });
    });
    h5::Attributes own = models_->identity();
    own["program"] = fmt::format("{} {}", version(), commit());
    own["backend"] = backend().name();
    const std::vector<std::string> all = gather_texts(world(), field_lines(own));
    agree("models of all ranks", [&] {
        const std::string differing = differing_fields(all, mpi().hosts());
        if (differing.empty()) return;
        throw Error(ErrorKind::input,
                    fmt::format("ranks do not have the same model in {}{}:\n{}", options_.target,
                                models_->drafts() ? " and " + options_.draft : "", differing));
    });
    compare_surroundings();
}

void ModelSession::compare_surroundings() {
    const std::vector<std::string> all =
        gather_texts(world(), field_lines(surroundings(device_.libraries)));
    const std::string differing = differing_fields(all, mpi().hosts());
    if (differing.empty()) return;
    log_.notice("ranks run on different software or settings (results do not depend on them):\n" +
                differing);
}

void ModelSession::verify_weights() {
    agree("verification of weights", [&] {
        const auto verify = [this](const Checkpoint& checkpoint) {
            position_.about(checkpoint.folder());
            quadrille::verify_weights(checkpoint, group().rank(), group().size(),
                                      [&](int64_t done, int64_t total) {
                                          position_.about(checkpoint.folder());
                                          log_.loading(done, total);
                                      });
        };
        verify(models_->checkpoint());
        if (models_->drafts()) verify(models_->draft_checkpoint());
    });
}

MemoryPlan ModelSession::make_plan(const ModelLimits& limits, const std::vector<int64_t>& taps) {
    const Backend& device = backend();
    RunPlan run{.backend = device.name(), .ranks = group().size(), .rank = group().rank()};
    run.limits = limits;
    run.nccl = model_comm().name() == "nccl";
    run.eager = options_.eager;
    run.filtered = filtered_;
    run.unified = device.shares_host_memory();
    run.taps = taps;
    return models_->plan(run);
}

const MemoryPlan& ModelSession::plan(const ModelLimits& limits, const std::vector<int64_t>& taps) {
    if (!plan_ || plan_->limits != limits) plan_ = make_plan(limits, taps);
    return *plan_;
}

// Ranks of a host share its memory, those of a device the device's.
int64_t ModelSession::available() {
    const int64_t bytes = backend().available();
    if (bytes < 0 || backend().name() == "check") return -1;
    const std::vector<std::string>& hosts = mpi().hosts();
    const int64_t neighbours = std::ranges::count(hosts, mpi().host());
    const bool own = backend().name() == "cuda" && !backend().shares_host_memory();
    const int64_t gpus = std::max(gpu_count(), 1);
    return bytes / (own ? (neighbours + gpus - 1) / gpus : neighbours);
}

int64_t ModelSession::fitting_slots(int64_t most,
                                    const std::function<ModelLimits(int64_t slots)>& limits) {
    const int64_t own = agree("memory", [&] {
        return quadrille::fitting_slots(most, available(),
                                        [&](int64_t slots) { return plan(limits(slots)); });
    });
    return std::max<int64_t>(-world().max_host(-own), 1);
}

void ModelSession::check_memory(const ModelLimits& limits, const std::vector<int64_t>& taps) {
    agree("memory", [&] {
        const MemoryPlan own = plan(limits, taps);
        const int64_t bytes = available();
        if (bytes < 0 || own.total() <= bytes) return;
        const auto other = [&](int64_t slots, int64_t capacity) {
            ModelLimits changed = limits;
            changed.slots = static_cast<int32_t>(slots);
            changed.capacity = capacity;
            return make_plan(changed, taps);
        };
        throw Error(ErrorKind::device,
                    fmt::format("memory: {} slots of {} tokens do not fit in {}; {}\n{}",
                                limits.slots, limits.capacity, backend().device(),
                                plan_advice(own, bytes, other), plan_table(own, bytes)));
    });
}

void ModelSession::load(const ModelLimits& limits, int64_t known_tokens, Communicator& comm,
                        const std::vector<int64_t>& taps) {
    check_memory(limits, taps);
    agree("weights", [&] {
        models_->load(backend(), comm, position_, limits, known_tokens, taps,
                      [this](int64_t done, int64_t total) { log_.loading(done, total); });
    });
}

}  // namespace quadrille
