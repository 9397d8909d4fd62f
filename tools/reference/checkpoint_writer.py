# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints in the official layout: safetensors files, bf16 rounding, random EXL3
matrices. Whatever is written is also kept as the exact value a loader must see (`Checkpoint.exact`,
names as glm53flash_ref.Ref wants them), so that a reference runs on the stored weights."""
import json
import os
import struct

import numpy as np

import exl3_ref

PREFIX = "model.language_model."
NAMES = {"F32": np.float32, "F16": np.float16, "I16": np.int16, "I32": np.int32}
MARKERS = {exl3_ref.CB_MCG: ("mcg", exl3_ref.MCG_MULT), exl3_ref.CB_MUL1: ("mul1", exl3_ref.MUL1_MULT)}


def to_bf16(x):
    """float array -> uint16 bits of bf16, round to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def padded(n):
    return -(-n // 128) * 128


class Checkpoint:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tensors = {}  # full name -> (dtype name, shape, bytes)
        self.exact = {}    # reference name -> float64 array

    def add(self, name, dtype, values):
        if dtype == "BF16":
            data = to_bf16(values)
        else:
            data = np.ascontiguousarray(values, NAMES[dtype])
        self.tensors[name] = (dtype, list(np.shape(values)), data.tobytes())
        return from_bf16(data).astype(np.float64) if dtype == "BF16" else data.astype(np.float64)

    def native(self, name, values, dtype="BF16"):
        """One tensor as it is; `name` without the prefix (lm_head has none)."""
        self.exact[name] = self.add(full(name), dtype, values)

    def exl3(self, module, k, n, bits, codebook, marker_shape=(), split=None, noise=True):
        """A random EXL3 matrix of k inputs and n outputs, stored padded to 128s.

        Any bit string is a valid tile, so the trellis is random; suh and svh are chosen so that W has
        an rms near 1/sqrt(k). `noise`: padded outputs hold garbage (older packs), else exact zeros.
        `split`: {reference module: rows} for fused matrices, in order of the outputs.
        """
        kp, np_ = padded(k), padded(n)
        trellis = self.rng.integers(0, 65536, (kp // 16, np_ // 16, 16 * bits), dtype=np.uint16).view(np.int16)
        spread = exl3_ref.codebook_table(codebook).astype(np.float64).std() * np.sqrt(k)
        suh = self.rng.choice([-1.0, 1.0], kp) * np.exp(0.2 * self.rng.standard_normal(kp)) / spread
        svh = self.rng.choice([-1.0, 1.0], np_) * np.exp(0.2 * self.rng.standard_normal(np_))
        svh[self.rng.integers(0, n)] = 0.0  # an all-zero column
        if not noise:
            svh[n:] = 0.0
        suh, svh = suh.astype(np.float16), svh.astype(np.float16)
        base = full(module)
        self.add(base + ".trellis", "I16", trellis)
        self.add(base + ".suh", "F16", suh)
        self.add(base + ".svh", "F16", svh)
        if codebook in MARKERS:
            suffix, value = MARKERS[codebook]
            self.add(f"{base}.{suffix}", "I32", np.full(marker_shape, value, np.uint32).view(np.int32))
        weight = exl3_ref.dequant_weight(trellis, suh, svh, codebook)[:k, :n].T  # [out, in]
        first = 0
        for part, rows in (split or {module: n}).items():
            self.exact[part + ".weight"] = weight[first:first + rows]
            first += rows

    def save(self, folder, shards=1):
        os.makedirs(folder, exist_ok=True)
        names = list(self.tensors)
        if shards == 1:
            self._write(os.path.join(folder, "model.safetensors"), names)
            return
        files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        groups = [names[i::shards] for i in range(shards)]  # neighbours lie in different files
        for file, group in zip(files, groups):
            self._write(os.path.join(folder, file), group)
        index = {"metadata": {"total_size": sum(len(t[2]) for t in self.tensors.values())},
                 "weight_map": {n: f for f, g in zip(files, groups) for n in g}}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump(index, f, indent=1, sort_keys=True)
            f.write("\n")

    def _write(self, path, names):
        # Widest elements first, as the official writer does: every tensor is aligned to its element.
        size = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
        names = sorted(names, key=lambda n: (-size[self.tensors[n][0]], n))
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for n in names:
            dtype, shape, data = self.tensors[n]
            header[n] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for n in names:
                f.write(self.tensors[n][2])


def full(name):
    return name if name.startswith(("lm_head", "model.")) else PREFIX + name
