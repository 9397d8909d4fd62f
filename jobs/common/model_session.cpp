// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/model_session.h"

#include "jobs/common/model_identity.h"
#include "jobs/common/version.h"

#include <fmt/format.h>

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

void ModelSession::load(const ModelLimits& limits, int64_t known_tokens, Communicator& comm,
                        const std::vector<int64_t>& taps) {
    agree("weights", [&] {
        models_->load(backend(), comm, position_, limits, known_tokens, taps,
                      [this](int64_t done, int64_t total) { log_.loading(done, total); });
    });
}

}  // namespace quadrille
