#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone; TAP, one point a header. headers_alone.py ROOT BUILD

Flags (include folders, defines, standard) come from BUILD/compile_commands.json. Each header is
compiled through a one-line source kept in BUILD, so that ccache answers for unchanged ones. Headers
that need CUDA are skipped where the build has none.
"""
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import rules

KEPT = re.compile(r"^(-I|-isystem|-D|-std=|-f|-W)")


def flags(build, suffix):
    """Union of the flags that matter over all compile commands of sources ending in suffix."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        commands = json.load(f)
    kept = []
    compiler = None
    for entry in commands:
        if not entry["file"].endswith(suffix):
            continue
        words = shlex.split(entry["command"])
        if compiler is None:
            compiler = words[:2] if os.path.basename(words[0]) == "ccache" else words[:1]
        for word, following in zip(words, words[1:] + [""]):
            pair = [word, following] if word == "-isystem" else [word]
            if KEPT.match(word) and not word.startswith(("-Werror", "-MF", "-MQ", "-MD")) and pair not in kept:
                kept.append(pair)
    return compiler, [w for pair in kept for w in pair]


def needs_cuda(path, text):
    return path.startswith("kernels/cuda/") or "cuda_runtime.h" in text or "nccl.h" in text


def main():
    root, build = (os.path.abspath(p) for p in sys.argv[1:3])
    headers = {p: t for p, t in rules.read_tree(root).items() if p.endswith(".h")}
    work = os.path.join(build, "headers-alone")
    os.makedirs(work, exist_ok=True)
    compiler, cpp = flags(build, ".cpp")
    cuda = flags(build, ".cu")[0] is not None
    extra = ["-I" + os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")] if cuda else []
    if shutil.which("ccache") and os.path.basename(compiler[0]) != "ccache":
        compiler = ["ccache"] + compiler

    def check(path):
        stem = os.path.join(work, path.replace("/", "-"))
        line = f'#include "{path}"\n'
        if not os.path.exists(stem + ".cpp") or open(stem + ".cpp", encoding="utf-8").read() != line:
            with open(stem + ".cpp", "w", encoding="utf-8") as f:
                f.write(line)
        command = compiler + cpp + extra + ["-I" + root, "-Werror", "-O0", "-c", stem + ".cpp", "-o", stem + ".o"]
        run = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False)
        return run.returncode == 0, run.stderr

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {p: None if needs_cuda(p, t) and not cuda else pool.submit(check, p) for p, t in headers.items()}
    print(f"1..{len(jobs)}")
    for number, (path, job) in enumerate(jobs.items(), 1):
        if job is None:
            print(f"ok {number} - {path} # SKIP no CUDA in this build")
            continue
        good, messages = job.result()
        for m in [] if good else messages.splitlines()[:8]:
            print("#", m)
        print("ok" if good else "not ok", number, "-", path)


if __name__ == "__main__":
    main()
