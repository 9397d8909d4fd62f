#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille probe: the same report at 1 and 2 ranks, numbers that fit each other and train's, fc
refitted to a target that changed, clear errors. TAP; for its arguments see tests/jobs/demo_runs.py."""
import json
import os
import struct
import subprocess
import sys
import tempfile

import broken_checkpoints
from demo_runs import DemoRuns, run

TOKENS = 48
HELD_BACK = ["--validation", "0.5"]
# The last step of a record is cut where the record ends, which probe leaves out.
END_OF_RECORDS = 0.1


def changed_target(good, folder):
    """The target with the output of its first layers' feed-forward changed in each channel."""
    broken_checkpoints.copy(good, folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = broken_checkpoints.tensors_of(*broken_checkpoints.read(path))
    for layer in (1, 3):
        entry = tensors[f"{broken_checkpoints.PREFIX}layers.{layer}.post_attention_layernorm.weight"]
        bits = struct.unpack(f"<{len(entry[2]) // 2}H", entry[2])
        # One exponent more: each norm's weight is doubled.
        entry[2] = struct.pack(f"<{len(bits)}H", *(b + 0x80 for b in bits))
    os.unlink(path)
    broken_checkpoints.write_tensors(path, tensors)
    return folder


class ProbeRuns(DemoRuns):
    def capture(self, name, target, prompts):
        out = self.path(name)
        run([self.mpirun, "-n", "1", self.program, "capture", "--target", target, "--draft", self.drafter, "--k", "7",
             "--prompts", prompts, "--max-new-tokens", str(TOKENS), "--ignore-eos", "--out", out])
        return out

    def command(self, ranks, target, capture, *arguments):
        return [self.mpirun, "-n", str(ranks), self.program, "probe", "--target", target, "--capture", capture,
                *HELD_BACK, *arguments]

    def probe(self, ranks, target, capture, *arguments):
        """What it prints, and its JSON."""
        report = self.path("probe.json")
        text = run(self.command(ranks, target, capture, "--draft", self.drafter, "--json", report, *arguments))
        with open(report, encoding="utf-8") as file:
            return text, json.load(file)

    def refused(self, name, code, words, *arguments):
        done = subprocess.run(self.command(2, self.target, *arguments), capture_output=True, text=True, timeout=120,
                              check=False)
        self.check(name, done.returncode == code and words in done.stderr, f"exit {done.returncode}: {done.stderr}")

    def served(self, prompts, records):
        """Accept length of some records as generate finds it."""
        out = self.generate("served", [prompts], 1, ["--k", "7", "--max-new-tokens", str(TOKENS), "--ignore-eos"])
        found = [r["acceptance"] for r in self.unpack(out)]
        return sum(found[i]["emitted"] for i in records) / sum(found[i]["steps"] for i in records)


def numbers(runs, text, report, prompts):
    drafts = report["draft"]["drafts"]
    agreement = {row["rows"]: row["share"] for row in report["agreement"]}
    taps = [share for rows, share in agreement.items() if rows.startswith("tap of layer")]
    runs.check("taps of every layer are read", len(taps) == 4, text)
    runs.check("final hidden rows give every token", agreement["final hidden, head"] == 1, text)
    fitted, kept = (agreement[f"ridge map of all taps, head, {of}"] for of in ("fitted on", "held back"))
    runs.check("a map of all taps tells more than any tap", fitted > max(taps), text)
    runs.check("it tells rows held back too, and less", max(taps) * 0.7 < kept < fitted, text)
    runs.check("a draft is right only if it is offered", all(d["right"] <= d["offered"] for d in drafts), text)
    length = drafts[-1]["accept_length"]
    runs.check("accept length is one more than the drafts kept",
               abs(1 + sum(d["kept"] for d in drafts) - length) < 1e-9, text)
    runs.check("the ceiling is above it and within K + 1",
               all(d["accept_length"] <= d["ceiling"] <= d["draft"] + 1 for d in drafts), text)
    runs.check("tok/s is accept length times steps/s",
               all(abs(d["tokens_per_second"] - 20 * d["accept_length"]) < 1e-9 for d in drafts), text)
    served = runs.served(prompts, report["held_back"])
    runs.check("accept length is that of generate", abs(length / served - 1) < END_OF_RECORDS, f"{length} {served}")


def refit(runs, prompts, reference):
    """fc for a target that changed, from a capture of the one that the drafter was made for."""
    changed = changed_target(runs.target, runs.path("changed"))
    capture = runs.capture("changed.h5", changed, prompts)
    made = runs.path("refitted")
    text, report = runs.probe(1, changed, capture, "--reference", reference, "--refit-fc", made)
    before, after = (report[of]["drafts"][-1]["accept_length"] for of in ("draft", "refitted"))
    # Few rows fit it; that it undoes a known change is tested in tap_map_test.
    runs.check("fc refitted to a target that changed little drafts as well", after > 0.9 * before, text)
    official, runs.drafter = runs.drafter, made
    _, alone = runs.probe(2, changed, capture)
    runs.drafter = official
    found = alone["draft"]["drafts"][-1]["accept_length"]  # of weights rounded to bf16
    runs.check("the drafter written is the one measured", abs(found - after) < 0.05, f"{after} {found}")
    runs.refused("a capture of another checkpoint", 3, "captured from another checkpoint", capture)
    runs.refused("a folder that is not empty", 2, "expected a new or an empty folder", reference, "--draft",
                 runs.drafter, "--reference", capture, "--refit-fc", made)


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = ProbeRuns(folder)
        prompts = runs.pack("prompts", runs.demo_prompts())
        capture = runs.capture("capture.h5", runs.target, prompts)
        rate = ["--steps-per-second", "20"]
        text, report = runs.probe(1, runs.target, capture, *rate)
        other_text, other = runs.probe(2, runs.target, capture, *rate)
        runs.check("two ranks find the same", (text, report) == (other_text, other), text + other_text)
        numbers(runs, text, report, prompts)
        refit(runs, prompts, capture)
        draft = ["--draft", runs.drafter]
        runs.refused("a reference of the same checkpoint", 3, "another checkpoint", capture, *draft, "--reference",
                     capture, "--refit-fc", runs.path("none"))
        runs.refused("a refit without a reference", 2, "--reference", capture, *draft, "--refit-fc", runs.path("none"))
        runs.refused("a refit without a drafter", 2, "--draft none", capture, "--reference", capture, "--refit-fc",
                     runs.path("none"))
        runs.refused("a rate without a drafter", 2, "--steps-per-second", capture, *rate)
        runs.refused("a report over another file", 2, "capture.h5", capture, "--json", capture)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
