#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates the toy checkpoints of tests/data/models/ and their goldens tests/data/toy_golden.h5.

  python3 tools/reference/make_toy_models.py [tests/data]        needs numpy and h5py

Every value of the goldens comes from glm53flash_ref.Ref in float64, fed with exactly the stored
weights. Prompts are drawn until no decision of a run (greedy token, experts, selected pools) is a
near tie, so that fp32 arithmetic must reproduce all of them.
"""
import json
import os
import sys

import h5py
import numpy as np

import exl3_ref
from checkpoint_writer import Checkpoint
from glm53flash_ref import Ref, random_weights, tensor_shapes

THREE_INST, MCG, MUL1 = exl3_ref.CB_3INST, exl3_ref.CB_MCG, exl3_ref.CB_MUL1
NEW_TOKENS = 24
GAP, MARGIN = 0.01, 1e-5  # smallest logit gap; smallest router and indexer margin

BASE = dict(
    num_nextn_predict_layers=0, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
    routed_scaling_factor=2.5, swiglu_limit=0.75, index_topk=32, index_kpool=4,
    linear_conv_kernel_dim=4, linear_lower_bound=-5.0,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-5)
KDA, MLA = "linear_attention", "deepseek_sparse_attention"


def config_json(c, eos, quantization=None, flat=False):
    """config.json with the official fields; `flat`: KDA sizes under the flat names."""
    layers = c["num_hidden_layers"]
    text = {
        "model_type": "glm5_next_text", "dtype": "bfloat16",
        **{k: v for k, v in c.items() if not k.startswith("linear_")},
        "first_k_dense_replace": [*c["mlp_layer_types"], "sparse"].index("sparse"),
        "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1,
        "topk_group": 1, "moe_router_dtype": "float32", "hidden_act": "silu",
        "num_key_value_heads": c["num_attention_heads"], "qk_rope_head_dim": 0,
        "qk_head_dim": c["qk_nope_head_dim"], "head_dim": 0, "mla_use_nope": True,
        "attention_bias": False, "attention_dropout": 0.0, "index_kpool_compress": True,
        "index_kpool_always_select_tail": True, "indexer_types": ["full"] * layers, "mhc": True,
        "max_position_embeddings": 2048, "eos_token_id": eos, "pad_token_id": eos[0],
        "initializer_range": 0.02, "use_cache": True}
    if flat:
        text.update({k: v for k, v in c.items() if k.startswith("linear_")})
    else:
        kinds = list(enumerate(c["layer_types"]))
        text["linear_attn_config"] = {
            "num_heads": c["linear_num_heads"], "head_dim": c["linear_head_dim"],
            "short_conv_kernel_size": c["linear_conv_kernel_dim"],
            "gate_lower_bound": c["linear_lower_bound"],
            "kda_layers": [i for i, k in kinds if k == KDA],
            "full_attn_layers": [i for i, k in kinds if k == MLA]}
    top = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
           "tie_word_embeddings": False, "transformers_version": "5.17.0", "text_config": text}
    if quantization:
        top["quantization_config"] = quantization
    return top


# ---- the variants --------------------------------------------------------------------------------
F32_ALWAYS = ("hc_attn_base", "hc_ffn_base", "hc_attn_scale", "hc_ffn_scale", "A_log", "dt_bias",
              "e_score_correction_bias")
F16_IN_PACKS = (".b_proj.weight", "f_a_proj.weight", "f_b_proj.weight", "g_a_proj.weight", "g_b_proj.weight",
                "kv_b_proj.weight", "indexer.wk.weight", "weights_proj.weight", "compress_gate")
F32_IN_PACKS = ("hc_attn_fn", "hc_ffn_fn", "compress_ape", "mlp.gate.weight")


def native_dtype(name, pack):
    if name.endswith(F32_ALWAYS) or (pack and name.endswith(F32_IN_PACKS)):
        return "F32"
    return "F16" if pack and name.endswith(F16_IN_PACKS) else "BF16"


def build_pack(c, seed, plan, fused_layers, noise):
    """Everything EXL3 that a full pack quantizes; `plan(module, number)` -> (bits, codebook)."""
    ck, number = Checkpoint(seed), 0
    values = random_weights(c, seed)
    quantized = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "indexer.wq_b",
                 "gate_proj", "up_proj", "down_proj", "lm_head")
    done = set()
    for name, shape in tensor_shapes(c).items():
        module, layer = name.rsplit(".", 1)[0], name.split(".")[1]
        p = module.rsplit(".", 1)[0] + "."
        if name in done:
            continue
        if layer in fused_layers and name.endswith("_conv1d.weight"):
            parts = [f"{p}{s}_conv1d.weight" for s in "qkv"]
            exact = ck.add("model.language_model." + p + "conv1d.weight", "BF16", np.concatenate([values[n] for n in parts]))
            ck.exact.update(zip(parts, np.split(exact, 3)))
            done.update(parts)
        elif name.endswith(".weight") and module.endswith(quantized):
            bits, codebook = plan(module, number)
            marker = () if number % 2 else (1,)  # both shapes are in use
            number += 1
            if layer in fused_layers and module.endswith("q_proj"):
                split = {f"{p}{s}_proj": shape[0] for s in "qkv"}
                ck.exl3(p + "qkv_proj", shape[1], 3 * shape[0], bits, codebook, marker, split, noise)
                done.update(n + ".weight" for n in split)
            else:
                ck.exl3(module, shape[1], shape[0], bits, codebook, marker, noise=noise and number % 2 == 0)
        else:
            ck.native(name, values[name], native_dtype(name, pack=True))
    return ck


def vocab768():
    c = dict(BASE, hidden_size=128, vocab_size=768, num_hidden_layers=4, layer_types=[KDA, MLA, KDA, MLA],
             mlp_layer_types=["dense", "dense", "sparse", "sparse"], intermediate_size=640,
             moe_intermediate_size=512, num_attention_heads=4, q_lora_rank=128, kv_lora_rank=128,
             qk_nope_head_dim=128, v_head_dim=128, index_n_heads=4, index_head_dim=64,
             linear_num_heads=4, linear_head_dim=128)

    def plan(module, number):
        if ".experts." in module:
            return 1 + number % 3, MCG
        if module == "lm_head":
            return 5, MUL1
        small = {"q_a_proj": 8, "kv_a_proj_with_mqa": 7, "indexer.wq_b": 6, "o_proj": 4}
        bits = next((b for s, b in small.items() if module.endswith(s)), 3)
        return bits, (MUL1, THREE_INST, MCG)[number % 3]
    ck = build_pack(c, 11, plan, fused_layers=("0",), noise=True)
    quantization = {"quant_method": "exl3", "version": "1.4.1", "bits": 2, "head_bits": 5,
                    "codebook": "mul1", "scope": "full"}
    return c, ck, config_json(c, [0, 767], quantization), 1, [1, 2, 4]


def native():
    c = dict(BASE, hidden_size=96, vocab_size=320, num_hidden_layers=4, num_nextn_predict_layers=1,
             layer_types=[KDA, MLA, KDA, MLA], mlp_layer_types=["dense", "dense", "sparse", "sparse"],
             intermediate_size=192, moe_intermediate_size=64, num_attention_heads=2, q_lora_rank=48,
             kv_lora_rank=64, qk_nope_head_dim=64, v_head_dim=32, index_n_heads=4, index_head_dim=32,
             linear_num_heads=2, linear_head_dim=64)
    ck = Checkpoint(12)
    for name, value in random_weights(c, 12).items():
        ck.native(name, value, native_dtype(name, pack=False))
    r = ck.rng
    for name, shape in {"patch_embed.proj.weight": (32, 3, 2, 4, 4), "blocks.0.attn.qkv.weight": (96, 32),
                        "blocks.0.norm1.weight": (32,), "merger.proj.weight": (96, 32)}.items():
        ck.add("model.visual." + name, "BF16", r.standard_normal(shape))
    config = config_json(c, [319], flat=True)
    config["vision_config"] = {"model_type": "glm5_next_vision", "depth": 1, "hidden_size": 32}
    return c, ck, config, 3, [1]


def padded():
    c = dict(BASE, hidden_size=192, vocab_size=640, num_hidden_layers=2, layer_types=[KDA, MLA],
             mlp_layer_types=["dense", "sparse"], intermediate_size=576, moe_intermediate_size=448,
             num_attention_heads=4, q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=128, v_head_dim=128,
             index_n_heads=4, index_head_dim=32, linear_num_heads=4, linear_head_dim=128)

    def plan(module, number):
        if module == "lm_head":
            return 4, MUL1
        return (2 if "mlp." in module else 3), (MCG, MUL1)[number % 2]
    ck = build_pack(c, 13, plan, fused_layers=(), noise=True)
    quantization = {"quant_method": "exl3", "version": "1.4.1", "bits": 2, "head_bits": 4,
                    "codebook": "mcg", "scope": "full"}
    return c, ck, config_json(c, [639], quantization), 1, [1, 2, 4]


# ---- goldens ---------------------------------------------------------------------------------------
class NearTie(Exception):
    pass


class Watched(Ref):
    """Ref that refuses near ties in routing and selection."""

    def route(self, p, x):
        biased = np.sort(1 / (1 + np.exp(-(self.w[f"{p}gate.weight"] @ x))) + self.w[f"{p}gate.e_score_correction_bias"])
        k = self.c["num_experts_per_tok"]
        if np.diff(biased[-k - 1:]).min() < MARGIN:
            raise NearTie
        return super().route(p, x)

    def select(self, p, x, qr, st):
        chosen = super().select(p, x, qr, st)
        n = self.c["index_topk"] // self.c["index_kpool"]
        if len(st["pools"]) > n:
            heads, hd = self.c["index_n_heads"], self.c["index_head_dim"]
            q = (self.w[f"{p}wq_b.weight"] @ qr).reshape(heads, hd)
            s = np.maximum(q @ np.stack(st["pools"]).T * hd ** -0.5, 0)
            score = np.sort((self.w[f"{p}weights_proj.weight"] @ x) * heads ** -0.5 @ s)[::-1]
            if self.near(score[n - 1] - score[n]):
                raise NearTie
        return chosen

    def near(self, cut):
        return 0 < cut < MARGIN  # equal scores (all heads 0) tie exactly: the lowest index wins


def run(c, weights, prompt, eos):
    """Last logits, greedy tokens and gaps, or NearTie."""
    ref = Watched(c, weights)
    for t in prompt:
        logits = ref.step(t)
    last, tokens, gaps = logits, [], []
    while len(tokens) < NEW_TOKENS:
        top = np.sort(logits)[-2:]
        if top[1] - top[0] < GAP or int(logits.argmax()) in eos:
            raise NearTie
        tokens.append(int(logits.argmax()))
        gaps.append(top[1] - top[0])
        logits = ref.step(tokens[-1])
    return last, tokens, gaps


def trace(c, weights, prompt):
    ref, means, hidden, logits = Ref(c, weights), [], [], []
    for t in prompt:
        logits.append(ref.step(t))
        means.append(np.stack(ref.stream_means))
        hidden.append(ref.last_hidden)
    return {"stream_mean": np.stack(means, 1), "final_hidden": np.stack(hidden), "logits": np.stack(logits)}


def write_goldens(group, c, ck, eos, lengths, seed, ranks):
    rng, rows = np.random.default_rng(seed), []
    for length in lengths:
        for attempt in range(200):
            prompt = rng.integers(0, c["vocab_size"], length)
            try:
                rows.append((prompt, *run(c, ck.exact, prompt, eos)))
                break
            except NearTie:
                continue
        else:
            raise SystemExit(f"{group.name}: no clear prompt of {length} tokens")
        print(f"{group.name}: {length} tokens, attempt {attempt + 1}, smallest gap {min(rows[-1][3]):.3f}", flush=True)
    for name, column, dtype in (("prompts", 0, np.int32), ("greedy", 2, np.int32), ("greedy_gap", 3, np.float32)):
        group[name] = np.concatenate([np.asarray(r[column]) for r in rows]).astype(dtype)
        group[name + "_offsets"] = np.cumsum([0] + [len(r[column]) for r in rows], dtype=np.int64)
    group["last_logits"] = np.stack([r[1] for r in rows]).astype(np.float32)
    row = next(i for i, n in enumerate(lengths) if 36 <= n <= 64)
    for name, value in trace(c, ck.exact, rows[row][0]).items():
        group[f"trace/{name}"] = value.astype(np.float32)
    group["trace"].attrs["prompt"] = row
    group.attrs.update(seed=seed, index_topk=c["index_topk"], ranks=np.array(ranks, np.int64),
                       sparse_beyond=c["index_topk"] + c["index_kpool"] - 1)


def write_config(folder, config):
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    data = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "..", "tests", "data")
    with h5py.File(os.path.join(data, "toy_golden.h5"), "w") as out:
        out.attrs["about"] = "tools/reference/make_toy_models.py: glm53flash_ref.Ref, float64, on the stored weights"
        out.attrs["version"] = 1
        jobs = (("toy-vocab768", vocab768, [1, 5, 31, 40, 130, 500]), ("toy-native", native, [1, 3, 34, 64, 200]),
                ("toy-padded", padded, [2, 33, 48, 150]))
        for name, make, lengths in jobs:
            c, ck, config, shards, ranks = make()
            folder = os.path.join(data, "models", name)
            ck.save(folder, shards)
            write_config(folder, config)
            eos = config["text_config"]["eos_token_id"]
            write_goldens(out.create_group(name), c, ck, eos, lengths, 1, ranks)
            if make is vocab768:  # the same weights under another sparse limit
                other = os.path.join(data, "models", name + "-topk96")
                os.makedirs(other, exist_ok=True)
                link = os.path.join(other, "model.safetensors")
                if not os.path.lexists(link):
                    os.symlink(f"../{name}/model.safetensors", link)
                wide = dict(c, index_topk=96)
                config["text_config"]["index_topk"] = 96
                write_config(other, config)
                write_goldens(out.create_group(name + "-topk96"), wide, ck, eos, [60, 90, 260], 2, ranks)


if __name__ == "__main__":
    main()
