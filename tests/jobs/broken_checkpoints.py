# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders with one defect each, made from a good one: BROKEN[name](good, folder)."""
import json
import os
import shutil
import struct

PREFIX = "model.language_model."
NORM = PREFIX + "norm.weight"
MCG, MUL1 = -877912083, -2082680531


def read(path):
    """(header, data) of a safetensors file; the header without offsets' meaning changed."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        return header, f.read()


def write(path, header, data, raw_header=None, length=None):
    text = json.dumps(header).encode() if raw_header is None else raw_header
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text + data)


def tensors_of(header, data):
    """name -> [dtype, shape, bytes], in the order of the data."""
    entries = [(e["data_offsets"], n, e) for n, e in header.items() if n != "__metadata__"]
    return {n: [e["dtype"], e["shape"], data[a:b]] for (a, b), n, e in sorted(entries, key=lambda x: (x[0], x[1]))}


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    write(path, header, b"".join(t[2] for t in tensors.values()))


def copy(good, folder):
    os.makedirs(folder)
    for name in os.listdir(good):
        os.symlink(os.path.abspath(os.path.join(good, name)), os.path.join(folder, name))


def config(change):
    """A defect in config.json: change(whole, text_config) edits in place or returns the file's text."""
    def make(good, folder):
        copy(good, folder)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as f:
            whole = json.load(f)
        text = change(whole, whole["text_config"])
        os.remove(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text if isinstance(text, str) else json.dumps(whole))
    return make


def file_bytes(change):
    """A defect of the container: change(header, data) -> arguments of write(), or whole bytes."""
    def make(good, folder):
        copy(good, folder)
        path = os.path.join(folder, "model.safetensors")
        result = change(*read(path))
        os.remove(path)
        if isinstance(result, bytes):
            with open(path, "wb") as f:
                f.write(result)
        else:
            write(path, **result)
    return make


def tensors(change):
    """A defect of one tensor in a sound container: change(tensors) edits in place."""
    def make(good, folder):
        copy(good, folder)
        path = os.path.join(folder, "model.safetensors")
        found = tensors_of(*read(path))
        change(found)
        os.remove(path)
        write_tensors(path, found)
    return make


def edit(header, name, **changes):
    return {**header, name: {**header[name], **changes}}


def move(header, name, by):
    a, b = header[name]["data_offsets"]
    return edit(header, name, data_offsets=[a + by, b + by])


def first(found, ending):
    return next(n for n in found if n.endswith(ending))


def set_tensor(name, dtype, shape, size):
    return tensors(lambda t: t.update({name: [dtype, shape, bytes(size)]}))


def both_markers(t):
    base = first(t, ".mcg")[:-len("mcg")]
    t[base + "mul1"] = ["I32", [], struct.pack("<i", MUL1)]


def marker(change):
    def edit_marker(t):
        change(t[first(t, ".mcg")])
    return tensors(edit_marker)


def resize(ending, shape_of, dtype=None):
    """Replaces the first tensor with that ending by zeros of another shape (or dtype)."""
    def change(t):
        name = first(t, ending)
        old = t[name]
        kind, shape = dtype or old[0], shape_of(old[1])
        count = 1
        for n in shape:
            count *= n
        t[name] = [kind, shape, bytes(count * {"F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}[kind])]
    return tensors(change)


def sharded(change):
    """Two shards with an index; change(index, folder) edits the index in place."""
    def make(good, folder):
        os.makedirs(folder)
        shutil.copy(os.path.join(good, "config.json"), folder)
        found = tensors_of(*read(os.path.join(good, "model.safetensors")))
        names = list(found)
        index = {"metadata": {}, "weight_map": {}}
        for i, part in enumerate((names[::2], names[1::2])):
            file = f"model-0000{i + 1}-of-00002.safetensors"
            write_tensors(os.path.join(folder, file), {n: found[n] for n in part})
            index["weight_map"].update({n: file for n in part})
        change(index, folder)
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump(index, f)
    return make


def empty(_good, folder):
    os.makedirs(folder)


def no_weights(good, folder):
    copy(good, folder)
    os.remove(os.path.join(folder, "model.safetensors"))


def drop_shard(_index, folder):
    os.remove(os.path.join(folder, "model-00002-of-00002.safetensors"))


def tokenizer(text):
    """A tokenizer.json of that text; a folder of that name for None."""
    def make(good, folder):
        copy(good, folder)
        path = os.path.join(folder, "tokenizer.json")
        if text is None:
            os.mkdir(path)
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
    return make


def set_text(**values):
    return config(lambda whole, text: text.update(values))


BROKEN = {
    # config.json
    "empty-folder": empty,
    "config-not-json": config(lambda whole, text: "{ hidden_size: 128 }"),
    "config-list": config(lambda whole, text: "[]"),
    "config-no-hidden": config(lambda whole, text: text.pop("hidden_size") and None),
    "config-negative": set_text(num_experts_per_tok=-1),
    "config-huge": set_text(hidden_size=2**62),
    "config-float": set_text(num_hidden_layers=4.5),
    "config-text": set_text(vocab_size="768"),
    "config-short-list": set_text(layer_types=["linear_attention"]),
    "config-unknown-layer": set_text(layer_types=["linear_attention", "full", "linear_attention", "full"]),
    "config-more-experts": set_text(num_experts_per_tok=9),
    "config-other-model": config(lambda whole, text: (whole.update(model_type="llama"), text.update(model_type="llama")) and None),
    # tokenizer.json
    "tokenizer-not-json": tokenizer("{"),
    "tokenizer-empty": tokenizer("{}"),
    "tokenizer-folder": tokenizer(None),
    # the container
    "no-weights": no_weights,
    "zero-bytes": file_bytes(lambda h, d: b""),
    "seven-bytes": file_bytes(lambda h, d: bytes(7)),
    "header-too-large": file_bytes(lambda h, d: dict(header=h, data=d, length=2**60)),
    "header-past-end": file_bytes(lambda h, d: dict(header=h, data=b"", length=90_000_000)),
    "header-not-json": file_bytes(lambda h, d: dict(header=h, data=d, raw_header=b"{not json}      ")),
    "header-list": file_bytes(lambda h, d: dict(header=h, data=d, raw_header=b"[]")),
    "header-twice": file_bytes(lambda h, d: dict(header=h, data=d, raw_header=b'{"a":' + json.dumps(h[NORM]).encode() + b"," + json.dumps({"a": h[NORM]}).encode()[1:])),
    "truncated": file_bytes(lambda h, d: dict(header=h, data=d[:-1000])),
    "trailing": file_bytes(lambda h, d: dict(header=h, data=d + bytes(64))),
    "overlap": file_bytes(lambda h, d: dict(header=move(h, NORM, -16), data=d)),
    "offsets-past-end": file_bytes(lambda h, d: dict(header=edit(h, NORM, data_offsets=[len(d), len(d) + 256]), data=d)),
    "offsets-reversed": file_bytes(lambda h, d: dict(header=edit(h, NORM, data_offsets=h[NORM]["data_offsets"][::-1]), data=d)),
    "offsets-negative": file_bytes(lambda h, d: dict(header=edit(h, NORM, data_offsets=[-256, 0]), data=d)),
    "shape-overflows": file_bytes(lambda h, d: dict(header=edit(h, NORM, shape=[2**40, 2**40]), data=d)),
    "shape-and-bytes": file_bytes(lambda h, d: dict(header=edit(h, NORM, shape=[64]), data=d)),
    "unknown-dtype": file_bytes(lambda h, d: dict(header=edit(h, NORM, dtype="F4"), data=d)),
    # shards
    "shard-missing": sharded(drop_shard),
    "shard-elsewhere": sharded(lambda index, folder: index["weight_map"].update({NORM: "../model.safetensors"})),
    "shard-lacks-tensor": sharded(lambda index, folder: index["weight_map"].update(ghost="model-00001-of-00002.safetensors")),
    "index-empty": sharded(lambda index, folder: index["weight_map"].clear()),
    # tensors
    "tensor-missing": tensors(lambda t: t.pop(NORM) and None),
    "expert-missing": tensors(lambda t: t.pop(first(t, "experts.3.up_proj.svh")) and None),
    "norm-shape": set_tensor(NORM, "BF16", [129], 258),
    "norm-dtype": set_tensor(NORM, "I16", [128], 256),
    "embedding-shape": resize("embed_tokens.weight", lambda s: [s[0] - 1, s[1]]),
    "both-markers": tensors(both_markers),
    "marker-value": marker(lambda m: m.__setitem__(2, struct.pack("<i", 12345))),
    "marker-shape": marker(lambda m: (m.__setitem__(1, [2]), m.__setitem__(2, struct.pack("<ii", MCG, MCG))) and None),
    "marker-dtype": marker(lambda m: (m.__setitem__(0, "F32")) and None),
    "trellis-bits-0": resize("down_proj.trellis", lambda s: [s[0], s[1], 0]),
    "trellis-bits-9": resize("down_proj.trellis", lambda s: [s[0], s[1], 144]),
    "trellis-width": resize("down_proj.trellis", lambda s: [s[0], s[1], 24]),
    "trellis-rank": resize("down_proj.trellis", lambda s: [s[0], s[1] * s[2]]),
    "trellis-dtype": resize("down_proj.trellis", lambda s: s, "F16"),
    "trellis-other-size": resize("down_proj.trellis", lambda s: [s[0] // 2, s[1], s[2]]),
    "suh-length": resize("down_proj.suh", lambda s: [s[0] - 128]),
    "svh-dtype": resize("down_proj.svh", lambda s: s, "F32"),
}
