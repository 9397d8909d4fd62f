#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the numpy reference on a checkpoint folder, greedy, one record at a time, and times it.

  python3 run_checkpoint.py FOLDER [--golden FILE:GROUP] [--records N] [--new N] [--program EXE]

Prompts and expected tokens come from a golden file (default tests/data/demo_golden.h5:full-4bpw).
--program: then the same prompts with the program on two ranks, one record at a time.
"""
import argparse
import glob
import json
import os
import struct
import subprocess
import tempfile
import time

import h5py
import numpy as np

import exl3_ref
from checkpoint_writer import PREFIX, from_bf16
from glm53flash_ref import Ref, tensor_shapes

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I16": np.int16, "I32": np.int32}


def read_tensors(folder):
    """Every tensor that is no vision tensor, as stored (bf16 widened to float32)."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            header, data = json.loads(f.read(n)), f.read()
        for name, e in header.items():
            if name == "__metadata__" or name.startswith("model.visual."):
                continue
            a, b = e["data_offsets"]
            x = np.frombuffer(data[a:b], TYPES[e["dtype"]]).reshape(e["shape"])
            found[name.removeprefix(PREFIX)] = from_bf16(x) if e["dtype"] == "BF16" else x
    return found


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = dict(json.load(f)["text_config"])
    names = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim",
             "short_conv_kernel_size": "linear_conv_kernel_dim", "gate_lower_bound": "linear_lower_bound"}
    for old, new in names.items():
        if old in c.get("linear_attn_config", {}):
            c[new] = c["linear_attn_config"][old]
    c["num_nextn_predict_layers"] = 0
    return c


def weight(tensors, module, shape):
    """[out, in] of a module, native or EXL3, trimmed to `shape`; None if it is not there."""
    if module + ".trellis" in tensors:
        group = {s: tensors[f"{module}.{s}"] for s in ("trellis", "suh", "svh", "mcg", "mul1") if f"{module}.{s}" in tensors}
        w = exl3_ref.dequant_weight(group["trellis"], group["suh"], group["svh"], exl3_ref.codebook_of(group)).T
        return w[:shape[0], :shape[1]]
    return tensors.get(module + ".weight")


def load(folder):
    """(config, weights) as Ref wants them."""
    c, tensors, weights = read_config(folder), read_tensors(folder), {}
    for name, shape in tensor_shapes(c).items():
        module = name.removesuffix(".weight")
        value = weight(tensors, module, shape) if name.endswith(".weight") else tensors.get(name)
        if value is None:  # q, k, v of a fused projection or convolution
            part = module.rsplit(".", 1)[1]
            fused = {"proj": "qkv_proj", "conv1d": "conv1d"}[part[2:]]
            whole = weight(tensors, module.rsplit(".", 1)[0] + "." + fused, (3 * shape[0], *shape[1:]))
            value = np.split(whole, 3)["qkv".index(part[0])]
        weights[name] = value
    return c, weights


def ragged(group, name):
    bounds = group[name + "_offsets"][:]
    return [group[name][a:b] for a, b in zip(bounds, bounds[1:])]


def run_program(program, folder, prompts, new):
    """Prints the program's own summary of the same work."""
    with tempfile.TemporaryDirectory() as work:
        with h5py.File(os.path.join(work, "prompts.h5"), "w") as f:
            f.attrs["quadrille_format"], f.attrs["kind"] = np.int64(1), "prompts"
            f["prompts/tokens"] = np.concatenate(prompts)
            f["prompts/offsets"] = np.cumsum([0] + [len(p) for p in prompts])
        start = time.perf_counter()
        run = subprocess.run(["mpirun", "-n", "2", program, "generate", "--target", folder, "--max-seqs", "1",
                              "--prompts", os.path.join(work, "prompts.h5"), "--out", os.path.join(work, "out.h5"),
                              "--max-new-tokens", str(new), "--ignore-eos"], capture_output=True, text=True, check=True)
        print(f"the program, two ranks, start to end {time.perf_counter() - start:.1f} s:")
        print(run.stdout, end="")
        with h5py.File(os.path.join(work, "out.h5")) as f:
            bounds, tokens = f["generations/offsets"][:], f["generations/tokens"][:]
            return [tokens[a:b].tolist() for a, b in zip(bounds, bounds[1:])]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--golden", default=os.path.join(here, "../../tests/data/demo_golden.h5:full-4bpw"))
    parser.add_argument("--records", type=int, default=3)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--program")
    options = parser.parse_args()
    start = time.perf_counter()
    c, weights = load(options.folder)
    print(f"loaded in {time.perf_counter() - start:.1f} s")
    path, name = options.golden.rsplit(":", 1)
    with h5py.File(path) as f:
        group = f[name]
        prompts = ragged(group if "prompts" in group else f, "prompts")
        expected, last = ragged(group, "greedy"), group["last_logits"][:]
    seconds = {"prefill": 0.0, "decode": 0.0}
    rows = {"prefill": 0, "decode": 0}
    prompts, outputs = prompts[:options.records], []
    for i, prompt in enumerate(prompts):
        ref, start = Ref(c, weights, dt=np.float32), time.perf_counter()
        for t in prompt:
            logits = ref.step(t)
        seconds["prefill"] += time.perf_counter() - start
        error, tokens, start = np.abs(logits - last[i]).max(), [int(logits.argmax())], time.perf_counter()
        while len(tokens) < min(options.new, len(expected[i])):
            tokens.append(int(ref.step(tokens[-1]).argmax()))
        seconds["decode"] += time.perf_counter() - start
        outputs.append(tokens)
        rows["prefill"] += len(prompt)
        rows["decode"] += len(tokens) - 1
        same = tokens == expected[i][:len(tokens)].tolist()
        print(f"record {i}: {len(prompt)} + {len(tokens)} tokens, logits within {error:.1e}, tokens {'equal' if same else 'DIFFER'}")
    for k, s in seconds.items():
        print(f"{k}: {rows[k]} rows in {s:.2f} s = {rows[k] / s:.1f} rows/s")
    if options.program:
        mine = run_program(options.program, options.folder, prompts, options.new)
        equal = all(a[:len(b)] == b for a, b in zip(mine, outputs))
        print("tokens", "equal" if equal else "DIFFER")


if __name__ == "__main__":
    main()
