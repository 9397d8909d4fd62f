#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The failing_io library does what its head comment says; TAP. failing_io_test.py LIBRARY"""
import os
import subprocess
import sys
import tempfile

# Counted calls, in order: write, truncate, sync, close, rename, close (of the second file).
ACT = """
import errno, os, sys
folder, other = sys.argv[1:]
def attempt(name, call, *args):
    try:
        return call(*args)
    except OSError as e:
        print(name, errno.errorcode[e.errno], flush=True)
free = os.open(os.path.join(other, "free"), os.O_WRONLY | os.O_CREAT)
assert os.write(free, b"abc") == 3
os.close(free)
fd = os.open(os.path.join(folder, "a"), os.O_RDWR | os.O_CREAT)
attempt("write", os.write, fd, b"0123456789")
attempt("truncate", os.ftruncate, fd, 5)
attempt("sync", os.fsync, fd)
attempt("close", os.close, fd)
fd = os.open(os.path.join(folder, "b"), os.O_WRONLY | os.O_CREAT)  # the same number: it was closed
os.chdir(folder)
attempt("rename", os.rename, "a", "c")
attempt("close", os.close, fd)
reader = os.open(os.path.join(folder, "b"), os.O_RDONLY)
os.close(reader)
print("size", os.path.getsize("c" if os.path.exists("c") else "a"))
"""


def act(library, **settings):
    with tempfile.TemporaryDirectory() as root:
        folder, other = os.path.join(root, "out"), os.path.join(root, "outside")
        os.mkdir(folder)
        os.mkdir(other)
        log = os.path.join(root, "log")
        env = {**os.environ, "LD_PRELOAD": library, "FAILING_IO_FOLDER": folder, "FAILING_IO_LOG": log}
        env.update({"FAILING_IO_" + k: v for k, v in settings.items()})
        run = subprocess.run([sys.executable, "-c", ACT, folder, other], env=env, capture_output=True, text=True, check=False)
        lines = open(log, encoding="utf-8").read().split("\n")[:-1] if os.path.exists(log) else []
        return run.stdout.split("\n")[:-1] + run.stderr.split("\n")[:-1], [x[0] for x in lines]


def main():
    library = os.path.abspath(sys.argv[1])
    order = list("wtscrc")
    points = [("nothing fails when no call is chosen", act(library), (["size 5"], order))]
    expected = ["write ENOSPC", "truncate ENOSPC", "sync ENOSPC", "close ENOSPC", "rename ENOSPC", "close ENOSPC"]
    sizes = [5, 10, 5, 5, 5, 5]
    for k, line in enumerate(expected, 1):
        points.append((f"call {k} fails alone", act(library, AT=str(k)), ([line, f"size {sizes[k - 1]}"], order)))
    points.append(("EIO on request", act(library, AT="3", ERRNO="EIO"), (["sync EIO", "size 5"], order)))
    points.append(("from then on", act(library, AT="3", STICKY="1"), (expected[2:] + ["size 5"], order)))
    points.append(("chosen calls only", act(library, AT="1", OPS="rc"), (["close ENOSPC", "size 5"], list("crc"))))
    points.append(("beyond the last call", act(library, AT="7"), (["size 5"], order)))
    print(f"1..{len(points)}")
    for number, (claim, found, wanted) in enumerate(points, 1):
        if found != wanted:
            print(f"# expected {wanted}, found {found}")
        print("ok" if found == wanted else "not ok", number, "-", claim)


if __name__ == "__main__":
    main()
