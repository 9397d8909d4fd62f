# SPDX-License-Identifier: Apache-2.0
"""A small checkpoint that is not quantized, with random weights, of the names and shapes of an EXL3 one."""
import array
import json
import math
import os
import random
import struct

DENSE, EXPERT = 256, 128  # channels of dense MLPs and of experts


def read(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def write(path, tensors):
    header, parts, at = {}, [], 0
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def bf16(values):
    data = array.array("f", values).tobytes()
    out = bytearray(len(data) // 2)
    out[0::2], out[1::2] = data[2::4], data[3::4]
    return bytes(out)


def shape_of(module, tensors):
    n, k = tensors[module + ".svh"][1][0], tensors[module + ".suh"][1][0]
    if ".mlp." in module:
        width = EXPERT if "expert" in module else DENSE
        return [n, width] if module.endswith("down_proj") else [width, k]
    return [n, k]


def make(folder, like, fp8=False):
    """In `folder`; `like`: the EXL3 checkpoint. fp8: the experts of layer 2 in FP8 with block scales."""
    os.makedirs(folder)
    rng = random.Random(1)
    found, made = read(os.path.join(like, "model.safetensors")), {}
    for name in sorted(found):
        module, part = name.rsplit(".", 1)
        if module + ".trellis" not in found:
            made[name] = found[name]
            continue
        if part != "trellis":
            continue
        n, k = shape = shape_of(module, found)
        if fp8 and ".layers.2.mlp.experts." in module:
            codes = bytes(rng.choice((0, 128)) + rng.randrange(0x20, 0x48) for _ in range(n * k))
            scales = [0.02 * (1 + block) for block in range(-(-n // 128) * -(-k // 128))]
            made[module + ".weight"] = ("F8_E4M3", shape, codes)
            made[module + ".weight_scale_inv"] = ("F32", [-(-n // 128), -(-k // 128)],
                                                  array.array("f", scales).tobytes())
            continue
        scale = 1 / math.sqrt(k)
        made[module + ".weight"] = ("BF16", shape, bf16(rng.gauss(0, scale) for _ in range(n * k)))
    write(os.path.join(folder, "model.safetensors"), made)
    with open(os.path.join(like, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.pop("quantization_config", None)
    config["text_config"].update(intermediate_size=DENSE, moe_intermediate_size=EXPERT)
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
