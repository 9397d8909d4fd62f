# SPDX-License-Identifier: Apache-2.0
"""The same prompts give the same file whatever the ranks, the batch and the drafter's placement, and
the same text whatever the order of the prompts and K.
Usage: same_files_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""

import json
import os
import random
import subprocess
import sys
import tempfile

MPIRUN, QUADRILLE, SAME_RESULTS, DATA = sys.argv[1:5]
TARGET = os.path.join(DATA, "models", "demo-full-4bpw")
DRAFT = os.path.join(DATA, "models", "demo-dflash2")

# name, ranks, arguments: each must give the file of the first.
RUNS = [
    ("one rank", 1, ["--k", "2"]),
    ("one record at a time", 1, ["--k", "2", "--max-seqs", "1"]),
    ("two ranks", 2, ["--k", "2", "--max-seqs", "3"]),
    ("four ranks", 4, ["--k", "2", "--max-seqs", "5", "--max-batched-tokens", "64"]),
    ("replicated drafter", 4, ["--k", "2", "--draft-placement", "replicated"]),
]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Case:
    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def pack(self, name, lines):
        with open(self.path(name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        run([QUADRILLE, "pack", self.path(name + ".jsonl"), "--out", self.path(name + ".h5")])
        return self.path(name + ".h5")

    def generate(self, name, prompts, ranks, arguments):
        out = self.path(name.replace(" ", "-") + "-out.h5")
        run([MPIRUN, "-n", str(ranks), QUADRILLE, "generate", "--target", TARGET, "--draft", DRAFT,
             "--prompts", prompts, "--out", out, "--max-new-tokens", "20", *arguments])
        return out

    def records(self, out):
        """id: (tokens, text, finish reason) of a generations file."""
        lines = run([QUADRILLE, "unpack", out]).splitlines()
        objects = [json.loads(line) for line in lines]
        return {o["id"]: (o["tokens"], o["text"], o["finish_reason"]) for o in objects}


def main():
    with open(os.path.join(DATA, "demo_prompts.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for number, line in enumerate(lines):
        line["id"] = f"r{number}"
    results = []
    with tempfile.TemporaryDirectory() as folder:
        case = Case(folder)
        prompts = case.pack("prompts", lines)
        files = [case.generate(name, prompts, ranks, arguments) for name, ranks, arguments in RUNS]
        for (name, _, _), out in list(zip(RUNS, files))[1:]:
            done = subprocess.run([SAME_RESULTS, files[0], out], capture_output=True, text=True)
            results.append((name, done.returncode == 0, done.stdout + done.stderr))

        expected = case.records(files[0])
        shuffled = lines[:]
        random.Random(5).shuffle(shuffled)
        mixed = case.generate("mixed", case.pack("mixed", shuffled), 2, ["--k", "7"])
        results.append(("shuffled prompts at K = 7", case.records(mixed) == expected, ""))
        plain = case.generate("plain", prompts, 2, ["--k", "0", "--max-seqs", "2"])
        results.append(("K = 0", case.records(plain) == expected, ""))
        results.append(("every record is there", len(expected) == len(lines), ""))
    print(f"1..{len(results)}")
    for name, good, notes in results:
        if notes:
            print("\n".join("# " + line for line in notes.splitlines()), file=sys.stderr)
        print(f"{'ok' if good else 'not ok'} - {name}")
    return 0 if all(good for _, good, _ in results) else 1


sys.exit(main())
