#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A synthetic GLM-5.3-Flash at full shapes for speed: official names, routed experts EXL3 (mcg), the
rest bf16, random bits (94 GB at 2 bits, written in 20 s by 12 processes). Text comes out as noise.

make_full_model.py OUT [--layers N] [--bits B] [--extra DIR --extra-from L] [--head-scale S]
make_full_model.py OUT --drafter                       a DFlash2 drafter for it

Layers from L on are written to DIR and linked, for a disk smaller than the model. A head scale above
1, a power of two, makes the distributions of tokens peaked.
"""
import argparse
import json
import os
import struct
from concurrent.futures import ProcessPoolExecutor

import numpy as np

HIDDEN, VOCAB, EXPERTS, EXPERT_WIDTH, DENSE_WIDTH = 4096, 154880, 288, 2048, 12288
SIZES = {"BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I32": 4}
PREFIX = "model.language_model."
EOS = [154820, 154827, 154829]
RANDOM = np.random.default_rng(1)
NOISE = ((RANDOM.standard_normal(1 << 24).astype(np.float32) * 0.02).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
BITS = RANDOM.integers(0, 1 << 16, 1 << 24, dtype=np.uint16)  # any bits are a trellis
ONE = 0x3F80  # in bf16


def ones(count):
    return np.full(count, ONE, np.uint16)


class Shard:
    """Tensors of one safetensors file; without data they are noise, "bits" or a scale of noise."""

    def __init__(self):
        self.items = []

    def add(self, name, dtype, shape, data=None):
        self.items.append((name, dtype, list(shape), data))

    def bf16(self, prefix, shapes):
        for name, shape in shapes:
            self.add(prefix + name + ".weight", "BF16", shape)

    def exl3(self, name, k, n, bits):
        self.add(name + ".trellis", "I16", [k // 16, n // 16, 16 * bits], "bits")
        self.add(name + ".suh", "F16", [k], np.ones(k, np.float16))
        self.add(name + ".svh", "F16", [n], np.full(n, 0.02, np.float16))
        self.add(name + ".mcg", "I32", [], np.array([0xCBAC1FED], np.uint32))

    @staticmethod
    def source(data):
        if isinstance(data, str):
            return BITS
        return NOISE if data is None else NOISE + np.uint16(int(np.log2(data)) << 7)

    def write(self, path, seed):
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, _ in self.items:
            size = SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        shift = seed * 7919  # where in the noise the next tensor begins
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, _, shape, data in self.items:
                if isinstance(data, np.ndarray):
                    file.write(data.tobytes())
                    continue
                source, left = self.source(data), int(np.prod(shape, dtype=np.int64))
                while left > 0:
                    start = shift % (len(source) - 4096)
                    taken = min(left, len(source) - start)
                    file.write(memoryview(source[start:start + taken]).cast("B"))
                    left -= taken
                    shift += taken + 12345
        return list(header)[1:], at


def attention(shard, p, kda):
    h = HIDDEN
    if kda:
        shard.bf16(p, [(x + "_proj", [8192, h]) for x in "qkv"] + [(x + "_conv1d", [8192, 1, 4]) for x in "qkv"])
        for x in "fg":
            shard.bf16(p, [(x + "_a_proj", [128, h]), (x + "_b_proj", [8192, 128])])
        shard.bf16(p, [("b_proj", [64, h]), ("o_proj", [h, 8192])])
        shard.add(p + "A_log", "F32", [64], np.zeros(64, np.float32))
        shard.add(p + "dt_bias", "F32", [8192], np.zeros(8192, np.float32))
        shard.add(p + "o_norm.weight", "BF16", [128], ones(128))
        return
    shard.bf16(p, [("q_a_proj", [1536, h]), ("q_b_proj", [16384, 1536]), ("kv_a_proj_with_mqa", [512, h]),
                   ("kv_b_proj", [32768, 512]), ("o_proj", [h, 16384]), ("indexer.wq_b", [4096, 1536]),
                   ("indexer.wk", [128, h]), ("indexer.weights_proj", [32, h])])
    shard.add(p + "indexer.index_kpool_compress_ape", "BF16", [4, 128])
    shard.add(p + "indexer.index_kpool_compress_gate", "BF16", [128, h])
    shard.add(p + "indexer.k_norm.bias", "BF16", [128])
    for name, width in (("q_a_layernorm", 1536), ("kv_a_layernorm", 512), ("indexer.k_norm", 128)):
        shard.add(p + name + ".weight", "BF16", [width], ones(width))


def mlp(shard, p, width):
    shard.bf16(p, [("gate_proj", [width, HIDDEN]), ("up_proj", [width, HIDDEN]), ("down_proj", [HIDDEN, width])])


def layer(index, bits):
    shard, p = Shard(), f"{PREFIX}layers.{index}."
    for name in ("input_layernorm", "post_attention_layernorm"):
        shard.add(p + name + ".weight", "BF16", [HIDDEN], ones(HIDDEN))
    for site in ("attn", "ffn"):
        shard.add(p + f"hc_{site}_fn", "BF16", [24, 4 * HIDDEN])
        shard.add(p + f"hc_{site}_base", "F32", [24], np.zeros(24, np.float32))
        shard.add(p + f"hc_{site}_scale", "F32", [3], np.full(3, 0.1, np.float32))
    attention(shard, p + "self_attn.", index % 4 != 3)
    m = p + "mlp."
    if index < 3:
        mlp(shard, m, DENSE_WIDTH)
        return shard
    shard.add(m + "gate.weight", "BF16", [EXPERTS, HIDDEN])
    shard.add(m + "gate.e_score_correction_bias", "F32", [EXPERTS], np.zeros(EXPERTS, np.float32))
    for e in range(EXPERTS):
        q = m + f"experts.{e}."
        for name in ("gate_proj", "up_proj"):
            shard.exl3(q + name, HIDDEN, EXPERT_WIDTH, bits)
        shard.exl3(q + "down_proj", EXPERT_WIDTH, HIDDEN, bits)
    mlp(shard, m + "shared_experts.", EXPERT_WIDTH)
    return shard


def ends(scale):
    shard = Shard()
    shard.add(PREFIX + "embed_tokens.weight", "BF16", [VOCAB, HIDDEN])
    shard.add(PREFIX + "norm.weight", "BF16", [HIDDEN], ones(HIDDEN))
    shard.add("lm_head.weight", "BF16", [VOCAB, HIDDEN], scale if scale > 1 else None)
    return shard


def write_one(task):
    index, value, path, seed = task
    return (ends(value) if index < 0 else layer(index, value)).write(path, seed)


def target_config(layers, bits):
    full = [i for i in range(layers) if i % 4 == 3]
    text = {
        "model_type": "glm5_next_text", "dtype": "bfloat16", "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "num_hidden_layers": layers, "num_nextn_predict_layers": 0, "intermediate_size": DENSE_WIDTH,
        "moe_intermediate_size": EXPERT_WIDTH, "n_routed_experts": EXPERTS, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1,
        "moe_router_dtype": "float32", "hidden_act": "silu", "swiglu_limit": 10.0, "num_attention_heads": 64,
        "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0, "qk_head_dim": 256, "v_head_dim": 256, "head_dim": 0, "mla_use_nope": True,
        "attention_bias": False, "attention_dropout": 0.0, "index_topk": 2048, "index_n_heads": 32,
        "index_head_dim": 128, "index_kpool": 4, "index_kpool_compress": True,
        "index_kpool_always_select_tail": True, "indexer_types": ["full"] * layers, "mhc": True, "hc_mult": 4,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-5, "max_position_embeddings": 1048576,
        "eos_token_id": EOS, "pad_token_id": EOS[0], "initializer_range": 0.02, "use_cache": True,
        "layer_types": ["deepseek_sparse_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "mlp_layer_types": ["dense" if i < 3 else "sparse" for i in range(layers)],
        "linear_attn_config": {
            "num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "kda_layers": [i for i in range(layers) if i % 4 != 3], "full_attn_layers": full}}
    return {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
            "tie_word_embeddings": False, "transformers_version": "5.17.0", "text_config": text,
            "quantization_config": {"quant_method": "exl3", "version": "1.4.1", "bits": bits, "head_bits": 16,
                                    "codebook": "mcg"}}


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def make_target(options):
    os.makedirs(options.out, exist_ok=True)
    tasks = [(-1, options.head_scale, 0)] + [(i, options.bits, i + 1) for i in range(options.layers)]
    names = [f"model-{i:05d}-of-{len(tasks):05d}.safetensors" for i in range(1, len(tasks) + 1)]
    placed = []
    for (index, value, seed), name in zip(tasks, names):
        path = os.path.join(options.out, name)
        if options.extra and index >= options.extra_from:
            os.makedirs(options.extra, exist_ok=True)
            if os.path.lexists(path):
                os.remove(path)
            os.symlink(os.path.join(options.extra, name), path)
        placed.append((index, value, path, seed))
    weight_map, total = {}, 0
    with ProcessPoolExecutor(12) as pool:
        for name, (tensors, size) in zip(names, pool.map(write_one, placed)):
            weight_map.update({tensor: name for tensor in tensors})
            total += size
    write_json(options.out, "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(options.out, "config.json", target_config(options.layers, options.bits))
    print(f"{options.out}: {options.layers} layers, {total / 1e9:.1f} GB")


def drafter_config(layers, taps):
    return {
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH, "num_hidden_layers": 5, "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048, "use_sliding_window": True, "max_window_layers": 5, "is_causal": False,
        "hidden_act": "silu", "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 1048576, "vocab_size": VOCAB, "num_target_layers": layers,
        "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "pad_token_id": EOS[0], "eos_token_id": EOS, "bos_token_id": None,
        "use_cache": False, "dtype": "bfloat16",
        "dflash_config": {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 154856,
                          "selector_rank": 256, "selector_top_k": 16, "target_layer_ids": taps}}


def make_drafter(options):
    os.makedirs(options.out, exist_ok=True)
    shard, taps = Shard(), [int(x) for x in options.taps.split(",")]
    shard.bf16("candidate_selector.", [("hidden_projection", [256, HIDDEN])])
    for name in ("predecessor", "successor"):
        shard.add(f"candidate_selector.{name}_codebook", "BF16", [VOCAB, 256])
    shard.bf16("", [("fc", [HIDDEN, len(taps) * HIDDEN])])
    for name in ("hidden_norm", "norm"):
        shard.add(name + ".weight", "BF16", [HIDDEN], ones(HIDDEN))
    for index in range(5):
        p = f"layers.{index}."
        for conv in ("attention_conv", "mlp_conv"):
            shard.add(p + conv + ".base_kernel", "BF16", [2, 2, HIDDEN])
            shard.bf16(p + conv + ".", [("kernel_projection", [1024, HIDDEN])])
        for name in ("input_layernorm", "post_attention_layernorm"):
            shard.add(p + name + ".weight", "BF16", [HIDDEN], ones(HIDDEN))
        mlp(shard, p + "mlp.", DENSE_WIDTH)
        for name in ("q_norm", "k_norm"):
            shard.add(p + f"self_attn.{name}.weight", "BF16", [128], ones(128))
        shard.bf16(p + "self_attn.", [("q_proj", [4096, HIDDEN]), ("k_proj", [1024, HIDDEN]),
                                      ("v_proj", [1024, HIDDEN]), ("o_proj", [HIDDEN, 4096])])
    _, total = shard.write(os.path.join(options.out, "model.safetensors"), 99)
    write_json(options.out, "config.json", drafter_config(options.layers, taps))
    print(f"{options.out}: drafter {total / 1e9:.2f} GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--extra")
    parser.add_argument("--extra-from", type=int, default=0)
    parser.add_argument("--head-scale", type=int, default=1)
    parser.add_argument("--drafter", action="store_true")
    parser.add_argument("--taps", default="5,14,24,33,42", help="layers whose features the drafter reads")
    options = parser.parse_args()
    (make_drafter if options.drafter else make_target)(options)


if __name__ == "__main__":
    main()
