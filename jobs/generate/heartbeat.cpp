// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/heartbeat.h"

#include "io/output.h"
#include "jobs/common/provenance.h"
#include "kernels/error.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace quadrille {
namespace {

constexpr std::chrono::seconds kInterval{10};

}  // namespace

std::filesystem::path Heartbeat::check(const std::string& name,
                                       std::vector<std::filesystem::path> taken) {
    if (name.empty()) return {};
    const auto objection = [](const std::filesystem::path& path) {
        return not_json(path, "a heartbeat, which is replaced", {"time", "state"});
    };
    return output_path(name, {.option = "--heartbeat",
                              .overwrite = true,
                              .taken = std::move(taken),
                              .objection = objection});
}

Heartbeat::Heartbeat(std::filesystem::path file) : file_(std::move(file)) {
    if (file_.empty()) return;
    replace_file(file_,
                 nlohmann::ordered_json{{"time", utc_now()}, {"state", "starting"}}.dump() + "\n");
    last_ = Clock::now();
}

void Heartbeat::beat(const std::string& state, const Progress& progress, Clock::time_point now) {
    if (file_.empty()) return;
    if (!first_) {
        first_ = progress;
        start_ = now;
    }
    if (state == state_ && now - last_ < kInterval) return;
    state_ = state;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const auto done = static_cast<double>(progress.done - first_->done);
    const auto tokens = static_cast<double>(progress.tokens - first_->tokens);
    nlohmann::ordered_json object{{"time", utc_now()},
                                  {"state", state},
                                  {"records_done", progress.done},
                                  {"records_total", progress.total},
                                  {"tokens", progress.tokens},
                                  {"tokens_per_second", nullptr},
                                  {"accept_length", nullptr},
                                  {"seconds_left", nullptr}};
    if (seconds > 0.0) object["tokens_per_second"] = tokens / seconds;
    if (progress.accept_length > 0.0) object["accept_length"] = progress.accept_length;
    if (done > 0.0)
        object["seconds_left"] =
            seconds * static_cast<double>(progress.total - progress.done) / done;
    try {
        replace_file(file_, object.dump() + "\n");
    } catch (const Error&) {
        // Better luck next time: a watcher sees the age of the file.
    }
}

}  // namespace quadrille
