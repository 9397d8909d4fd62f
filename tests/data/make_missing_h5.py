# SPDX-License-Identifier: Apache-2.0
"""Writes missing.h5: datasets and links, made by h5py, whose data is not in the file.

Run: python3 make_missing_h5.py missing.h5
"""
import sys

import h5py
import numpy as np

with h5py.File(sys.argv[1], "w") as file:
    file.create_dataset("chunks", (100,), "i4", chunks=(10,))[:30] = 7
    file.create_dataset("all_chunks", (95,), "i4", chunks=(10,))[:] = 7
    file.create_dataset("grown", data=np.arange(8), chunks=(4,), maxshape=(None,)).resize((17,))
    file.create_dataset("never_written", (5,), "f8")
    file.create_dataset("no_rows", (0,), "f8")
    file.create_dataset("external", (4,), "i4", external=[("absent.bin", 0, 16)])
    file.create_dataset("lzf", data=np.zeros(64, "i4"), chunks=(64,), compression="lzf")
    for name, source, rows in [("virtual", "absent.h5", 8), ("virtual_hole", ".", 6), ("virtual_whole", ".", 8)]:
        layout = h5py.VirtualLayout((8,), "i4")
        layout[:rows] = h5py.VirtualSource(source, "all_chunks", (95,))[:rows]
        file.create_virtual_dataset(name, layout)
    file["soft"] = h5py.SoftLink("/nowhere/at_all")
    file["elsewhere"] = h5py.ExternalLink("absent.h5", "/data")
    file["there"] = h5py.SoftLink("/all_chunks")
