// SPDX-License-Identifier: Apache-2.0
// CheckBackend's ops that choose among tokens, and those of the drafter. Choices are exact: they
// start from the same logits.
#include "kernels/check/check_backend.h"
#include "kernels/check/op_call.h"
#include "kernels/check/tolerance.h"

namespace quadrille::check {

// ---- vocabulary ---------------------------------------------------------------------------------

void CheckBackend::argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                          int32_t valid) {
    call("argmax")
        .out("value", View<float>(value, 1, logits.rows))
        .out("id", View<int32_t>(id, 1, logits.rows))
        .run([&](Backend& b, auto&& at) {
            b.argmax(at(value, logits.rows), at(id, logits.rows), at(logits), first_id, valid);
        });
}
void CheckBackend::top_k(View<float> values, View<int32_t> ids, View<const float> logits,
                         int32_t first_id, int32_t valid) {
    call("top_k").out("values", values).out("ids", ids).run([&](Backend& b, auto&& at) {
        b.top_k(at(values), at(ids), at(logits), first_id, valid);
    });
}
void CheckBackend::merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                               const int32_t* part_ids, int32_t count, int64_t part_stride) {
    const int64_t read = (count - 1) * part_stride + values.rows * values.cols;
    call("merge_top_k").out("values", values).out("ids", ids).run([&](Backend& b, auto&& at) {
        b.merge_top_k(at(values), at(ids), at(part_values, read), at(part_ids, read), count,
                      part_stride);
    });
}

void CheckBackend::mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                             int32_t count) {
    call("mark_seen").update("seen", seen).run([&](Backend& b, auto&& at) {
        b.mark_seen(at(seen), at(slots, count), at(tokens, count), count);
    });
}
void CheckBackend::sample(double* score, int32_t* id, float* logit, const SampleInput& in,
                          View<const int32_t> excluded) {
    const int64_t count = in.count;
    call("sample")
        .out("score", View<double>(score, 1, count))
        .out("id", View<int32_t>(id, 1, count))
        .out("logit", View<float>(logit, 1, count))
        .run([&](Backend& b, auto&& at) {
            b.sample(at(score, count), at(id, count), at(logit, count), at(in), at(excluded));
        });
}
void CheckBackend::sample_filtered(int32_t* id, const SampleInput& in) {
    call("sample_filtered")
        .out("id", View<int32_t>(id, 1, in.count))
        .run([&](Backend& b, auto&& at) { b.sample_filtered(at(id, in.count), at(in)); });
}
void CheckBackend::sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                                     const SampleInput& in) {
    call("sample_candidates")
        .out("values", values)
        .out("raw", raw)
        .out("ids", ids)
        .run([&](Backend& b, auto&& at) {
            b.sample_candidates(at(values), at(raw), at(ids), at(in));
        });
}
void CheckBackend::sample_sum(ExpSum* sums, const SampleInput& in) {
    call("sample_sum").out("sums", View<ExpSum>(sums, 1, in.count)).run([&](Backend& b, auto&& at) {
        b.sample_sum(at(sums, in.count), at(in));
    });
}
void CheckBackend::sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                             const SampleInput& in) {
    call("sample_at").out("values", values).out("raw", raw).run([&](Backend& b, auto&& at) {
        b.sample_at(at(values), at(raw), at(ids), at(in));
    });
}

// ---- between the parts of a decode step ---------------------------------------------------------

void CheckBackend::block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                                const Rows& rows) {
    call("block_tokens")
        .out("tokens", View<int32_t>(tokens, 1, rows.m))
        .run([&](Backend& b, auto&& at) {
            b.block_tokens(at(tokens, rows.m), at(anchor, path.rows), at(path), at(rows));
        });
}
void CheckBackend::mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                                 const Rows& rows) {
    const int64_t words = (rows.m + 3) / 4;
    call("mark_accepted")
        .out("write", View<uint32_t>(reinterpret_cast<uint32_t*>(write), 1, words))
        .run([&](Backend& b, auto&& at) {
            b.mark_accepted(at(write, words * 4), at(tokens, rows.m), at(target, rows.m), at(rows));
        });
}
void CheckBackend::merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                                 int32_t count, int64_t part_bytes) {
    call("merge_samples").out("id", View<int32_t>(id, 1, m)).run([&](Backend& b, auto&& at) {
        b.merge_samples(at(id, m), at(scores, (count - 1) * part_bytes / 8 + m),
                        at(ids, (count - 1) * part_bytes / 4 + m), m, count, part_bytes);
    });
}

// ---- drafter ------------------------------------------------------------------------------------

void CheckBackend::draft_append(const DraftCache& cache, View<const float> key,
                                View<const float> value, const float* k_norm, const uint8_t* write,
                                const DraftAttentionParams& params, const Rows& rows) {
    call("draft_append")
        .update("keys", cache.keys, kGpuRecurrentRelativeRms)
        .update("values", cache.values)
        .run([&](Backend& b, auto&& at) {
            b.draft_append(at(cache), at(key), at(value), at(k_norm, params.head_dim),
                           at(write, rows.m), params, at(rows));
        });
}
void CheckBackend::draft_attention(View<float> out, const DraftBlock& block,
                                   const DraftCache& cache, const DraftAttentionParams& params,
                                   const Rows& rows) {
    call("draft_attention")
        .out("out", out, kGpuRecurrentRelativeRms)
        .run([&](Backend& b, auto&& at) {
            b.draft_attention(at(out), at(block, params), at(cache), params, at(rows));
        });
}
void CheckBackend::draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                              const float* base, int32_t taps, int32_t group, int32_t block) {
    call("draft_conv").out("out", out, kGpuSequenceRelativeRms).run([&](Backend& b, auto&& at) {
        b.draft_conv(at(out), at(in), at(dynamic), at(base, taps * in.cols), taps, group, block);
    });
}
void CheckBackend::walk_path(View<int32_t> path, View<float> scores, const WalkInput& in) {
    call("walk_path")
        .out("path", path)
        .out("scores", scores, kGpuSequenceRelativeRms)
        .run([&](Backend& b, auto&& at) { b.walk_path(at(path), at(scores), at(in, path.rows)); });
}

}  // namespace quadrille::check
