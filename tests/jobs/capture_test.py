#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille capture: the same file at 1 and 2 ranks and for any batch, after a kill, and from
generate --save-hidden; clear errors. TAP; for its arguments see tests/jobs/demo_runs.py."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from demo_runs import DemoRuns, run

TOKENS = 24


class CaptureRuns(DemoRuns):
    def command(self, out, ranks, *arguments):
        return [self.mpirun, "-n", str(ranks), self.program, "capture", "--target", self.target, "--prompts",
                self.prompts, "--max-new-tokens", str(TOKENS), "--out", out, *arguments]

    def capture(self, name, ranks, *arguments):
        out = self.path(name)
        run(self.command(out, ranks, "--generations", self.path("generations.h5"), *arguments))
        with open(out, "rb") as file:
            return file.read()

    def refused(self, name, code, words, out, *arguments):
        done = subprocess.run(self.command(out, 2, *arguments), capture_output=True, text=True, timeout=120,
                              check=False)
        self.check(name, done.returncode == code and words in done.stderr, f"exit {done.returncode}: {done.stderr}")


def killed(runs, draft):
    """Killed once its first block is written, it goes on to the same bytes."""
    out = runs.path("killed.h5")
    command = runs.command(out, 1, "--generations", runs.path("generations.h5"), "--max-seqs", "1",
                           "--max-batched-tokens", "64", *draft)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(out + ".partial") and process.poll() is None:
        time.sleep(0.002)
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.5)  # ranks outlive a killed mpirun by a second
    if not os.path.exists(out):
        run(command)
    with open(out, "rb") as file:
        return file.read()


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = CaptureRuns(folder)
        runs.prompts = runs.pack("prompts", runs.demo_prompts())
        draft = ["--draft", runs.drafter]
        first = runs.capture("one.h5", 1, *draft)
        runs.check("two ranks write the same file", runs.capture("two.h5", 2, *draft) == first)
        runs.check("another batch writes the same file",
                   runs.capture("small.h5", 1, *draft, "--max-seqs", "3", "--max-batched-tokens", "64") == first)
        runs.check("after a kill it is the same file", killed(runs, draft) == first)
        saved = runs.path("saved.h5")
        run([runs.mpirun, "-n", "1", runs.program, "generate", "--target", runs.target, "--prompts", runs.prompts,
             "--max-new-tokens", str(TOKENS), "--out", runs.path("saved-generations.h5"), *draft,
             "--save-hidden", saved])
        with open(saved, "rb") as file:
            runs.check("generate --save-hidden writes the same file", file.read() == first)
        text = run([runs.program, "inspect", runs.path("one.h5")])
        runs.check("inspect shows its layers", "layers" in text and "[1, 3, 4, 6]" in text, text)
        probes = [run([runs.mpirun, "-n", str(ranks), runs.program, "probe", "--target", runs.target, "--capture",
                       runs.path("one.h5")]) for ranks in (1, 2)]
        runs.check("final hidden rows give every token", re.search(r"final hidden, head .*100\.00 %", probes[0]),
                   probes[0])
        runs.check("two ranks find the same", probes[0] == probes[1], probes[1])
        runs.refused("a layer that is none", 2, "--taps: expected layers 0 to 7, found 8", runs.path("a.h5"), "--taps", "1,8",
                     "--generations", runs.path("taps.h5"))
        runs.refused("layers out of order", 2, "--taps: expected layers in ascending order", runs.path("a.h5"), "--taps", "3,1")
        runs.refused("no layers", 2, "--taps", runs.path("a.h5"))
        runs.refused("a file that is there", 2, "one.h5", runs.path("one.h5"), *draft)
        runs.refused("generations of another run", 2, "generations.h5", runs.path("a.h5"), *draft, "--generations",
                     runs.path("generations.h5"), "--seed", "7")
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
