#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/wide_golden.h5: models of one layer at the real widths of GLM-5.3-Flash, run by
glm53flash_ref.Ref in float64.

  python3 tools/reference/make_wide_goldens.py [tests/data]      needs numpy and h5py; two minutes

No weights are stored. A tensor's bytes are those of a stream named after it: byte i is byte i % 8 of
the i / 8-th output of splitmix64 seeded with the FNV-1a hash of the name. A group of the file holds
config.json, a table of tensors with the rule that turns bytes into values (all exact in every dtype
used), the tokens, and of every token a sample of the results and a checksum over all of them:
sum of (-1)^popcount(i) x[i] / sqrt(n).
"""
import json
import os
import sys

import h5py
import numpy as np

import exl3_ref
from glm53flash_ref import tensor_shapes
from make_toy_models import KDA, MARGIN, MLA, NearTie, Watched, config_json, native_dtype

MCG, MUL1 = exl3_ref.CB_MCG, exl3_ref.CB_MUL1
PREFIX = "model.language_model."
SAMPLES = 64

WIDE = dict(
    hidden_size=4096, vocab_size=512, num_hidden_layers=1, num_nextn_predict_layers=0, intermediate_size=12288,
    moe_intermediate_size=2048, n_routed_experts=16, num_experts_per_tok=8, n_shared_experts=1,
    routed_scaling_factor=2.5, swiglu_limit=1.0, num_attention_heads=64, q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=256, v_head_dim=256, index_n_heads=32, index_head_dim=128, index_topk=2048, index_kpool=4,
    linear_num_heads=64, linear_head_dim=128, linear_conv_kernel_dim=4, linear_lower_bound=-5.0,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-5)


# ---- bytes ---------------------------------------------------------------------------------------
def stream(name, count):
    """`count` bytes of a name's stream, as int8."""
    seed = 0xcbf29ce484222325
    for letter in name.encode():
        seed = (seed ^ letter) * 0x100000001b3 % (1 << 64)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, -(-count // 8) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).astype("<u8").view(np.int8)[:count]


def root_exponent(k):
    """The smallest t with 2^t >= sqrt(k)."""
    t = 0
    while 4 ** t < k:
        t += 1
    return t


def rule_of(name, shape):
    """(offset, drop, exponent): value = offset + (byte >> drop) / 2^exponent, the byte signed."""
    if name.endswith(("norm.weight", "layernorm.weight")):
        return 1.0, 2, 7
    if name.endswith(("_base", "k_norm.bias", "e_score_correction_bias")):
        return 0.0, 0, 8
    if name.endswith("_scale"):
        return 1.0, 0, 8
    if name.endswith("dt_bias"):
        return -2.0, 0, 6
    if name.endswith(("A_log", "conv1d.weight")):
        return 0.0, 0, 7
    if name.endswith(("compress_ape", "embed_tokens.weight")):
        return 0.0, 0, 6
    return 0.0, 0, 6 + root_exponent(shape[-1])


# ---- weights -------------------------------------------------------------------------------------
class Exl3:
    """W as a product: svh . H . Wq . H . suh, exact but for float64; W @ x for a vector x."""

    def __init__(self, inner, suh, svh):
        self.inner, self.suh, self.svh = inner, suh, svh  # fp16 [k, n], float64

    def rows(self, first, count):
        return Exl3(self.inner[:, first:first + count], self.suh, self.svh[first:first + count])

    def __matmul__(self, x):
        r = 1 / np.sqrt(128.0)
        z = exl3_ref.fwht128(x * self.suh) * r
        y = sum(z[k:k + 512] @ self.inner[k:k + 512].astype(np.float64) for k in range(0, len(z), 512))
        return exl3_ref.fwht128(y) * r * self.svh


class Native:
    """Bytes with their rule, widened where they are used."""

    def __init__(self, data, offset, drop, exponent):
        self.data, self.rule = data, (offset, drop, exponent)

    def values(self):
        offset, drop, exponent = self.rule
        return offset + (self.data >> drop).astype(np.float64) / 2 ** exponent

    def __matmul__(self, x):
        assert self.rule[:2] == (0.0, 0)
        rows = self.data.shape[0]
        return np.concatenate([self.data[i:i + 1024].astype(np.float64) @ x
                               for i in range(0, rows, 1024)]) / 2 ** self.rule[2]


class Weights:
    """What Ref reads: matrices that multiply, and everything else as float64 arrays."""

    def __init__(self):
        self.table, self.parts = [], {}

    def native(self, name, shape, dtype, split=None):
        """`split`: {name: rows} of a fused tensor."""
        offset, drop, exponent = rule_of(name, shape)
        self.table.append({"name": full(name), "dtype": dtype, "shape": list(shape), "offset": offset, "drop": drop,
                           "exponent": exponent})
        data = stream(full(name), int(np.prod(shape))).reshape(shape)
        first = 0
        for part, rows in (split or {name: shape[0]}).items():
            self.parts[part] = Native(data[first:first + rows], offset, drop, exponent)
            first += rows

    def exl3(self, module, n, k, bits, codebook, split=None):
        base, t = full(module), root_exponent(k)
        shape = [k // 16, n // 16, 16 * bits]
        self.table.append({"name": base + ".trellis", "dtype": "I16", "shape": shape})
        count = int(np.prod(shape)) * 2
        trellis = stream(base + ".trellis", count).view("<u2").reshape(shape)
        inner = np.empty((k, n), np.float16)
        for at in range(0, k // 16, 8):  # 128 inputs at once
            states = exl3_ref.unpack_states_words(trellis[at:at + 8])
            tile = exl3_ref.codebook_table(codebook)[states][..., exl3_ref.FLAT_TO_POS]
            inner[16 * at:16 * at + 128] = tile.reshape(8, n // 16, 16, 16).transpose(0, 2, 1, 3).reshape(128, n)
        scales = []
        for suffix, size, exponent in (("suh", k, t), ("svh", n, 1)):
            self.table.append({"name": f"{base}.{suffix}", "dtype": "F16", "shape": [size], "sign": True,
                               "exponent": exponent})
            data = stream(f"{base}.{suffix}", size)
            scales.append((1 + (data & 7) / 16) * np.where(data < 0, -1, 1) / 2 ** exponent)
        marker, value = ("mcg", exl3_ref.MCG_MULT) if codebook == MCG else ("mul1", exl3_ref.MUL1_MULT)
        self.table.append({"name": f"{base}.{marker}", "dtype": "I32", "shape": [],
                           "value": value - (1 << 32)})
        whole, first = Exl3(inner, *scales), 0
        for part, rows in (split or {module: n}).items():
            self.parts[part + ".weight"] = whole.rows(first, rows)
            first += rows

    def __getitem__(self, name):
        part = self.parts[name]
        matrix = isinstance(part, Exl3) or (part.data.ndim == 2 and part.data.size > 1 << 16)
        return part if matrix and not name.endswith(("kv_b_proj.weight", "embed_tokens.weight")) else part.values()


def full(name):
    return name if name.startswith("lm_head") else PREFIX + name


def plain(c):
    w = Weights()
    for name, shape in tensor_shapes(c).items():
        w.native(name, shape, native_dtype(name, pack=False))
    return w


def pack(c):
    """As a full pack stores it: fused KDA projections, fp16 small ones, routed experts of 2 to 4 bits."""
    w, done = Weights(), set()
    quantized = ("o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "gate_proj", "up_proj",
                 "down_proj", "lm_head")
    for name, shape in tensor_shapes(c).items():
        module = name.rsplit(".", 1)[0]
        p = module.rsplit(".", 1)[0] + "."
        if name in done:
            continue
        if module.endswith("q_proj"):
            split = {f"{p}{s}_proj": shape[0] for s in "qkv"}
            w.exl3(p + "qkv_proj", 3 * shape[0], shape[1], 6, MUL1, split)
            done.update(part + ".weight" for part in split)
        elif name.endswith("q_conv1d.weight"):
            split = {f"{p}{s}_conv1d.weight": shape[0] for s in "qkv"}
            w.native(p + "conv1d.weight", (3 * shape[0], *shape[1:]), "BF16", split)
            done.update(split)
        elif name.endswith(".weight") and module.endswith(quantized):
            if ".experts." in module:
                bits, codebook = 2 + int(module.split(".")[4]) % 3, MCG
            else:
                bits, codebook = (5 if "mlp." in module and "shared" not in module else 6), MUL1
            w.exl3(module, shape[0], shape[1], bits, codebook)
        else:
            w.native(name, shape, native_dtype(name, pack=True))
    return w


# ---- runs ----------------------------------------------------------------------------------------
class WideWatched(Watched):
    """On Weights; refuses exact ties too, and counts selections."""

    def __init__(self, c, weights):
        super().__init__(c, {})
        self.w, self.selections = weights, 0

    def select(self, p, x, qr, st):
        chosen = super().select(p, x, qr, st)
        self.selections += len(st["pools"]) > self.c["index_topk"] // self.c["index_kpool"]
        return chosen

    def near(self, cut):
        return cut < MARGIN


def signs(n):
    i, parity = np.arange(n), np.zeros(n, int)
    for b in range(n.bit_length()):
        parity ^= i >> b & 1
    return np.where(parity, -1.0, 1.0)


def put(group, name, rows, columns):
    rows = np.stack(rows)
    group[name] = rows[:, columns].astype(np.float32)
    group[name + "_checksum"] = (rows @ signs(rows.shape[1]) / np.sqrt(rows.shape[1])).astype(np.float32)


def write(out, title, c, make, count):
    w = make(c)
    for seed in range(100):
        tokens = np.random.default_rng(seed).integers(0, c["vocab_size"], count)
        ref, means, hidden, logits = WideWatched(c, w), [], [], []
        try:
            for t in tokens:
                logits.append(ref.step(int(t)))
                means.append(ref.stream_means[0])
                hidden.append(ref.last_hidden)
            break
        except NearTie:
            continue
    else:
        raise SystemExit(f"{title}: no tokens without a near tie")
    g = out.create_group(title)
    g["config"] = json.dumps(config_json(c, [c["vocab_size"] - 1]))
    g["tensors"] = json.dumps(w.table, separators=(",", ":"))
    g["tokens"] = tokens.astype(np.int32)
    for name, rows in (("stream_mean", means), ("final_hidden", hidden), ("logits", logits)):
        columns = np.sort(np.random.default_rng(0).permutation(len(rows[0]))[:SAMPLES])
        g[name + "_columns"] = columns.astype(np.int32)
        put(g, name, rows, columns)
    largest = {name: float(np.abs(rows).max()) for name, rows in (("mean", means), ("logits", logits))}
    print(f"{title}: seed {seed}, {ref.selections} selections, largest {largest}", flush=True)


def main():
    data = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data")
    kda = dict(WIDE, layer_types=[KDA], mlp_layer_types=["dense"])
    mla = dict(WIDE, layer_types=[MLA], mlp_layer_types=["sparse"])
    with h5py.File(os.path.join(data, "wide_golden.h5"), "w") as out:
        out.attrs["about"] = "tools/reference/make_wide_goldens.py: glm53flash_ref.Ref, float64, one layer"
        out.attrs["version"] = 1
        write(out, "kda-dense-native", kda, plain, 10)
        write(out, "mla-moe-native", mla, plain, 10)
        write(out, "kda-dense-pack", kda, pack, 10)
        write(out, "mla-moe-pack", dict(mla, index_topk=8), pack, 26)


if __name__ == "__main__":
    main()
