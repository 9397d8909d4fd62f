#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/op_golden.h5: inputs and results of the ops that carry state or mix streams.

  python3 tools/reference/make_op_goldens.py [tests/data]        needs numpy and h5py

The results come from glm53flash_ref.Ref and dflash2_ref in float64. Where an op lies inside a
sublayer, o_proj is the identity, so that the sublayer returns what the op does; its inputs are the
projections of the sublayer's input.
"""
import os
import sys

import h5py
import numpy as np

import dflash2_ref
from glm53flash_ref import Ref, rms

EPS = 1e-5


def put(group, **arrays):
    for name, value in arrays.items():
        value = np.asarray(value)
        kind = np.int32 if value.dtype.kind in "iu" else np.float32
        group.create_dataset(name, data=value.astype(kind), compression="gzip", shuffle=True)


def exact(z):
    """Values that fp32 holds exactly."""
    return z.astype(np.float32).astype(np.float64)


def hyper(out, r):
    n, h, tokens = 4, 48, 6
    c = dict(hc_mult=n, hc_eps=1e-6, hc_sinkhorn_iters=20, rms_norm_eps=EPS, num_hidden_layers=0)
    w = {"hc_attn_fn": exact(r.standard_normal(((2 + n) * n, n * h)) / np.sqrt(n * h)),
         "hc_attn_base": exact(0.3 * r.standard_normal((2 + n) * n)),
         "hc_attn_scale": exact(1 + 0.3 * r.standard_normal(3))}
    ref = Ref(c, w)
    streams, y = exact(2 * r.standard_normal((tokens, n, h))), exact(r.standard_normal((tokens, h)))
    x, post, mix, after = [], [], [], []
    for s, one in zip(streams, y):
        a, b, m = ref.hc("", "attn", s)
        x.append(a), post.append(b), mix.append(m)
        after.append(b[:, None] * one + m.T @ s)
    put(out, streams=streams, y=y, fn=w["hc_attn_fn"], base=w["hc_attn_base"], scale=w["hc_attn_scale"],
        x=x, post=post, mix=mix, after=after, mean=np.mean(after, 1))


def kda(out, r):
    heads, d, taps, hidden, rank, tokens = 3, 16, 4, 20, 8, 20
    c = dict(linear_num_heads=heads, linear_head_dim=d, linear_conv_kernel_dim=taps, linear_lower_bound=-5.0,
             rms_norm_eps=EPS, num_hidden_layers=0)
    D = heads * d
    w = {"o_proj.weight": np.eye(D), "b_proj.weight": r.standard_normal((heads, hidden)) / np.sqrt(hidden),
         "A_log": exact(0.5 * r.standard_normal(heads)), "dt_bias": exact(-2 + r.standard_normal(D)),
         "o_norm.weight": exact(1 + 0.2 * r.standard_normal(d))}
    for s in "qkv":
        w[f"{s}_proj.weight"] = r.standard_normal((D, hidden)) / np.sqrt(hidden)
        w[f"{s}_conv1d.weight"] = exact(0.5 * r.standard_normal((D, 1, taps)))
    for s in "fg":
        w[f"{s}_a_proj.weight"] = r.standard_normal((rank, hidden)) / np.sqrt(hidden)
        w[f"{s}_b_proj.weight"] = r.standard_normal((D, rank)) / np.sqrt(rank)
    ref, st, rows = Ref(c, w), {}, {k: [] for k in ("qkv", "f", "b", "g", "result")}
    for x in r.standard_normal((tokens, hidden)):
        rows["qkv"].append(np.concatenate([w[f"{s}_proj.weight"] @ x for s in "qkv"]))
        for s in "fg":
            rows[s].append(w[f"{s}_b_proj.weight"] @ (w[f"{s}_a_proj.weight"] @ x))
        rows["b"].append(w["b_proj.weight"] @ x)
        rows["result"].append(ref.kda("", x, st))
    put(out, conv=np.concatenate([w[f"{s}_conv1d.weight"][:, 0] for s in "qkv"]), a_log=w["A_log"],
        dt_bias=w["dt_bias"], o_norm=w["o_norm.weight"], state=st["S"], **rows)


class Watched(Ref):
    """Keeps what each token attended to."""

    def select(self, p, x, qr, st):
        self.selected = super().select(p, x, qr, st)
        return self.selected


def mla(out, r):
    heads, dn, dv, latent, ihead, idim, hidden, qrank, tokens = 3, 24, 16, 32, 16, 16, 20, 12, 60
    c = dict(num_attention_heads=heads, qk_nope_head_dim=dn, v_head_dim=dv, kv_lora_rank=latent, index_kpool=4,
             index_head_dim=idim, index_n_heads=ihead, index_topk=16, rms_norm_eps=EPS, num_hidden_layers=0)

    def matrix(rows, cols):
        return r.standard_normal((rows, cols)) / np.sqrt(cols)
    w = {"q_a_proj.weight": matrix(qrank, hidden), "q_b_proj.weight": matrix(heads * dn, qrank),
         "q_a_layernorm.weight": 1 + 0.2 * r.standard_normal(qrank),
         "kv_a_proj_with_mqa.weight": matrix(latent, hidden),
         "kv_a_layernorm.weight": 1 + 0.2 * r.standard_normal(latent),
         "kv_b_proj.weight": exact(matrix(heads * (dn + dv), latent)), "o_proj.weight": np.eye(heads * dv),
         "indexer.wq_b.weight": matrix(ihead * idim, qrank), "indexer.wk.weight": matrix(idim, hidden),
         "indexer.weights_proj.weight": matrix(ihead, hidden), "indexer.k_norm.weight": np.ones(idim),
         "indexer.k_norm.bias": 0.3 * r.standard_normal(idim),
         "indexer.index_kpool_compress_ape": exact(r.standard_normal((4, idim))),
         "indexer.index_kpool_compress_gate": matrix(idim, hidden)}
    ref, st, rows = Watched(c, w), {}, {k: [] for k in (
        "query", "latent", "index_query", "index_weight", "key", "gate", "result", "count", "selected")}
    for x in 2 * r.standard_normal((tokens, hidden)):
        qr = rms(w["q_a_proj.weight"] @ x, EPS, w["q_a_layernorm.weight"])
        k = w["indexer.wk.weight"] @ x
        rows["query"].append(w["q_b_proj.weight"] @ qr)
        rows["index_query"].append(w["indexer.wq_b.weight"] @ qr)
        rows["index_weight"].append(w["indexer.weights_proj.weight"] @ x)
        rows["key"].append((k - k.mean()) / np.sqrt(k.var() + 1e-6) + w["indexer.k_norm.bias"])
        rows["gate"].append(w["indexer.index_kpool_compress_gate"] @ x)
        rows["result"].append(ref.mla("", x, st))
        rows["latent"].append(st["lat"][-1])
        attended = np.sort(ref.selected)
        every = len(attended) == len(st["lat"])
        rows["count"].append(-1 if every else len(attended))
        rows["selected"].append(np.concatenate([attended, np.full(19, -1)])[:19] if not every else np.full(19, -1))
    put(out, kv_b=w["kv_b_proj.weight"], ape=w["indexer.index_kpool_compress_ape"], pools=st["pools"], **rows)


def drafter(out, r):
    H, heads, kv, d, inner, B, group, rank, vocab, taps, n = 32, 4, 2, 16, 48, 5, 8, 12, 40, 2, 31
    c = dict(num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=kv, head_dim=d, sliding_window=11,
             rms_norm_eps=EPS, rope_parameters=dict(rope_theta=10000.0),
             dflash_config=dict(block_size=B, conv_group_size=group, mask_token_id=39, selector_top_k=6))

    def matrix(rows, cols, scale=1.0):
        return exact(scale * r.standard_normal((rows, cols)) / np.sqrt(cols))
    w = {"fc.weight": matrix(H, taps * H), "hidden_norm.weight": exact(1 + 0.2 * r.standard_normal(H)),
         "norm.weight": exact(1 + 0.2 * r.standard_normal(H)),
         "candidate_selector.predecessor_codebook": exact(r.standard_normal((vocab, rank))),
         "candidate_selector.successor_codebook": exact(r.standard_normal((vocab, rank))),
         "candidate_selector.hidden_projection.weight": matrix(rank, H)}
    for l in range(2):
        p = f"layers.{l}."
        for s in ("input_layernorm", "post_attention_layernorm"):
            w[p + s + ".weight"] = exact(1 + 0.2 * r.standard_normal(H))
        for s, rows in (("q", heads * d), ("k", kv * d), ("v", kv * d)):
            w[f"{p}self_attn.{s}_proj.weight"] = matrix(rows, H)
        w[p + "self_attn.o_proj.weight"] = matrix(H, heads * d)
        for s in "qk":
            w[f"{p}self_attn.{s}_norm.weight"] = exact(1 + 0.2 * r.standard_normal(d))
        w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"] = matrix(inner, H), matrix(inner, H)
        w[p + "mlp.down_proj.weight"] = matrix(H, inner)
        for s in ("attention_conv", "mlp_conv"):
            w[f"{p}{s}.base_kernel"] = exact(r.standard_normal((2, 2, H)))
            w[f"{p}{s}.kernel_projection.weight"] = matrix(4 * H // group, H, 0.3)
    embed, head = exact(r.standard_normal((vocab, H))), matrix(vocab, H, 3.0)
    tapped = exact(r.standard_normal((n, taps * H)))
    kv_cache = dflash2_ref.context(w, c, tapped)
    for anchor in (3, 17):
        g = out.create_group(f"anchor_{anchor}")
        h = dflash2_ref.block(w, c, kv_cache, n, anchor, embed)
        put(g, hidden=h, path=np.array(dflash2_ref.walk(w, c, h, head, anchor, B - 1)))
    put(out, embed=embed, head=head, taps=tapped,
        context_key=[k.reshape(n, -1) for k, _ in kv_cache], context_value=[v.reshape(n, -1) for _, v in kv_cache])
    put(out.create_group("weights"), **w)


def main():
    data = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data")
    with h5py.File(os.path.join(data, "op_golden.h5"), "w") as out:
        out.attrs["about"] = "tools/reference/make_op_goldens.py: glm53flash_ref and dflash2_ref, float64"
        out.attrs["version"] = 1
        for seed, make in enumerate((hyper, kda, mla, drafter)):
            make(out.create_group(make.__name__), np.random.default_rng(seed))


if __name__ == "__main__":
    main()
