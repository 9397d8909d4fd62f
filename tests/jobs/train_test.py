#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille train: losses fall, the same drafter at 1, 2 and 4 ranks and after a kill, it drafts,
shuffled taps tell nothing, clear errors. TAP; for its arguments see tests/jobs/demo_runs.py."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

from demo_runs import DemoRuns, run

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.path.append(TOOLS)
import train_plot  # noqa: E402

TOKENS = 20
SMALL = ["--steps", "6", "--sequences", "1", "--anchors", "4", "--rate", "1e-4", "--validation", "0.2"]


class TrainRuns(DemoRuns):
    def command(self, out, ranks, *arguments):
        return [self.mpirun, "-n", str(ranks), self.program, "train", "--target", self.target, "--draft", self.drafter,
                "--out", self.path(out), "--capture", self.capture, *SMALL, *arguments]

    def train(self, out, ranks, *arguments):
        run(self.command(out, ranks, *arguments))
        return self.made(out)

    def made(self, out):
        """The drafter and the lines of its training."""
        with open(os.path.join(self.path(out), "model.safetensors"), "rb") as file:
            drafter = file.read()
        return drafter, self.table(out)

    def table(self, out):
        with open(os.path.join(self.path(out), "train.tsv"), encoding="utf-8") as file:
            return [line.rstrip("\n").split("\t") for line in file]

    def losses(self, out, column="loss"):
        """Of the validation, before and after."""
        head, *lines = self.table(out)
        values = [float(line[head.index(column)]) for line in lines if line[1] == "validation"]
        return values[0], values[-1]

    def refused(self, name, words, capture):
        self.capture = capture
        done = subprocess.run(self.command("none", 2), capture_output=True, text=True, timeout=120, check=False)
        self.check(name, done.returncode == 3 and words in done.stderr, f"exit {done.returncode}: {done.stderr}")
        self.check(f"{name}: nothing is written", not os.path.exists(self.path("none")))


def killed(runs):
    """Killed once its first state is there, it goes on to the same drafter."""
    command = runs.command("killed", 1, "--save-every", "1")[3:]  # no mpirun, whose ranks outlive it
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    state = os.path.join(runs.path("killed"), "train.state.safetensors")
    while not os.path.exists(state) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    goes_on = os.path.exists(state)
    if goes_on:
        run(runs.command("killed", 2, "--save-every", "1"))
    return goes_on, runs.made("killed")


def plotted(runs):
    """tools/train_plot.py shows the log of a run."""
    log, picture = os.path.join(runs.path("one"), "train.tsv"), runs.path("one.svg")
    command = [sys.executable, os.path.join(TOOLS, "train_plot.py")]
    shown = run([*command, log, "--plot", picture, "--points", "3"]).splitlines()
    losses = [f"{loss:.4f}" for loss in runs.losses("one")]
    runs.check("train_plot shows the validations", [line.split()[1] for line in shown[1:]] == losses, "\n".join(shown))
    lines = [e.get("points").split() for e in xml.etree.ElementTree.parse(picture).iter() if e.tag.endswith("polyline")]
    runs.check("train_plot draws losses and accept lengths", [len(line) for line in lines] == [3, 2, 3, 2], str(lines))
    rows = [{"step": step, "loss": value} for step, value in ((1, 4), (2, 2), (3, 9), (4, 1), (5, 5))]
    means = train_plot.means(rows, "loss", 2)
    runs.check("a point is the mean of its steps", means == [(1.5, 3.0), (4.0, 5.0)], str(means))
    done = subprocess.run([*command, runs.lines("bad.tsv", ["no log"])], capture_output=True, text=True, check=False)
    runs.check("train_plot refuses another file", done.returncode == 3 and "bad.tsv:1: expected the columns" in done.stderr,
               done.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = TrainRuns(folder)
        prompts = runs.pack("prompts", runs.demo_prompts())
        capture = runs.capture = runs.path("capture.h5")
        run([runs.mpirun, "-n", "1", runs.program, "capture", "--target", runs.target, "--draft", runs.drafter,
             "--prompts", prompts, "--max-new-tokens", str(TOKENS), "--ignore-eos", "--out", capture])
        first = runs.train("one", 1)
        before, after = runs.losses("one")
        runs.check("the loss of sequences held back falls", after < before, f"{before} {after}")
        plotted(runs)
        runs.check("two ranks make the same drafter", runs.train("two", 2) == first)
        runs.check("four ranks make the same drafter", runs.train("four", 4) == first)
        goes_on, drafter = killed(runs)
        runs.check("a killed run goes on", goes_on)
        runs.check("after a kill it is the same drafter", drafter == first)
        runs.train("b", 2, "--stage", "b", "--noise", "gaussian", "--decay", "dpace", "--anchor-reading", "drafter")
        before, after = runs.losses("b")
        runs.check("stage b trains", after < before, f"{before} {after}")
        runs.train("shuffled", 1, "--shuffle-taps")
        known, shuffled = runs.losses("one", "accept_length")[0], runs.losses("shuffled", "accept_length")[0]
        runs.check("with taps of other sequences hardly a draft is kept", known > 2 and shuffled < 1.3,
                   f"{known} {shuffled}")
        runs.drafter = runs.path("one")
        served = runs.generate("served", [prompts], 1, ["--max-new-tokens", "8"])
        runs.check("generate drafts with it", sum(r["acceptance"]["accepted"] for r in runs.unpack(served)) > 0)
        runs.drafter = os.path.join(runs.data, "models", "demo-dflash2")
        done = subprocess.run(runs.command("one", 1), capture_output=True, text=True, check=False)
        runs.check("a drafter is not replaced", done.returncode == 2 and "--overwrite" in done.stderr, done.stderr)
        with open(capture, "rb") as file:
            whole = file.read()
        with open(runs.path("short.h5"), "wb") as file:
            file.write(whole[:len(whole) // 2])
        runs.refused("a truncated capture", "short.h5", runs.path("short.h5"))
        layers = runs.path("layers.h5")
        run([runs.program, "capture", "--target", runs.target, "--taps", "0,1", "--prompts", prompts,
             "--max-new-tokens", "8", "--out", layers])
        runs.refused("a capture of other layers", "layers", layers)
        runs.refused("no capture", "prompts.h5", prompts)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
