// SPDX-License-Identifier: Apache-2.0
// Ops beside the products, at the shapes of the full model: 4096 hidden; 2 ranks (TP2), 32 of 64
// heads. Decode passes: 3 rows of each sequence, 8192 tokens behind them.
#include "tests/bench/gpu_bench.h"

namespace quadrille::cuda {

namespace {

constexpr int64_t kHidden = 4096;
constexpr int32_t kContext = 8192;
constexpr int32_t kHeads = 32;

// `each` rows of every sequence from `position` on, a slot each.
class Pass {
  public:
    Pass(Backend& backend, int32_t sequences, int32_t each, int32_t position, bool commit)
        : begin_(backend, 1, sequences + 1),
          slot_(backend, 1, sequences),
          position_(backend, 1, sequences),
          pending_(backend, 1, sequences),
          row_sequence_(backend, 1, int64_t{sequences} * each) {
        std::vector<int32_t> begin;
        std::vector<int32_t> slot;
        std::vector<int32_t> of;
        for (int32_t s = 0; s < sequences; ++s) {
            begin.push_back(s * each);
            slot.push_back(s);
            of.insert(of.end(), static_cast<size_t>(each), s);
        }
        begin.push_back(sequences * each);
        const auto count = static_cast<size_t>(sequences);
        begin_.upload(begin);
        slot_.upload(slot);
        row_sequence_.upload(of);
        position_.upload(std::vector<int32_t>(count, position));
        pending_.upload(std::vector<int32_t>(count, commit ? 0 : each));
        rows_ = {.m = sequences * each,
                 .sequences = sequences,
                 .begin = begin_.data(),
                 .slot = slot_.data(),
                 .position = position_.data(),
                 .pending = pending_.data(),
                 .row_sequence = row_sequence_.data(),
                 .commit = commit};
    }
    const Rows& rows() const { return rows_; }
    double m() const { return rows_.m; }

  private:
    Array<int32_t> begin_, slot_, position_, pending_, row_sequence_;
    Rows rows_;
};

// A row of the bench: what it must read and write, and what it multiplies where that says more.
void timed(GpuBench& bench, const std::string& name, double bytes, const std::function<void()>& op,
           double flops = 0.0) {
    const double us = bench.time(32, [&](int64_t) { op(); });
    const std::string rate = flops > 0 ? fmt::format(" ({:.1f} TFLOP/s)", 1e-6 * flops / us) : "";
    bench.row("ops", name + rate, us, "us", bytes / bench.read() * 1e6 / us);
}

void bench_kda(GpuBench& bench, int32_t heads, int32_t sequences, int32_t each, bool commit) {
    constexpr int32_t kDim = 128;
    const int64_t channels = int64_t{heads} * kDim;
    const KdaParams params{.heads = heads, .head_dim = kDim};
    const Pass pass(bench.backend(), sequences, each, commit ? 0 : kContext, commit);
    const int64_t m = pass.rows().m;
    const int64_t most = 8;  // pending rows of a sequence
    const KdaWeights weights{.conv = bench.values(3 * channels, 4).data,
                             .a_log = bench.values(1, heads).data,
                             .dt_bias = bench.values(1, channels).data,
                             .o_norm = bench.values(1, kDim).data};
    const KdaState state{.state = bench.values(sequences, channels * kDim),
                         .conv = bench.values(sequences, 9 * channels),
                         .pending_qkv = bench.values(sequences, most * 3 * channels),
                         .pending_decay = bench.values(sequences, most * channels),
                         .pending_beta = bench.values(sequences, most * heads)};
    const View<float> out = bench.values(m, channels);
    const View<float> qkv = bench.values(m, 3 * channels);
    const View<float> f = bench.values(m, channels);
    const View<float> g = bench.values(m, channels);
    const View<float> b = bench.values(m, heads);
    const double states = 2.0 * sequences * static_cast<double>(channels) * kDim * 4;
    const double rows = pass.m() * static_cast<double>(channels) * 6 * 4;
    const double flops = pass.m() * heads * 7.0 * kDim * kDim;
    timed(
        bench,
        fmt::format("kda TP{}, {} of {} rows{}", 64 / heads, sequences, each,
                    commit ? ", prefill" : ""),
        states + rows,
        [&] {
            bench.backend().kda({out, qkv, f, b, g}, weights, state, params, pass.rows());
        },
        flops);
    bench.clear();
}

void bench_mla(GpuBench& bench, int32_t sequences, int32_t each, int32_t position) {
    constexpr int32_t kLatent = 512;
    constexpr int32_t kIndexDim = 128;
    const IndexParams index{.heads = 32, .head_dim = kIndexDim, .pool = 4, .topk = 2048};
    const MlaParams mla{.heads = kHeads, .key_dim = 256, .value_dim = 256, .latent_dim = kLatent};
    const Pass pass(bench.backend(), sequences, each, position, each > 8);
    const int64_t m = pass.rows().m;
    const int64_t capacity = (position + each + 3) / 4 * 4;
    const IndexCache cache{bench.values(sequences, capacity / 4 * kIndexDim),
                           bench.values(sequences, 16 * 2 * kIndexDim), 16};
    const View<float> latents = bench.values(sequences, capacity * kLatent);
    const Matrix kv_b = bench.native_matrix(int64_t{kHeads} * 512, kLatent, Dtype::bf16);
    const View<float> query = bench.values(m, int64_t{index.heads} * kIndexDim);
    const View<float> weight = bench.values(m, index.heads);
    const View<float> heads = bench.values(m, int64_t{kHeads} * 256);
    const View<float> out = bench.values(m, int64_t{kHeads} * 256);
    Array<int32_t> selected(bench.backend(), m, index.topk + index.pool - 1);
    Array<int32_t> count(bench.backend(), 1, m);
    const std::string shape =
        fmt::format("{} of {} rows behind {} tokens", sequences, each, position);
    const double visible = position + each / 2.0;
    const double pools = visible / 4;
    timed(
        bench, "index_select " + shape, sequences * pools * kIndexDim * 4,
        [&] {
            bench.backend().index_select(selected.view(), count.data(), query, weight, cache, index,
                                         pass.rows());
        },
        2.0 * pass.m() * pools * index.heads * kIndexDim);
    const double keys = std::min(visible, 2051.0);
    const double read = each > 8 ? sequences * visible : pass.m() * keys;
    const double bytes = read * kLatent * 4 + static_cast<double>(kv_b.n) * kLatent * 2 +
                         2 * pass.m() * kHeads * 256 * 4;
    timed(
        bench, "mla TP2, " + shape, bytes,
        [&] {
            bench.backend().mla_attention(out, heads, kv_b, latents, selected.view(), count.data(),
                                          mla, pass.rows());
        },
        4.0 * pass.m() * keys * kHeads * 256);
    bench.clear();
}

void bench_draft(GpuBench& bench, int32_t sequences, int32_t window) {
    const DraftAttentionParams params{
        .heads = 16, .kv_heads = 4, .head_dim = 128, .block = 8, .window = window};
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    const int32_t ring = window > 0 ? window + params.block : kContext + params.block;
    const Pass pass(bench.backend(), sequences, params.block, kContext, false);
    const int64_t m = pass.rows().m;
    const DraftCache cache{bench.values(sequences, ring * width),
                           bench.values(sequences, ring * width), ring};
    const View<float> out = bench.values(m, int64_t{params.heads} * params.head_dim);
    const View<float> query = bench.values(m, int64_t{params.heads} * params.head_dim);
    const View<float> key = bench.values(m, width);
    const View<float> value = bench.values(m, width);
    const View<float> norm = bench.values(1, params.head_dim);
    const double keys = window > 0 ? window : kContext;
    timed(bench, fmt::format("draft_attention TP2, {} blocks, {} keys", sequences, keys),
          2.0 * sequences * keys * static_cast<double>(width) * 4, [&] {
              bench.backend().draft_attention(out, {query, key, value, norm.data, norm.data}, cache,
                                              params, pass.rows());
          });
    bench.clear();
}

}  // namespace

void bench_ops(GpuBench& bench) {
    const Matrix fn = bench.native_matrix(24, 4 * kHidden, Dtype::bf16);
    const View<float> base = bench.values(1, 64);
    for (const int64_t m : {3, 192}) {
        const View<float> streams = bench.values(m, 4 * kHidden);
        const View<float> y = bench.values(m, kHidden);
        const View<float> z = bench.values(m, kHidden);
        const View<float> pre = bench.values(m, 4);
        const View<float> post = bench.values(m, 4);
        const View<float> mix = bench.values(m, 16);
        const auto op = [&](const char* name, double bytes, const std::function<void()>& work) {
            timed(bench, fmt::format("{} m{}", name, m), bytes, work);
        };
        const auto elements = static_cast<double>(m * kHidden) * 4;
        op("hyper_weights", 4 * elements + 24 * 4 * kHidden * 2, [&] {
            bench.backend().hyper_weights(pre, post, mix, streams, fn, base.data, base.data,
                                          HyperParams{});
        });
        op("hyper_in", 5 * elements, [&] { bench.backend().hyper_in(y, streams, pre); });
        op("hyper_out", 9 * elements, [&] { bench.backend().hyper_out(streams, y, post, mix); });
        op("rms_norm", 2 * elements, [&] { bench.backend().rms_norm(z, y, y.data, 1e-5f); });
        op("add", 3 * elements, [&] { bench.backend().add(z, y); });
        const View<float> logits = bench.values(m, 77440);
        const View<float> best = bench.values(m, 16);
        const View<float> offers = bench.values(m, 256);
        Array<int32_t> ids(bench.backend(), m, 16);
        Array<int32_t> offered(bench.backend(), m, 256);
        op("argmax 77440", static_cast<double>(m) * 77440 * 4,
           [&] { bench.backend().argmax(best.data, ids.data(), logits, 0, 77440); });
        op("top_k 16 of 77440", static_cast<double>(m) * 77440 * 4,
           [&] { bench.backend().top_k(best, ids.view(), logits, 0, 77440); });
        op("top_k 256 of 77440", static_cast<double>(m) * 77440 * 4,
           [&] { bench.backend().top_k(offers, offered.view(), logits, 0, 77440); });
    }
    bench.clear();
}

void bench_sequence(GpuBench& bench) {
    for (const int32_t sequences : {1, 8, 64}) bench_kda(bench, kHeads, sequences, 3, false);
    bench_kda(bench, kHeads, 1, 2048, true);
    for (const int32_t sequences : {1, 2, 4, 16}) {
        bench_kda(bench, 2 * kHeads, sequences, 2048 / sequences, true);
    }
    for (const int32_t sequences : {1, 8, 64}) bench_mla(bench, sequences, 3, kContext);
    bench_mla(bench, 1, 2048, 0);
    bench_mla(bench, 1, 2048, 6144);
    for (const int32_t sequences : {1, 8}) {
        for (const int32_t window : {2048, 0}) bench_draft(bench, sequences, window);
    }
}

}  // namespace quadrille::cuda
