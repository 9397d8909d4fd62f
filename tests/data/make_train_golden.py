#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes train_golden.h5, the part that tests need of a golden of drafter training: one batch on demo-dflash2 and
demo-tr3-4bpw, with losses and gradients of the NeMo Automodel drafter classes in fp32.
Usage: make_train_golden.py drafter_train_golden.h5 demo-tr3-4bpw/model.safetensors train_golden.h5"""
import json
import struct
import sys

import h5py
import numpy as np

SHARE = 8  # every so many rows of fc's gradient are kept


def bf16(path, suffix):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        name, = (n for n in header if n.endswith(suffix))
        begin, end = header[name]["data_offsets"]
        file.seek(8 + size + begin)
        return np.frombuffer(file.read(end - begin), np.uint16).reshape(header[name]["shape"])


def main(golden, target, out):
    with h5py.File(golden) as source, h5py.File(out, "w") as to:
        def put(name, values):
            to.create_dataset(name, data=values, compression="gzip", shuffle=True)

        anchors = source["anchors"][:]
        to.attrs["notes"] = source.attrs["notes"]
        for name, value in source.attrs.items():
            to.attrs[name] = value
        for name in ("ids", "anchors", "loss_mask", "features"):
            put(name, source[name][:])
        # Of slot k = 1..7 of each block: what the target knows before the slot's token.
        for name, new in (("final_hidden", "teacher_hidden"), ("teacher_logits_top256", "teacher_logits"),
                          ("teacher_logits_top256_ids", "teacher_ids")):
            put(new, np.stack([source[name][s, a:a + 7] for s in range(len(anchors)) for a in anchors[s]]))
        put("head", bf16(target, "lm_head.weight"))
        embedding = bf16(target, "embed_tokens.weight")
        used = np.unique(np.append(source["ids"][:], 4068))
        put("embedding_rows", used.astype(np.int32))
        put("embedding", embedding[used])
        for group, values in source.items():
            if not group.startswith("grad_"):
                continue
            kept = to.create_group(group)
            for name, value in values.attrs.items():
                kept.attrs[name] = value
            for name, data in values.items():
                data = data[:]
                if "codebook" in name:
                    rows = np.flatnonzero(np.abs(data).sum(1))
                    put(f"{group}/{name}.rows", rows.astype(np.int32))
                    data = data[rows]
                elif name == "fc.weight":
                    data = data[::SHARE]
                if "fc" in name or "norm" in name or group in ("grad_block_ce_plus_sel", "grad_total_card_weights"):
                    put(f"{group}/{name}", data)


if __name__ == "__main__":
    main(*sys.argv[1:])
