// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/heartbeat.h"

#include "io/files.h"
#include "jobs/common/provenance.h"
#include "kernels/error.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <system_error>
#include <utility>

namespace quadrille {
namespace {

constexpr std::chrono::seconds kInterval{10};

}  // namespace

Heartbeat::Heartbeat(std::string file) : file_(std::move(file)) {
    if (file_.empty()) return;
    write(nlohmann::ordered_json{{"time", utc_now()}, {"state", "starting"}}.dump() + "\n");
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
        write(object.dump() + "\n");
    } catch (const Error&) {
        // Better luck next time: a watcher sees the age of the file.
    }
}

void Heartbeat::write(const std::string& text) const {
    std::filesystem::path next = file_;
    next += ".tmp";
    FileHandle file(next, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(0, text);
    file.close();
    std::error_code error;
    std::filesystem::rename(next, file_, error);
    if (error)
        throw Error(ErrorKind::io, file_.string() + ": cannot be replaced: " + error.message());
}

}  // namespace quadrille
