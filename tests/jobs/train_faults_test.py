#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille train on captures that are not as they should be, and with a disk that is full on one
rank: one message, the same exit code on all ranks, what was saved goes on. TAP. Its arguments are
those of tests/jobs/demo_runs.py, then FAILING_IO and MAKE_BAD_CAPTURES."""
import os
import subprocess
import sys
import tempfile

from demo_runs import DemoRuns, run

STEPS = 4
# Calls of a run by the letters of tests/support/failing_io.c; which of them fail is spread over the run.
POINTS = 5
REFUSED = [
    ("a capture of another checkpoint", "other_checkpoint.h5", "captured from another checkpoint"),
    ("a capture of other layers", "other_layers.h5", "layers: expected those of the drafter"),
    ("nothing generated", "nothing_generated.h5", "loss_mask: expected tokens to learn, found none"),
    ("a token beyond the vocabulary", "token.h5", "tokens: expected 0 to 4095, found 4096"),
    ("one sequence", "one_sequence.h5", "expected two sequences or more"),
    ("an empty capture", "empty.h5", "expected at least one sequence, found an empty capture"),
    ("a truncated capture", "short.h5", "short.h5"),
    ("an empty file", "nothing.h5", "nothing.h5"),
    ("no file", "missing.h5", "missing.h5"),
]


# Rows are read when they are drawn: the rank that draws one ends the job.
FOUND_LATER = [
    ("NaN in taps", "nan_tap.h5", "taps: expected numbers, found an infinite one or NaN in row"),
    ("infinite final hidden rows", "infinite_hidden.h5", "final_hidden: expected numbers, found an infinite one or NaN"),
]


class FaultRuns(DemoRuns):
    def command(self, out, capture):
        return [self.mpirun, "-n", "2", self.program, "train", "--target", self.target, "--draft", self.drafter,
                "--out", self.path(out), "--capture", capture, "--steps", str(STEPS), "--save-every", "2",
                "--sequences", "1", "--anchors", "4", "--validation", "0.2"]

    def train(self, out, capture, **env):
        return subprocess.run(self.command(out, capture), capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, **env})

    def made(self, out):
        with open(os.path.join(self.path(out), "model.safetensors"), "rb") as file:
            return file.read()


def said(done, words):
    return [line for line in done.stderr.splitlines() if words in line]


def said_once(done, words):
    """As an error of the whole job, by its first rank alone."""
    lines = said(done, words)
    return len(lines) == 1 and lines[0].startswith("quadrille: ")


def bad_captures(runs, capture):
    folder = runs.path("bad")
    os.mkdir(folder)
    run([runs.maker, capture, folder])
    with open(capture, "rb") as file:
        whole = file.read()
    for name, content in (("short.h5", whole[:len(whole) * 2 // 3]), ("nothing.h5", b"")):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    same = runs.train("same", os.path.join(folder, "same.h5"))
    runs.check("the same capture, written again, trains", same.returncode == 0, same.stderr)
    for name, file, words in REFUSED + FOUND_LATER:
        done = runs.train(file, os.path.join(folder, file))
        heard = said(done, words) if (name, file, words) in FOUND_LATER else said_once(done, words)
        code = 4 if file == "missing.h5" else 3
        runs.check(f"{name}: exit {code}, and why", done.returncode == code and heard,
                   f"exit {done.returncode}: {done.stderr}")
        runs.check(f"{name}: no drafter", not os.path.exists(os.path.join(runs.path(file), "model.safetensors")))


def full_disk(runs, capture):
    done = runs.train("whole", capture)
    runs.check("it trains", done.returncode == 0, done.stderr)
    whole = runs.made("whole")
    log = runs.path("calls")

    def disk(out, **settings):
        return {"LD_PRELOAD": runs.failing_io, "FAILING_IO_FOLDER": runs.path(out), "FAILING_IO_RANK": "0",
                **{"FAILING_IO_" + name: value for name, value in settings.items()}}

    runs.train("counted", capture, **disk("counted", LOG=log))
    with open(log, encoding="utf-8") as file:
        calls = len(file.readlines())
    runs.check("files are written", calls > POINTS, f"{calls} calls")
    for point in range(POINTS):
        at = 1 + point * (calls - 1) // (POINTS - 1)
        out = f"full-{point}"
        done = runs.train(out, capture, **disk(out, AT=str(at), STICKY="1"))
        name = f"a disk that is full from call {at} of {calls}"
        runs.check(f"{name}: exit 4, said once", done.returncode == 4 and said_once(done, runs.path(out)),
                   f"exit {done.returncode}: {done.stderr}")
        again = runs.train(out, capture)
        runs.check(f"{name}: goes on to the same drafter", again.returncode == 0 and runs.made(out) == whole,
                   f"exit {again.returncode}: {again.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = FaultRuns(folder)
        runs.failing_io, runs.maker = map(os.path.abspath, sys.argv[5:7])
        prompts = runs.pack("prompts", runs.demo_prompts())
        capture = runs.path("capture.h5")
        run([runs.mpirun, "-n", "1", runs.program, "capture", "--target", runs.target, "--draft", runs.drafter,
             "--prompts", prompts, "--max-new-tokens", "20", "--ignore-eos", "--out", capture])
        bad_captures(runs, capture)
        full_disk(runs, capture)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
