#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone; TAP, one point a header. headers_alone.py ROOT BUILD

Flags (include folders, defines, standard) come from BUILD/compile_commands.json. Each header is
compiled through a one-line source kept in BUILD, so that ccache answers for unchanged ones. .cuh
files go through nvcc; headers that need CUDA are skipped where the build has none.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

import rules

KEPT = re.compile(r"^(-I|-isystem|-D|-std=|-f|-W)")


def commands(build, suffix):
    """Compile commands (lists of words) of the sources that end in suffix."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        return [shlex.split(e["command"]) for e in json.load(f) if e["file"].endswith(suffix)]


def compiler_of(words):
    return words[:2] if os.path.basename(words[0]) == "ccache" else words[:1]


def cpp_command(build):
    """The C++ compiler with the union of the flags that matter over all its compile commands."""
    found = commands(build, ".cpp")
    kept = []
    for words in found:
        for word, following in zip(words, words[1:] + [""]):
            pair = [word, following] if word == "-isystem" else [word]
            if KEPT.match(word) and not word.startswith("-Werror") and pair not in kept:
                kept.append(pair)
    return compiler_of(found[0]) + [w for pair in kept for w in pair] + ["-Werror", "-O0"]


def cuda_command(build):
    """nvcc as it compiles the first .cu file, for one GPU architecture; None without CUDA."""
    found = commands(build, ".cu")
    if not found:
        return None
    kept, words, architectures = [], iter(found[0]), 0
    for word in words:
        if word in ("-o", "-c", "-MF", "-MQ", "-MT"):
            next(words)
        elif word == "-gencode":
            architectures += 1
            pair = [word, next(words)]
            kept += pair if architectures == 1 else []
        elif word not in ("-MD", "-x", "cu"):
            kept.append(word)
    return kept


def needs_cuda(path, text):
    return path.startswith("kernels/cuda/") or re.search(r"<(cuda_runtime|nccl)\.h>", text) is not None


def main():
    root, build = (os.path.abspath(p) for p in sys.argv[1:3])
    headers = {p: t for p, t in rules.read_tree(root).items() if p.endswith((".h", ".cuh"))}
    work = os.path.join(build, "headers-alone")
    os.makedirs(work, exist_ok=True)
    cpp, cuda = cpp_command(build), cuda_command(build)
    if cuda:
        cpp += ["-isystem", os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]

    def check(path):
        command, suffix = (cuda, ".cu") if path.endswith(".cuh") else (cpp, ".cpp")
        stem = os.path.join(work, path.replace("/", "-"))
        line = f'#include "{path}"\n'
        # Left alone when it is there: ccache answers sooner for a file that has not changed.
        if not os.path.exists(stem + suffix):
            with open(stem + suffix, "w", encoding="utf-8") as f:
                f.write(line)
        run = subprocess.run(command + ["-I" + root, "-c", stem + suffix, "-o", stem + ".o"],
                             cwd=build, capture_output=True, text=True, check=False)
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
