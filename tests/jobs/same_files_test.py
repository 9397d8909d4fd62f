# SPDX-License-Identifier: Apache-2.0
"""The same prompts give the same file whatever the ranks, the batch and the drafter's placement, and
the same text whatever the order of the prompts and K.
Usage: same_files_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""

import random
import sys
import tempfile

from demo_runs import DemoRuns

# name, ranks, arguments: each must give the file of the first.
RUNS = [
    ("one rank", 1, ["--k", "2"]),
    ("one record at a time", 1, ["--k", "2", "--max-seqs", "1"]),
    ("two ranks", 2, ["--k", "2", "--max-seqs", "3"]),
    ("four ranks", 4, ["--k", "2", "--max-seqs", "5", "--max-batched-tokens", "64"]),
    ("replicated drafter", 4, ["--k", "2", "--draft-placement", "replicated"]),
]


def generate(runs, name, prompts, ranks, arguments):
    return runs.generate(name, [prompts], ranks, ["--max-new-tokens", "20", *arguments])


def records(runs, out):
    """id: (tokens, text, finish reason) of a generations file."""
    return {o["id"]: (o["tokens"], o["text"], o["finish_reason"]) for o in runs.unpack(out)}


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        lines = [dict(line, id=f"r{number}") for number, line in enumerate(runs.demo_prompts())]
        prompts = runs.pack("prompts", lines)
        files = [generate(runs, name, prompts, ranks, arguments) for name, ranks, arguments in RUNS]
        for (name, _, _), out in list(zip(RUNS, files))[1:]:
            runs.same_file(name, files[0], out)

        expected = records(runs, files[0])
        shuffled = lines[:]
        random.Random(5).shuffle(shuffled)
        mixed = generate(runs, "mixed", runs.pack("mixed", shuffled), 2, ["--k", "7"])
        runs.check("shuffled prompts at K = 7", records(runs, mixed) == expected)
        plain = generate(runs, "plain", prompts, 2, ["--k", "0", "--max-seqs", "2"])
        runs.check("K = 0", records(runs, plain) == expected)
        runs.check("every record is there", len(expected) == len(lines))
        return runs.report()


sys.exit(main())
