# SPDX-License-Identifier: Apache-2.0
"""Runs of the demo model for tests that compare what they write: started, read back, judged; TAP.
The command line of such a test: MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""
import json
import os
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class DemoRuns:
    """All files in `folder`."""

    def __init__(self, folder):
        self.mpirun, self.program, self.comparer, self.data = sys.argv[1:5]
        self.target = os.path.join(self.data, "models", "demo-full-4bpw")
        self.drafter = os.path.join(self.data, "models", "demo-dflash2")
        self.folder = folder
        self.results = []

    def demo_prompts(self):
        with open(os.path.join(self.data, "demo_prompts.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def path(self, name):
        return os.path.join(self.folder, name)

    def lines(self, name, lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return self.path(name)

    def pack(self, name, lines):
        packed = self.path(name + ".h5")
        run([self.program, "pack", self.lines(name + ".jsonl", lines), "--out", packed])
        return packed

    def generate(self, name, prompts, ranks, arguments):
        out = self.path(name.replace(" ", "-") + "-out.h5")
        run([self.mpirun, "-n", str(ranks), self.program, "generate", "--target", self.target,
             "--draft", self.drafter, "--prompts", *prompts, "--out", out, *arguments])
        return out

    def unpack(self, *arguments):
        return [json.loads(line) for line in run([self.program, "unpack", *arguments]).splitlines()]

    def check(self, name, good, notes=""):
        self.results.append((name, good, notes))

    def same_file(self, name, first, second):
        done = subprocess.run([self.comparer, first, second], capture_output=True, text=True, check=False)
        self.check(name, done.returncode == 0, done.stdout + done.stderr)

    def report(self):
        """The exit code."""
        print(f"1..{len(self.results)}")
        for name, good, notes in self.results:
            if notes and not good:
                print("\n".join("# " + line for line in notes.splitlines()), file=sys.stderr)
            print(f"{'ok' if good else 'not ok'} - {name}")
        return 0 if all(good for _, good, _ in self.results) else 1
