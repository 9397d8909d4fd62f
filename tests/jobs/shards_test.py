# SPDX-License-Identifier: Apache-2.0
"""Shards of one prompts file: merged they are the file of one run, and finished ones are skipped when they are
asked for again. Usage: shards_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from demo_runs import DemoRuns

SHARDS = 3
COMMON = ["--max-new-tokens", "12", "--temperature", "0.8", "--n", "2", "--logprobs", "2"]


def outcome(runs, *arguments):
    """Exit code and what was said."""
    done = subprocess.run([runs.program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def make_shards(runs, prompts, name, more=()):
    return [runs.generate(f"{name}-{i}", prompts, 1 + i % 2, ["--shard", f"{i}/{SHARDS}", *COMMON, *more])
            for i in range(SHARDS)]


def check_merge(runs, prompts, files):
    whole = runs.generate("whole", prompts, 2, COMMON)
    merged = runs.path("merged.h5")
    code, said = outcome(runs, "merge", *reversed(files), "--out", merged)
    runs.check("merge takes the files in any order", code == 0 and "48 records of 3 shards" in said, said)
    runs.same_file("merged shards are the file of one run", whole, merged)
    code, said = outcome(runs, "inspect", merged)
    runs.check("inspect reads a merged file", code == 0, said)
    runs.check("a merged file has no figures of one start", "last_start_" not in said, said)
    kinds = [json.loads(outcome(runs, "inspect", "--json", path)[1])["kinds"] for path in (whole, merged, files[1])]
    runs.check("merged shards keep the kinds of their prompts", kinds[0] == kinds[1] and set(kinds[2]) == {"new", "old"},
               str(kinds))
    runs.check("a shard has them", "last_start_decode_seconds" in outcome(runs, "inspect", files[0])[1], "")
    code, said = outcome(runs, "merge", *files, "--out", merged)
    runs.check("merge replaces nothing unasked", code == 2, said)
    code, said = outcome(runs, "merge", *files, "--out", merged, "--output-exists", "overwrite")
    runs.check("merge replaces what it is told to", code == 0, said)


def check_refusals(runs, prompts, files):
    other = runs.generate("other", prompts, 1, ["--shard", f"1/{SHARDS}", *COMMON, "--seed", "7"])
    twice = runs.path("twice.h5")
    shutil.copy(files[0], twice)
    damaged = runs.path("damaged.h5")
    with open(files[2], "rb") as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    with open(damaged, "wb") as file:
        file.write(content)
    for name, inputs, words in (
            ("a shard is missing", [files[0], files[2]], "expected 3 shards, found 2: missing are 1/3"),
            ("a shard is there twice", [*files, twice], "shard 0/3 is also in"),
            ("a shard of another run", [files[0], other, files[2]], "expected seed 0"),
            ("a file of another kind", [*files[:2], prompts[0]], "expected"),
            ("a damaged shard", [*files[:2], damaged], "damaged"),
            ("a shard that is not there", [*files[:2], runs.path("none.h5")], "none.h5")):
        out = runs.path("refused.h5")
        code, said = outcome(runs, "merge", *inputs, "--out", out)
        runs.check(f"merge refuses: {name}",
                   code in (3, 4) and words in said and not os.path.exists(out) and not os.path.exists(out + ".tmp"),
                   f"exit {code}: {said}")
    code, said = outcome(runs, "merge", *files, "--out", files[0], "--output-exists", "overwrite")
    runs.check("merge refuses: one of its inputs as OUT", code == 2, said)


def check_skip(runs, prompts, files):
    def again(*more):
        return outcome(runs, "generate", "--target", runs.target, "--draft", runs.drafter, "--prompts", *prompts,
                       "--out", files[0], "--shard", f"0/{SHARDS}", *COMMON, "--output-exists", "skip", *more)
    before = os.stat(files[0])
    code, said = again()
    runs.check("a finished file of the same run is skipped", code == 0 and "nothing is left to do" in said, said)
    code, said = again("--dry-run")
    runs.check("a dry run says the same", code == 0 and "nothing is left to do" in said, said)
    code, said = again("--seed", "7")
    runs.check("one of another run is refused", code == 2 and "seed was 0, is 7" in said, said)
    runs.check("none of them touched it", os.stat(files[0]).st_mtime_ns == before.st_mtime_ns)
    new = runs.path("new.h5")
    code, said = outcome(runs, "generate", "--target", runs.target, "--prompts", *prompts, "--out", new, "--limit",
                         "2", "--max-new-tokens", "2", "--output-exists", "skip")
    runs.check("what is not there is made", code == 0 and os.path.exists(new), said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        lines = [{**line, "kind": ("old", "new")[i // 6]} for i, line in enumerate(runs.demo_prompts())]
        prompts = [runs.pack("a", lines), runs.pack("b", lines)]
        files = make_shards(runs, prompts, "shard")
        check_merge(runs, prompts, files)
        check_refusals(runs, prompts, files)
        check_skip(runs, prompts, files)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
