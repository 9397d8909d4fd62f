// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_case.h"

#include "tests/support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace quadrille::test {

std::optional<std::filesystem::path> find_model(const std::string& name) {
    const std::filesystem::path bundled = data_path("models") / name;
    if (std::filesystem::exists(bundled)) return bundled;
    const char* folder = std::getenv("QUADRILLE_TEST_MODELS");
    if (folder == nullptr || !std::filesystem::exists(std::filesystem::path(folder) / name)) {
        return std::nullopt;
    }
    return std::filesystem::path(folder) / name;
}

std::unique_ptr<Backend> make_backend_of(const std::string& name, const Communicator& comm) {
    return make_backend(name, comm.rank() % std::max(gpu_count(), 1));
}

ModelCase::ModelCase(const std::filesystem::path& folder, Communicator& comm,
                     const ModelLimits& limits, std::vector<int64_t> taps,
                     const std::string& backend)
    : ModelCase(folder, comm, limits, std::move(taps), make_backend_of(backend, comm)) {}

ModelCase::ModelCase(const std::filesystem::path& folder, Communicator& comm,
                     const ModelLimits& limits, std::vector<int64_t> taps,
                     std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)),
      staged_(backend_->on_host() ? nullptr : make_staged_comm(comm, *backend_)),
      comm_(staged_ ? staged_.get() : &comm),
      config_(read_model_config(folder)),
      checkpoint_(folder),
      model_(std::make_unique<TargetModel>(*backend_, *comm_, position_, config_, checkpoint_,
                                           limits, std::move(taps))) {}

std::vector<float> ModelCase::join_logits(View<const float> part) {
    const int64_t rows = part.rows;
    const int64_t widest = block_share(config_.vocab_size, comm_->size(), 0).size();
    std::vector<float> mine(static_cast<size_t>(rows * widest));
    for (int64_t row = 0; row < rows; ++row) {
        backend_->download(mine.data() + row * widest, part.row(row), part.cols * 4);
    }
    std::vector<float> all(mine.size() * static_cast<size_t>(comm_->size()));
    comm_->all_gather_host(all.data(), mine.data(), static_cast<int64_t>(mine.size() * 4));
    std::vector<float> whole(static_cast<size_t>(rows * config_.vocab_size));
    for (int rank = 0; rank < comm_->size(); ++rank) {
        const Range share = block_share(config_.vocab_size, comm_->size(), rank);
        for (int64_t row = 0; row < rows; ++row) {
            std::copy_n(all.begin() + (rank * rows + row) * widest, share.size(),
                        whole.begin() + row * config_.vocab_size + share.begin);
        }
    }
    return whole;
}

std::vector<float> ModelCase::download(View<const float> rows) {
    std::vector<float> values(static_cast<size_t>(rows.rows * rows.cols));
    backend_->download(values.data(), rows.data, std::ssize(values) * 4);
    return values;
}

std::vector<float> ModelCase::forward(StepBatch& batch) {
    batch.upload();
    return join_logits(model_->forward(batch));
}

std::vector<float> ModelCase::prefill(int32_t slot, std::span<const int32_t> tokens,
                                      int32_t chunk) {
    StepBatch batch(*backend_, model_->limits().max_rows, 1);
    std::vector<float> logits;
    for (size_t at = 0; at < tokens.size();) {
        const size_t take = std::min(static_cast<size_t>(chunk), tokens.size() - at);
        const bool last = at + take == tokens.size();
        batch.clear(true);
        batch.add(slot, static_cast<int32_t>(at), 0, tokens.subspan(at, take),
                  last ? Logits::last : Logits::none);
        logits = forward(batch);
        at += take;
    }
    return logits;
}

EngineOptions ModelCase::engine_options(int32_t k) const {
    return {.max_batched_tokens = static_cast<int32_t>(prefill_floor(model_->limits().max_rows)),
            .k = k,
            .known_tokens = config_.vocab_size,
            .eos = config_.eos_token_ids};
}

std::vector<Generation> ModelCase::run(std::vector<Prompt> prompts, const EngineOptions& options,
                                       Drafter* drafter) {
    Engine engine(*backend_, *comm_, position_, *model_, drafter, options);
    for (Prompt& prompt : prompts) engine.submit(std::move(prompt));
    std::vector<Generation> results;
    const auto collect = [&] {
        for (Generation& result : engine.take_finished()) results.push_back(std::move(result));
    };
    collect();
    while (!engine.idle()) {
        engine.step();
        collect();
    }
    std::sort(results.begin(), results.end(), [](const Generation& a, const Generation& b) {
        return a.prompt_index < b.prompt_index;
    });
    return results;
}

std::vector<Prompt> golden_prompts(int64_t max_new_tokens) {
    std::vector<Prompt> prompts;
    for (std::vector<int32_t>& tokens :
         Golden(data_path("demo_golden.h5")).read_ragged<int32_t>("/prompts")) {
        Prompt prompt;
        prompt.index = std::ssize(prompts);
        prompt.tokens = std::move(tokens);
        prompt.options.max_new_tokens = max_new_tokens;
        prompts.push_back(std::move(prompt));
    }
    return prompts;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0.0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        const double difference = std::abs(double{a[i]} - double{b[i]});
        if (!(difference <= largest)) largest = difference;  // keeps a NaN
    }
    return largest;
}

std::string pack_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

}  // namespace quadrille::test
