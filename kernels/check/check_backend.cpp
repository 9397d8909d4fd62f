// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_backend.h"

#include "kernels/check/op_call.h"
#include "kernels/check/tolerance.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace quadrille::check {

namespace {

double allowance_of(const Matrix& matrix) {
    if (matrix.is_exl3()) return kGpuExl3RelativeRms;
    return matrix.dtype == Dtype::bf16 ? kGpuBf16RelativeRms : kGpuTf32RelativeRms;
}

}  // namespace

CheckBackend::CheckBackend(std::unique_ptr<Backend> work, std::unique_ptr<Backend> reference)
    : work_(std::move(work)), reference_(std::move(reference)), mirror_(*reference_) {
    require(reference_->on_host(), "check: a reference on host memory");
}

OpCall CheckBackend::call(const char* op) {
    return {*work_, *reference_, mirror_, op};
}

std::string CheckBackend::device() const {
    return fmt::format("{} ({}), checked on {}", work_->device(), work_->name(),
                       reference_->device());
}

// ---- memory -------------------------------------------------------------------------------------

void* CheckBackend::allocate(int64_t bytes) {
    void* const work = work_->allocate(bytes);
    mirror_.add(work, bytes);
    return work;
}
void CheckBackend::release(void* pointer) noexcept {
    mirror_.remove(pointer);
    work_->release(pointer);
}
void CheckBackend::upload(void* to, const void* host, int64_t bytes) {
    if (bytes <= 0) return;
    std::memcpy(mirror_.find(to, bytes), host, static_cast<size_t>(bytes));
    work_->upload(to, host, bytes);
}
void CheckBackend::download(void* host, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    const char* const copy = mirror_.find(from, bytes);
    work_->download(host, from, bytes);
    const auto* const found = static_cast<const char*>(host);
    const auto [a, b] = std::mismatch(found, found + bytes, copy);
    if (a == found + bytes) return;
    throw Error(ErrorKind::internal,
                fmt::format("check: byte {} of {} bytes of {} memory is {:#x}, expected {:#x}: "
                            "something other than an op's outputs was written",
                            a - found, bytes, work_->name(), static_cast<unsigned char>(*a),
                            static_cast<unsigned char>(*b)));
}
void CheckBackend::copy(void* to, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    std::memmove(mirror_.find(to, bytes), mirror_.find(from, bytes), static_cast<size_t>(bytes));
    work_->copy(to, from, bytes);
}
void CheckBackend::fill_zero(void* to, int64_t bytes) {
    if (bytes <= 0) return;
    std::memset(mirror_.find(to, bytes), 0, static_cast<size_t>(bytes));
    work_->fill_zero(to, bytes);
}

// ---- rows ---------------------------------------------------------------------------------------

void CheckBackend::embed(View<float> out, const int32_t* tokens, const Matrix& table,
                         int32_t copies) {
    call("embed").out("out", out).run([&](Backend& b, auto&& at) {
        b.embed(at(out), at(tokens, out.rows), at(table), copies);
    });
}
void CheckBackend::rms_norm(View<float> out, View<const float> in, const float* weight, float eps) {
    call("rms_norm")
        .out("out", out, kGpuSequenceRelativeRms)
        .reads(in)
        .run([&](Backend& b, auto&& at) { b.rms_norm(at(out), at(in), at(weight, in.cols), eps); });
}
void CheckBackend::layer_norm(View<float> out, View<const float> in, const float* weight,
                              const float* bias, float eps) {
    call("layer_norm")
        .out("out", out, kGpuSequenceRelativeRms)
        .reads(in)
        .run([&](Backend& b, auto&& at) {
            b.layer_norm(at(out), at(in), at(weight, in.cols), at(bias, in.cols), eps);
        });
}
void CheckBackend::linear(View<float> out, View<const float> in, const Matrix& weight) {
    call("linear").out("out", out, allowance_of(weight)).run([&](Backend& b, auto&& at) {
        b.linear(at(out), at(in), at(weight));
    });
}
void CheckBackend::linears(std::span<const Product> group) {
    OpCall check = call("linears");
    for (const Product& product : group) {
        check.out("out", product.out, allowance_of(product.weight));
    }
    check.run([&](Backend& b, auto&& at) { b.linears(at(group)); });
}
void CheckBackend::swiglu(View<float> out, View<const float> gate, View<const float> up,
                          float limit) {
    call("swiglu")
        .out("out", out, kGpuSequenceRelativeRms)
        .reads(gate)
        .reads(up)
        .run([&](Backend& b, auto&& at) { b.swiglu(at(out), at(gate), at(up), limit); });
}
void CheckBackend::add(View<float> out, View<const float> in) {
    call("add").update("out", out).run([&](Backend& b, auto&& at) { b.add(at(out), at(in)); });
}
void CheckBackend::tree_sum(View<float> out, const float* parts, int32_t count,
                            int64_t part_stride) {
    const int64_t last = out.rows * out.cols;
    const View<const float> all(parts, 1, count > 0 ? (count - 1) * part_stride + last : 0);
    call("tree_sum").out("out", out).reads(all).run([&](Backend& b, auto&& at) {
        b.tree_sum(at(out), at(parts, all.cols), count, part_stride);
    });
}
void CheckBackend::copy_rows(View<float> out, View<const float> in, const int32_t* index) {
    call("copy_rows").update("out", out).run([&](Backend& b, auto&& at) {
        b.copy_rows(at(out), at(in), at(index, out.rows));
    });
}

// ---- hyper-connections --------------------------------------------------------------------------

void CheckBackend::hyper_weights(View<float> pre, View<float> post, View<float> mix,
                                 View<const float> streams, const Matrix& fn, const float* base,
                                 const float* scale, const HyperParams& params) {
    const double allowed = std::max(kGpuSequenceRelativeRms, allowance_of(fn));
    call("hyper_weights")
        .out("pre", pre, allowed)
        .out("post", post, allowed)
        .out("mix", mix, allowed)
        .run([&](Backend& b, auto&& at) {
            b.hyper_weights(at(pre), at(post), at(mix), at(streams), at(fn), at(base, fn.n),
                            at(scale, 3), params);
        });
}
void CheckBackend::hyper_in(View<float> out, View<const float> streams, View<const float> pre) {
    call("hyper_in").out("out", out, kGpuSequenceRelativeRms).run([&](Backend& b, auto&& at) {
        b.hyper_in(at(out), at(streams), at(pre));
    });
}
void CheckBackend::hyper_out(View<float> streams, View<const float> y, View<const float> post,
                             View<const float> mix) {
    call("hyper_out")
        .update("streams", streams, kGpuSequenceRelativeRms)
        .run([&](Backend& b, auto&& at) { b.hyper_out(at(streams), at(y), at(post), at(mix)); });
}
void CheckBackend::stream_mean(View<float> out, View<const float> streams, int32_t streams_count) {
    call("stream_mean").out("out", out, kGpuSequenceRelativeRms).run([&](Backend& b, auto&& at) {
        b.stream_mean(at(out), at(streams), streams_count);
    });
}

// ---- KDA ----------------------------------------------------------------------------------------

namespace {

// What of each slot's memory means something after a pass: nothing of a state to which nothing
// was committed yet, of the pending rows those of this pass.
struct KdaMeaning {
    std::vector<int64_t> state, conv, qkv, decay, beta;

    KdaMeaning(const KdaState& of, const KdaParams& params, const Rows& rows)
        : state(whole(of.state)),
          conv(whole(of.conv)),
          qkv(whole(of.pending_qkv)),
          decay(whole(of.pending_decay)),
          beta(whole(of.pending_beta)) {
        const int64_t c = int64_t{params.heads} * params.head_dim;
        for (int32_t i = 0; i < rows.sequences; ++i) {
            const int64_t count = rows.begin[i + 1] - rows.begin[i];
            if (rows.slot[i] < 0 || count == 0) continue;
            const auto slot = static_cast<size_t>(rows.slot[i]);
            if (!rows.commit && rows.position[i] == 0) state[slot] = conv[slot] = 0;
            const int64_t waiting = rows.commit ? 0 : count;
            qkv[slot] = waiting * 3 * c;
            decay[slot] = waiting * c;
            beta[slot] = waiting * params.heads;
        }
    }
    static std::vector<int64_t> whole(View<float> view) {
        return std::vector<int64_t>(static_cast<size_t>(view.rows), view.cols);
    }
};

}  // namespace

void CheckBackend::kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
                       const KdaParams& params, const Rows& rows) {
    OpCall check = call("kda");
    KdaMeaning meaning(state, params, check.host()(rows));
    check.out("out", pass.out, kGpuRecurrentRelativeRms)
        .update("state", state.state, kGpuRecurrentRelativeRms, std::move(meaning.state))
        .update("conv", state.conv, kExact, std::move(meaning.conv))
        .update("pending_qkv", state.pending_qkv, kExact, std::move(meaning.qkv))
        .update("pending_decay", state.pending_decay, kGpuSequenceRelativeRms,
                std::move(meaning.decay))
        .update("pending_beta", state.pending_beta, kGpuSequenceRelativeRms,
                std::move(meaning.beta))
        .run([&](Backend& backend, auto&& at) {
            backend.kda(at(pass), at(weights, params), at(state), params, at(rows));
        });
}
void CheckBackend::kda_flush(const KdaWeights& weights, const KdaState& state,
                             const KdaParams& params, int32_t slot, int32_t pending, bool fresh) {
    std::vector<int64_t> whole = KdaMeaning::whole(state.state);
    std::vector<int64_t> history = KdaMeaning::whole(state.conv);
    if (fresh && pending == 0 && slot >= 0) {
        whole[static_cast<size_t>(slot)] = history[static_cast<size_t>(slot)] = 0;
    }
    call("kda_flush")
        .update("state", state.state, kGpuRecurrentRelativeRms, std::move(whole))
        .update("conv", state.conv, kExact, std::move(history))
        .run([&](Backend& b, auto&& at) {
            b.kda_flush(at(weights, params), at(state), params, slot, pending, fresh);
        });
}

// ---- MLA ----------------------------------------------------------------------------------------

void CheckBackend::latent_append(View<float> latents, View<const float> latent, const Rows& rows) {
    call("latent_append").update("latents", latents).run([&](Backend& b, auto&& at) {
        b.latent_append(at(latents), at(latent), at(rows));
    });
}
void CheckBackend::index_pool(const IndexCache& cache, View<const float> key,
                              View<const float> gate, const float* ape, const IndexParams& params,
                              const Rows& rows) {
    call("index_pool")
        .update("pools", cache.pools, kGpuSequenceRelativeRms)
        .update("ring", cache.ring)
        .run([&](Backend& b, auto&& at) {
            b.index_pool(at(cache), at(key), at(gate),
                         at(ape, int64_t{params.pool} * params.head_dim), params, at(rows));
        });
}

namespace {

// Scores of all pools of one row, as index_select ranks them.
std::vector<double> pool_scores(const float* query, const float* weight, const float* pools,
                                int64_t count, const IndexParams& params) {
    std::vector<double> scores(static_cast<size_t>(count));
    for (int64_t p = 0; p < count; ++p) {
        for (int64_t h = 0; h < params.heads; ++h) {
            double match = 0;
            for (int64_t j = 0; j < params.head_dim; ++j) {
                match += static_cast<double>(query[h * params.head_dim + j]) *
                         static_cast<double>(pools[p * params.head_dim + j]);
            }
            scores[static_cast<size_t>(p)] += static_cast<double>(weight[h]) * std::max(match, 0.0);
        }
    }
    return scores;
}

// True: the pools of `found` are as good as those of `expected`.
bool pools_tie(const std::vector<double>& scores, int64_t pool, const int32_t* found,
               const int32_t* expected, int64_t count) {
    const auto pools = std::ssize(scores);
    double largest = 0;
    for (const double score : scores) largest = std::max(largest, std::abs(score));
    double lowest = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < count; ++i) {
        if (expected[i] < 0 || expected[i] / pool >= pools) continue;
        lowest = std::min(lowest, scores[static_cast<size_t>(expected[i] / pool)]);
    }
    for (int64_t i = 0; i < count; ++i) {
        if ((found[i] < 0) != (expected[i] < 0) ||
            (i > 0 && found[i] >= 0 && found[i] <= found[i - 1])) {
            return false;
        }
        if (found[i] < 0 || found[i] / pool >= pools) continue;
        if (found[i] % pool != expected[i] % pool) return false;
        if (scores[static_cast<size_t>(found[i] / pool)] < lowest - kGpuScoreTie * largest) {
            return false;
        }
    }
    return true;
}

}  // namespace

void CheckBackend::index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                                View<const float> weight, const IndexCache& cache,
                                const IndexParams& params, const Rows& rows) {
    OpCall check = call("index_select");
    const Rows host = check.host()(rows);
    const View<const float> queries = check.host()(query);
    const View<const float> weights = check.host()(weight);
    const View<float> pools = check.host()(cache.pools);
    const bool exact = work_->on_host();
    check.out("selected", selected)
        .out("count", View<int32_t>(count, rows.m, 1))
        .unless([&, exact](int64_t row, const int32_t* found, const int32_t* expected) {
            const int32_t sequence = host.row_sequence[row];
            const int32_t slot = host.slot[sequence];
            if (exact || slot < 0) return false;
            const int64_t visible = host.position[sequence] + (row - host.begin[sequence]) + 1;
            return pools_tie(pool_scores(queries.row(row), weights.row(row), pools.row(slot),
                                         visible / params.pool, params),
                             params.pool, found, expected, selected.cols);
        })
        .run([&](Backend& b, auto&& at) {
            b.index_select(at(selected), at(count, rows.m), at(query), at(weight), at(cache),
                           params, at(rows));
        });
}
void CheckBackend::mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                                 View<const float> latents, View<const int32_t> selected,
                                 const int32_t* count, const MlaParams& params, const Rows& rows) {
    call("mla_attention").out("out", out, kGpuSequenceRelativeRms).run([&](Backend& b, auto&& at) {
        b.mla_attention(at(out), at(query), at(kv_b), at(latents), at(selected), at(count, rows.m),
                        params, at(rows));
    });
}

// ---- experts ------------------------------------------------------------------------------------

void CheckBackend::route(View<int32_t> ids, View<float> weights, View<const float> logits,
                         const float* bias, float scale, const Rows& rows) {
    OpCall check = call("route");
    const View<const float> values = check.host()(logits);
    const float* const biases = check.host()(bias, logits.cols);
    const bool exact = work_->on_host();
    const auto score = [&](int64_t row, int32_t id) {
        const auto logit = static_cast<double>(values.row(row)[id]);
        return 1 / (1 + std::exp(-logit)) + static_cast<double>(biases[id]);
    };
    check.out("ids", ids)
        .out("weights", weights, kGpuSequenceRelativeRms)
        .unless([&, exact](int64_t row, const int32_t* found, const int32_t* expected) {
            for (int64_t slot = 0; slot < ids.cols; ++slot) {
                if (exact || found[slot] < 0 || found[slot] >= logits.cols) return false;
                if (std::count(found, found + ids.cols, found[slot]) != 1) return false;
                const double apart = score(row, found[slot]) - score(row, expected[slot]);
                if (!(std::abs(apart) <= kGpuScoreTie)) return false;
            }
            return true;
        })
        .run([&](Backend& b, auto&& at) {
            b.route(at(ids), at(weights), at(logits), at(bias, logits.cols), scale, at(rows));
        });
}
void CheckBackend::moe(View<float> out, View<const float> in, View<const int32_t> ids,
                       View<const float> weights, const MoeWeights& experts,
                       View<const float> shared_gate, View<const float> shared_up) {
    OpCall check = call("moe");
    const MoeWeights host = check.host()(experts);
    double allowed = allowance_of(host.shared.down);
    for (int32_t e = 0; e < host.count; ++e) {
        allowed = std::max(allowed, allowance_of(host.experts[e].down));
    }
    check.out("out", out, kGpuMoeFactor * allowed).run([&](Backend& b, auto&& at) {
        b.moe(at(out), at(in), at(ids), at(weights), at(experts), at(shared_gate), at(shared_up));
    });
}

}  // namespace quadrille::check
