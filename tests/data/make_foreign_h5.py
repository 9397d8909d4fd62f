# SPDX-License-Identifier: Apache-2.0
"""Writes foreign.h5: types and strings as other programs (here h5py) store them.

Run: python3 make_foreign_h5.py foreign.h5
"""
import sys

import h5py
import numpy as np

WORDS = ["grün", "", "two words "]


def fixed(group, name, padding, cset, size=12):
    kind = h5py.h5t.TypeID.copy(h5py.h5t.C_S1)
    kind.set_size(size)
    kind.set_strpad(padding)
    kind.set_cset(cset)
    space = h5py.h5s.create_simple((len(WORDS),))
    dataset = h5py.h5d.create(group.id, name.encode(), kind, space)
    fill = b" " if padding == h5py.h5t.STR_SPACEPAD else b"\0"
    raw = [word.rstrip() if fill == b" " else word for word in WORDS]
    data = np.frombuffer(b"".join(word.encode().ljust(size, fill) for word in raw), f"V{size}")
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data, kind)


with h5py.File(sys.argv[1], "w", track_order=False) as file:
    numbers = np.array([0, 1, 127, 7])
    for kind in "i1 u1 <i2 >i2 <u2 >u2 <i4 >i4 <u4 >u4 <i8 >i8 <u8 >u8".split():
        name = kind.replace("<", "le_").replace(">", "be_")
        file.create_dataset(f"integers/{name}", data=numbers.astype(kind))
    file["too_large/uint64"] = np.array([1, 2**63 - 1, 2**63], "u8")
    file["too_large/int64"] = np.array([5, 2**31], "i8")
    file["too_large/negative"] = np.array([5, 6, -(2**31) - 1], "i8")
    for kind in "<f2 <f4 >f4 <f8 >f8".split():
        name = kind.replace("<", "le_").replace(">", "be_")
        file.create_dataset(f"floats/{name}", data=np.array([0.5, -2.0, np.nan]).astype(kind))
    file["bool"] = np.array([True, False, True])
    file["matrix"] = np.arange(12, dtype="i4").reshape(4, 3)
    file["scalar"] = np.int32(7)
    file["null"] = h5py.Empty("i4")
    file["compound"] = np.zeros(2, [("a", "i4"), ("b", "f4")])
    file.create_dataset("lists", data=[np.arange(2), np.arange(3)], dtype=h5py.vlen_dtype("i4"))
    file.create_dataset("packed", data=np.arange(1000, dtype="i4"), chunks=(64,), compression=4,
                        shuffle=True, maxshape=(None,))
    utf8, ascii_ = h5py.h5t.CSET_UTF8, h5py.h5t.CSET_ASCII
    strings = file.create_group("strings")
    for name, padding in [("null_term", h5py.h5t.STR_NULLTERM), ("null_pad", h5py.h5t.STR_NULLPAD),
                          ("space_pad", h5py.h5t.STR_SPACEPAD)]:
        fixed(strings, name, padding, utf8)
        fixed(strings, name + "_ascii", padding, ascii_)
    strings.create_dataset("variable", data=WORDS, dtype=h5py.string_dtype("utf-8"))
    strings.create_dataset("variable_ascii", data=[word.encode() for word in WORDS],
                           dtype=h5py.string_dtype("ascii"))
    file["link"] = h5py.SoftLink("/nowhere")
    file.attrs["one"] = 1
    file.attrs["large"] = np.uint64(2**63)
    file.attrs["half"] = np.float32(0.5)
    file.attrs["word"] = "grün"
    file.attrs["fixed"] = np.bytes_("bytes")
    file.attrs["list"] = np.array([3, 4], ">i2")
    file.attrs["words"] = ["a", "bc"]
    file.attrs["flag"] = np.bool_(True)
    file.attrs["empty"] = h5py.Empty("f4")
    file.attrs["grid"] = np.zeros((2, 2))
