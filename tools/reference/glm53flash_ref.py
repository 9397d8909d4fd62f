#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GLM-5.3-Flash text model (+ MTP) in plain numpy: slow, explicit, one token at a time.

Written from the facts in glm53flash.md (section numbers below refer to it); no code of another
project is used. Weights are a dict {checkpoint name without 'model.language_model.': array};
lm_head.weight is top level. All arithmetic in `dt` (float32 or float64), no bf16 roundings.

  ref = Ref(cfg, weights); logits = ref.step(token)          # one token of one sequence
  h   = ref.last_hidden                                      # post-norm state for the MTP block
  dl  = ref.mtp_step(next_token, h)                          # draft logits; ref.mtp_hidden to recycle

Self-test (tiny random model; sparse == dense below the limit, pooled cache == recomputed):
  /usr/bin/python3 glm53flash_ref.py
"""
import numpy as np

TINY = dict(                                              # section 8
    hidden_size=256, vocab_size=1024, num_hidden_layers=5, num_nextn_predict_layers=1,
    layer_types=["linear_attention"] * 3 + ["deepseek_sparse_attention"] + ["linear_attention"],
    mlp_layer_types=["dense"] * 3 + ["sparse"] * 2,
    intermediate_size=512, moe_intermediate_size=512, n_routed_experts=8, num_experts_per_tok=2,
    n_shared_experts=1, routed_scaling_factor=2.5, swiglu_limit=0.75,
    num_attention_heads=4, q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=256, v_head_dim=256,
    index_n_heads=16, index_head_dim=128, index_topk=32, index_kpool=4,
    linear_num_heads=4, linear_head_dim=128, linear_conv_kernel_dim=4, linear_lower_bound=-5.0,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-5)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def rms(x, eps, w=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if w is None else y * w


class Ref:
    def __init__(self, cfg, w, dt=np.float64, force_dense=False):
        self.c, self.dt, self.force_dense = cfg, dt, force_dense
        self.w = {k: np.asarray(v, dtype=dt) for k, v in w.items()}
        n = cfg["num_hidden_layers"] + cfg.get("num_nextn_predict_layers", 0)
        self.st = [dict() for _ in range(n)]
        self.pos = 0

    # ---- 3.2 hyper-connections ------------------------------------------------------------
    def hc(self, p, site, h):
        c, n = self.c, self.c["hc_mult"]
        flat = rms(h.reshape(-1), c["rms_norm_eps"])
        mix = self.w[f"{p}hc_{site}_fn"] @ flat
        base, scale = self.w[f"{p}hc_{site}_base"], self.w[f"{p}hc_{site}_scale"]
        pre = sigmoid(mix[:n] * scale[0] + base[:n]) + c["hc_eps"]
        post = 2.0 * sigmoid(mix[n:2 * n] * scale[1] + base[n:2 * n])
        m = softmax((mix[2 * n:] * scale[2] + base[2 * n:]).reshape(n, n)) + c["hc_eps"]
        m = m / (m.sum(0, keepdims=True) + c["hc_eps"])
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            m = m / (m.sum(1, keepdims=True) + c["hc_eps"])
            m = m / (m.sum(0, keepdims=True) + c["hc_eps"])
        return pre @ h, post, m

    # ---- 3.3 KDA ---------------------------------------------------------------------------
    def kda(self, p, x, st):
        c, w = self.c, self.w
        nh, d, kk = c["linear_num_heads"], c["linear_head_dim"], c["linear_conv_kernel_dim"]
        qkv = []
        for nm in "qkv":
            u = w[f"{p}{nm}_proj.weight"] @ x
            hist = st.setdefault("conv" + nm, np.zeros((u.size, kk - 1), self.dt))
            win = np.concatenate([hist, u[:, None]], 1)
            st["conv" + nm] = win[:, 1:]
            qkv.append(silu((win * w[f"{p}{nm}_conv1d.weight"][:, 0, :]).sum(1)).reshape(nh, d))
        q, k, v = qkv
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * d ** -0.5
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        f = w[f"{p}f_b_proj.weight"] @ (w[f"{p}f_a_proj.weight"] @ x) + w[f"{p}dt_bias"]
        g = c["linear_lower_bound"] * sigmoid(np.exp(w[f"{p}A_log"])[:, None] * f.reshape(nh, d))
        beta = sigmoid(w[f"{p}b_proj.weight"] @ x)
        S = st.get("S", np.zeros((nh, d, d), self.dt)) * np.exp(g)[:, :, None]      # [head, k, v]
        u = np.einsum("hk,hkv->hv", k, S)
        S = S + k[:, :, None] * (beta[:, None] * (v - u))[:, None, :]
        st["S"] = S
        o = np.einsum("hk,hkv->hv", q, S)
        gate = (w[f"{p}g_b_proj.weight"] @ (w[f"{p}g_a_proj.weight"] @ x)).reshape(nh, d)
        o = rms(o, c["rms_norm_eps"], w[f"{p}o_norm.weight"]) * sigmoid(gate)
        return w[f"{p}o_proj.weight"] @ o.reshape(-1)

    # ---- 3.4 indexer + 3.5 MLA ---------------------------------------------------------------
    def select(self, p, x, qr, st):
        c, w, kp = self.c, self.w, self.c["index_kpool"]
        hd, nh = c["index_head_dim"], c["index_n_heads"]
        k = w[f"{p}wk.weight"] @ x
        k = (k - k.mean()) / np.sqrt(k.var() + 1e-6) * w[f"{p}k_norm.weight"] + w[f"{p}k_norm.bias"]
        tail = st.setdefault("tail", [])
        tail.append((k, w[f"{p}index_kpool_compress_gate"] @ x))
        pools = st.setdefault("pools", [])
        if len(tail) == kp:                                    # pool complete: fold it and forget
            lg = np.stack([t[1] for t in tail]) + w[f"{p}index_kpool_compress_ape"]
            pools.append((softmax(lg, 0) * np.stack([t[0] for t in tail])).sum(0))
            tail.clear()
        T = kp * len(pools) + len(tail)                        # tokens seen incl. this one
        nsel = c["index_topk"] // kp
        if self.force_dense or len(pools) <= nsel:
            return np.arange(T)
        q = (w[f"{p}wq_b.weight"] @ qr).reshape(nh, hd)
        s = np.maximum(q @ np.stack(pools).T * hd ** -0.5, 0)
        score = (w[f"{p}weights_proj.weight"] @ x) * nh ** -0.5 @ s
        top = np.argsort(-score, kind="stable")[:nsel]
        idx = (top[:, None] * kp + np.arange(kp)).reshape(-1)
        return np.concatenate([idx, np.arange(kp * len(pools), T)])

    def mla(self, p, x, st):
        c, w = self.c, self.w
        nh, dn, dv, r = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        eps = c["rms_norm_eps"]
        qr = rms(w[f"{p}q_a_proj.weight"] @ x, eps, w[f"{p}q_a_layernorm.weight"])
        q = (w[f"{p}q_b_proj.weight"] @ qr).reshape(nh, dn)
        st.setdefault("lat", []).append(
            rms(w[f"{p}kv_a_proj_with_mqa.weight"] @ x, eps, w[f"{p}kv_a_layernorm.weight"]))
        sel = self.select(p + "indexer.", x, qr, st)
        lat = np.stack(st["lat"])[sel]                                              # [n, r]
        kvb = w[f"{p}kv_b_proj.weight"].reshape(nh, dn + dv, r)
        qa = np.einsum("hd,hdr->hr", q, kvb[:, :dn])                                # absorbed q
        pr = softmax(qa @ lat.T * dn ** -0.5)
        o = np.einsum("hr,hdr->hd", pr @ lat, kvb[:, dn:])
        return w[f"{p}o_proj.weight"] @ o.reshape(-1)

    # ---- 3.6 MLP / MoE -----------------------------------------------------------------------
    def mlp(self, p, x):
        L = self.c["swiglu_limit"]
        g = np.minimum(self.w[f"{p}gate_proj.weight"] @ x, L)
        u = np.clip(self.w[f"{p}up_proj.weight"] @ x, -L, L)
        return self.w[f"{p}down_proj.weight"] @ (silu(g) * u)

    def route(self, p, x):
        c = self.c
        s = sigmoid(self.w[f"{p}gate.weight"] @ x)
        sel = np.argsort(-(s + self.w[f"{p}gate.e_score_correction_bias"]), kind="stable")
        sel = sel[:c["num_experts_per_tok"]]
        return sel, s[sel] / (s[sel].sum() + 1e-20) * c["routed_scaling_factor"]

    def moe(self, p, x):
        sel, wt = self.route(p, x)
        y = self.mlp(f"{p}shared_experts.", x)
        for e, a in zip(sel, wt):
            y = y + a * self.mlp(f"{p}experts.{e}.", x)
        return y

    # ---- 3.1 / 3.7 the model -----------------------------------------------------------------
    def step(self, token):
        c, w = self.c, self.w
        h = np.repeat(w["embed_tokens.weight"][token][None], c["hc_mult"], 0)
        self.stream_means = []                    # after each layer: what a drafter taps (dflash2.md 2.6)
        for l in range(c["num_hidden_layers"]):
            p = f"layers.{l}."
            attn = self.kda if c["layer_types"][l] == "linear_attention" else self.mla
            x, post, m = self.hc(p, "attn", h)
            y = attn(p + "self_attn.", rms(x, c["rms_norm_eps"], w[p + "input_layernorm.weight"]), self.st[l])
            h = post[:, None] * y + m.T @ h
            x, post, m = self.hc(p, "ffn", h)
            x = rms(x, c["rms_norm_eps"], w[p + "post_attention_layernorm.weight"])
            y = self.moe(p + "mlp.", x) if c["mlp_layer_types"][l] == "sparse" else self.mlp(p + "mlp.", x)
            h = post[:, None] * y + m.T @ h
            self.stream_means.append(h.mean(0))
        self.pos += 1
        self.last_prenorm = h.mean(0)
        self.last_hidden = rms(self.last_prenorm, c["rms_norm_eps"], w["norm.weight"])
        return w["lm_head.weight"] @ self.last_hidden

    # ---- 3.8 MTP -------------------------------------------------------------------------------
    def mtp_step(self, next_token, h_prev):
        c, w, l = self.c, self.w, self.c["num_hidden_layers"]
        p, eps = f"layers.{l}.", self.c["rms_norm_eps"]
        x = w[p + "eh_proj.weight"] @ np.concatenate([
            rms(w["embed_tokens.weight"][next_token], eps, w[p + "enorm.weight"]),
            rms(h_prev, eps, w[p + "hnorm.weight"])])
        x = x + self.mla(p + "self_attn.", rms(x, eps, w[p + "input_layernorm.weight"]), self.st[l])
        x = x + self.moe(p + "mlp.", rms(x, eps, w[p + "post_attention_layernorm.weight"]))
        self.mtp_hidden = rms(x, eps, w[p + "shared_head.norm.weight"])
        return w["lm_head.weight"] @ self.mtp_hidden


# ---- section 2: every tensor of the text model and its shape ---------------------------------------
def tensor_shapes(c):
    H, V, n = c["hidden_size"], c["vocab_size"], c["hc_mult"]
    D, hd = c["linear_num_heads"] * c["linear_head_dim"], c["linear_head_dim"]
    nh, dn, dv, qr, kr = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim",
                                         "q_lora_rank", "kv_lora_rank"))
    ih, idh = c["index_n_heads"], c["index_head_dim"]
    t = {"embed_tokens.weight": (V, H), "norm.weight": (H,), "lm_head.weight": (V, H)}

    def mlp(p, i):
        t[p + "gate_proj.weight"] = t[p + "up_proj.weight"] = (i, H)
        t[p + "down_proj.weight"] = (H, i)
    nl = c["num_hidden_layers"]
    for l in range(nl + c.get("num_nextn_predict_layers", 0)):
        p, mtp = f"layers.{l}.", l >= nl
        t[p + "input_layernorm.weight"] = t[p + "post_attention_layernorm.weight"] = (H,)
        if mtp:
            t[p + "eh_proj.weight"] = (H, 2 * H)
            for s in ("enorm", "hnorm", "shared_head.norm"):
                t[p + s + ".weight"] = (H,)
        else:
            for s in ("attn", "ffn"):
                t[f"{p}hc_{s}_fn"] = ((2 + n) * n, n * H)
                t[f"{p}hc_{s}_base"] = ((2 + n) * n,)
                t[f"{p}hc_{s}_scale"] = (3,)
        a = p + "self_attn."
        if not mtp and c["layer_types"][l] == "linear_attention":
            for s in "qkv":
                t[f"{a}{s}_proj.weight"] = (D, H)
                t[f"{a}{s}_conv1d.weight"] = (D, 1, c["linear_conv_kernel_dim"])
            for s in "fg":
                t[f"{a}{s}_a_proj.weight"] = (hd, H)
                t[f"{a}{s}_b_proj.weight"] = (D, hd)
            t[a + "b_proj.weight"] = (c["linear_num_heads"], H)
            t[a + "A_log"] = (c["linear_num_heads"],)
            t[a + "dt_bias"] = (D,)
            t[a + "o_norm.weight"] = (hd,)
            t[a + "o_proj.weight"] = (H, D)
        else:
            t[a + "q_a_proj.weight"] = (qr, H)
            t[a + "q_a_layernorm.weight"] = (qr,)
            t[a + "q_b_proj.weight"] = (nh * dn, qr)
            t[a + "kv_a_proj_with_mqa.weight"] = (kr, H)
            t[a + "kv_a_layernorm.weight"] = (kr,)
            t[a + "kv_b_proj.weight"] = (nh * (dn + dv), kr)
            t[a + "o_proj.weight"] = (H, nh * dv)
            i = a + "indexer."
            t[i + "wq_b.weight"] = (ih * idh, qr)
            t[i + "wk.weight"] = (idh, H)
            t[i + "weights_proj.weight"] = (ih, H)
            t[i + "k_norm.weight"] = t[i + "k_norm.bias"] = (idh,)
            t[i + "index_kpool_compress_ape"] = (c["index_kpool"], idh)
            t[i + "index_kpool_compress_gate"] = (idh, H)
        if not mtp and c["mlp_layer_types"][l] == "dense":
            mlp(p + "mlp.", c["intermediate_size"])
        else:
            t[p + "mlp.gate.weight"] = (c["n_routed_experts"], H)
            t[p + "mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
            mlp(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
            for e in range(c["n_routed_experts"]):
                mlp(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    return t


def random_weights(c, seed=0):
    """Every parameter is set so that it matters (section 8)."""
    r, out = np.random.default_rng(seed), {}
    for k, s in tensor_shapes(c).items():
        z = r.standard_normal(s)
        if k.endswith(("norm.weight", "layernorm.weight")):
            v = 1 + 0.2 * z
        elif k.endswith(("hc_attn_base", "hc_ffn_base", "k_norm.bias", "e_score_correction_bias")):
            v = 0.3 * z
        elif k.endswith(("hc_attn_scale", "hc_ffn_scale")):
            v = 1 + 0.3 * z
        elif k.endswith("A_log"):
            v = 0.5 * z
        elif k.endswith("dt_bias"):
            v = -2 + z
        elif k.endswith("conv1d.weight"):
            v = 0.5 * z
        elif k.endswith("compress_ape"):
            v = z
        elif k == "embed_tokens.weight":
            v = z
        else:
            v = z / np.sqrt(s[-1])
        out[k] = v
    return out


# ---- section 6: tensor-parallel shards ---------------------------------------------------------------
SHARD_ROWS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_conv1d.weight", "k_conv1d.weight",
              "v_conv1d.weight", "f_b_proj.weight", "g_b_proj.weight", "self_attn.b_proj.weight", "A_log",
              "dt_bias", "q_b_proj.weight", "kv_b_proj.weight", "gate_proj.weight", "up_proj.weight",
              "embed_tokens.weight", "lm_head.weight")        # dim 0 (output rows; heads are contiguous)
SHARD_COLS = ("o_proj.weight", "down_proj.weight")            # dim 1 (input columns)


def shard(c, w, r, n):
    """Config and weights of rank r of n; what neither tuple names is replicated."""
    out = {}
    for k, v in w.items():
        ax = 0 if k.endswith(SHARD_ROWS) else 1 if k.endswith(SHARD_COLS) else None
        out[k] = v if ax is None else np.split(v, n, axis=ax)[r]
    rc = dict(c)
    for k in ("linear_num_heads", "num_attention_heads", "intermediate_size", "moe_intermediate_size"):
        rc[k] = c[k] // n
    return rc, out


class TPRef(Ref):
    """n ranks in one process; self.allreduce counts vector all-reduces (of hidden_size elements)."""

    def __init__(self, cfg, w, n=4, dt=np.float64):
        rep = {k: v for k, v in w.items() if not k.endswith(SHARD_ROWS + SHARD_COLS)}
        super().__init__(cfg, rep, dt)
        self.ranks = [Ref(*shard(cfg, w, r, n), dt=dt) for r in range(n)]
        self.allreduce, self.n = 0, n
        v = cfg["vocab_size"] // n
        tp = self

        class Emb:                                            # owner rank contributes, others add zero
            def __getitem__(self, t):
                tp.allreduce += 1
                return sum(r.w["embed_tokens.weight"][t - i * v] if i * v <= t < (i + 1) * v
                           else np.zeros(cfg["hidden_size"], dt) for i, r in enumerate(tp.ranks))

        class Head:                                           # all-gather of the vocabulary shards
            def __matmul__(self, x):
                return np.concatenate([r.w["lm_head.weight"] @ x for r in tp.ranks])
        self.w["embed_tokens.weight"], self.w["lm_head.weight"] = Emb(), Head()

    def _sum(self, f):
        self.allreduce += 1
        return sum(f(i, r) for i, r in enumerate(self.ranks))

    def kda(self, p, x, st):
        return self._sum(lambda i, r: r.kda(p, x, st.setdefault(i, {})))

    def mla(self, p, x, st):
        return self._sum(lambda i, r: r.mla(p, x, st.setdefault(i, {})))

    def mlp(self, p, x):
        return self._sum(lambda i, r: r.mlp(p, x))

    def moe(self, p, x):                                      # shared + routed partials: one all-reduce
        return self._sum(lambda i, r: r.moe(p, x))


if __name__ == "__main__":
    import math
    big = dict(TINY, hidden_size=4096, vocab_size=154880, num_hidden_layers=45,
               layer_types=["deepseek_sparse_attention" if i % 4 == 3 else "linear_attention" for i in range(45)],
               mlp_layer_types=["dense"] * 3 + ["sparse"] * 42, intermediate_size=12288,
               moe_intermediate_size=2048, n_routed_experts=288, num_experts_per_tok=8, swiglu_limit=10.0,
               num_attention_heads=64, q_lora_rank=1536, kv_lora_rank=512, index_n_heads=32,
               index_topk=2048, linear_num_heads=64)
    sh = tensor_shapes(big)
    tot = sum(math.prod(s) for s in sh.values())
    routed = [k for k in sh if ".mlp.experts." in k]
    mtp = sum(math.prod(s) for k, s in sh.items() if k.startswith("layers.45."))
    assert (len(sh) - len(routed), len(routed)) == (1271, 37152), (len(sh), len(routed))
    assert tot - mtp == 313326811966 and mtp == 7432592416
    print(f"full model: {len(sh)} tensors, text {tot - mtp:,} + mtp {mtp:,} parameters")
    tn = tensor_shapes(TINY)
    print(f"tiny model: {len(tn)} tensors, {sum(math.prod(s) for s in tn.values()):,} parameters")
    W = random_weights(TINY)
    toks = np.random.default_rng(1).integers(0, TINY["vocab_size"], 60)
    a, b = Ref(TINY, W), Ref(TINY, W, force_dense=True)
    first = None
    for i, t in enumerate(toks):
        la, lb = a.step(t), b.step(t)
        da, db = a.mtp_step(toks[(i + 1) % 60], a.last_hidden), b.mtp_step(toks[(i + 1) % 60], b.last_hidden)
        same = np.array_equal(la, lb) and np.array_equal(da, db)
        if not same and first is None:
            first = i + 1
    lim = TINY["index_topk"] + TINY["index_kpool"] - 1
    print("first length at which sparse differs from dense:", first, "expected", lim + 1)
    assert first == lim + 1
    full, tp = Ref(TINY, W), TPRef(TINY, W)
    err = 0.0
    for i, t in enumerate(toks[:44]):
        n0 = tp.allreduce
        err = max(err, np.abs(full.step(t) - tp.step(t)).max())
        n1 = tp.allreduce
        nx = toks[(i + 1) % 60]
        err = max(err, np.abs(full.mtp_step(nx, full.last_hidden) - tp.mtp_step(nx, tp.last_hidden)).max())
        assert n1 - n0 == 2 * TINY["num_hidden_layers"] + 1 and tp.allreduce - n1 == 3
    print("TP4 vs TP1 max |diff|", err)
    assert err < 1e-12
    print("ok")
