// SPDX-License-Identifier: Apache-2.0
#include "jobs/eval/reference.h"

#include "io/files.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

namespace quadrille {
namespace {

// Terms of a divergence are added as integers of this size, so that their sum does not depend on
// how ranks share the vocabulary. 155,000 roundings are at most 5e-9.
constexpr double kUnit = 0x1p-44;

int open_scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "quadrille-XXXXXX").string();
    const int file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) {
        throw Error(ErrorKind::io, fmt::format("{}: cannot be made: {} (a file for rows of "
                                               "--against; TMPDIR names its folder)",
                                               name, system_reason(errno)));
    }
    ::unlink(name.c_str());
    return file;
}

// All of `bytes` at `at`, by `call` (pread or pwrite).
template <class Call, class Byte>
void transfer(Call call, int file, Byte* data, int64_t bytes, int64_t at, const char* what) {
    for (int64_t done = 0; done < bytes;) {
        const ssize_t count = call(file, data + done, static_cast<size_t>(bytes - done), at + done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            throw Error(ErrorKind::io,
                        fmt::format("rows of --against in TMPDIR: cannot {} {} bytes: {}", what,
                                    bytes, count < 0 ? system_reason(errno) : "the file ends"));
        }
        done += count;
    }
}

}  // namespace

Reference::Reference(ModelSession& session, const std::string& folder, int64_t vocab_size)
    : session_(session) {
    models_.emplace(ModelChoice{.target = folder}, session.group().size(), session.group().rank());
    hidden_ = models_->config().hidden_size;
    if (models_->config().vocab_size != vocab_size) {
        throw Error(ErrorKind::input,
                    fmt::format("--against {}: expected the target's vocabulary of {} tokens, "
                                "found {}",
                                folder, vocab_size, models_->config().vocab_size));
    }
    file_ = open_scratch();
}

Reference::~Reference() {
    if (file_ >= 0) ::close(file_);
}

void Reference::load(const ModelLimits& limits) {
    Backend& backend = session_.backend();
    models_->load(backend, session_.model_comm(), session_.position(), limits,
                  models_->config().vocab_size);
    max_rows_ = prefill_rows(limits);
    part_ = models_->target().plan().vocab;
    forcing_.emplace(backend, session_.position(), models_->target(),
                     TeacherForcingOptions{.max_batched_tokens = max_rows_, .logits = false});
}

void Reference::read(std::span<const TeacherForcing::Tokens> sequences) {
    forcing_->run(sequences, [&](const ObservedRows& rows) {
        const int64_t count = rows.hidden.rows * hidden_;
        host_.resize(static_cast<size_t>(count));
        session_.backend().download(host_.data(), rows.hidden.data, count * int64_t{sizeof(float)});
        transfer(::pwrite, file_, reinterpret_cast<const std::byte*>(host_.data()),
                 count * int64_t{sizeof(float)}, written_ * hidden_ * int64_t{sizeof(float)},
                 "write");
        written_ += rows.hidden.rows;
    });
}

void Reference::end_reading() {
    forcing_.reset();
    const std::string folder = models_->checkpoint().folder().string();
    const int64_t vocab = models_->config().vocab_size;
    models_.emplace(ModelChoice{.target = folder}, session_.group().size(),
                    session_.group().rank());
    Backend& backend = session_.backend();
    loader_ = std::make_unique<WeightLoader>(backend, models_->checkpoint());
    head_ = loader_->column_parallel("lm_head", vocab, hidden_, part_);
    loader_->read();
    scores_.emplace(backend, session_.model_comm(), part_, max_rows_);
}

std::span<const RowDistance> Reference::distances(int64_t first, View<const float> logits,
                                                  std::span<const RowScore> target) {
    const auto count = static_cast<int64_t>(target.size());
    require(first + count <= written_ && count <= max_rows_, "rows that were read");
    Backend& backend = session_.backend();
    if (rows_.view().rows < count) {  // no more than the target's logits are held at once
        rows_ = Array<float>(backend, count, hidden_);
        logits_ = Array<float>(backend, count, part_.size());
    }
    host_.resize(static_cast<size_t>(count * hidden_));
    transfer(::pread, file_, reinterpret_cast<std::byte*>(host_.data()),
             count * hidden_ * int64_t{sizeof(float)}, first * hidden_ * int64_t{sizeof(float)},
             "read");
    backend.upload(rows_.data(), host_.data(), count * hidden_ * int64_t{sizeof(float)});
    backend.linear(logits_.first(count), rows_.first(count), head_);
    const std::vector<int32_t> any(target.size(), 0);
    const auto mine = scores_->score(logits_.first(count), any);
    const int64_t width = part_.size();
    host_.resize(static_cast<size_t>(width));
    theirs_.resize(static_cast<size_t>(width));
    sums_.assign(target.size(), 0);
    distances_.assign(target.size(), {});
    for (int64_t row = 0; row < count; ++row) {
        const auto at = static_cast<size_t>(row);
        backend.download(host_.data(), logits_.first(count).row(row),
                         width * int64_t{sizeof(float)});
        backend.download(theirs_.data(), logits.row(row), width * int64_t{sizeof(float)});
        for (int64_t i = 0; i < width; ++i) {
            const double log_p = double{host_[static_cast<size_t>(i)]} - mine[at].log_sum;
            const double log_q = double{theirs_[static_cast<size_t>(i)]} - target[at].log_sum;
            const double term = std::exp(log_p) * (log_p - log_q);
            if (std::isfinite(term)) sums_[at] += std::llround(term / kUnit);
        }
        distances_[at].same_best = mine[at].best == target[at].best;
    }
    Communicator& group = session_.group();
    all_sums_.resize(target.size() * static_cast<size_t>(group.size()));
    group.all_gather_host(all_sums_.data(), sums_.data(), count * int64_t{sizeof(int64_t)});
    for (size_t row = 0; row < target.size(); ++row) {
        int64_t sum = 0;
        for (size_t at = row; at < all_sums_.size(); at += target.size()) sum += all_sums_[at];
        distances_[row].divergence = static_cast<double>(sum) * kUnit;
    }
    return distances_;
}

}  // namespace quadrille
