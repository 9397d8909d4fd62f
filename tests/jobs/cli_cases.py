#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the table of bad input (cli_table.py) at 1 and 4 ranks; TAP, one point a case and rank count.

  cli_cases.py --program EXE --maker MAKE_BAD_INPUTS --models DIR [--mpirun MPIRUN] [--only PART] [-v]

A case holds if the exit code is the expected one, the message is printed exactly once (over all
ranks), nothing crashed, a failed run left no output, and it took less than ten seconds.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

import broken_checkpoints
import cli_table

LIMIT_S = 10
CRASH = re.compile(r"Signal: |terminate called|MPI_ABORT was invoked|AddressSanitizer|runtime error:|internal error")


class Workspace:
    """Makes what the placeholders of a case name, each thing once."""

    def __init__(self, options, folder):
        self.options, self.folder, self.count = options, folder, 0
        self.h5 = os.path.join(folder, "h5")
        os.mkdir(self.h5)
        subprocess.run([options.maker, self.h5], check=True)
        with open(os.path.join(self.h5, "good.h5"), "rb") as f:
            data = f.read()
        with open(os.path.join(self.h5, "truncated.h5"), "wb") as f:
            f.write(data[:-200])
        self.made = {}

    def model(self, name):
        return os.path.join(self.options.models, name)

    def checkpoint(self, name):
        if name not in self.made:
            self.made[name] = os.path.join(self.folder, "ckpt-" + name)
            broken_checkpoints.BROKEN[name](self.model("toy-vocab768"), self.made[name])
        return self.made[name]

    def new(self, name):
        self.count += 1
        folder = os.path.join(self.folder, f"case-{self.count}")
        os.mkdir(folder)
        return os.path.join(folder, name) if name else folder

    def complete(self):
        if "complete" not in self.made:
            path = self.new("out.h5")
            arguments = self.fill(cli_table.generate(out=path), {})
            done = run([self.options.program] + shlex.split(arguments), 1, self.options)
            if done["code"] != 0:
                raise SystemExit(f"cli_cases: a plain run failed:\n{done['output']}")
            self.made["complete"] = path
        return self.made["complete"]

    def fill(self, text, own):
        """Replaces placeholders; `own` keeps this case's {out} and {tmp}."""
        fixed = {"target": "toy-vocab768", "native": "toy-native", "demo": "demo-full-4bpw"}

        def value(match):
            kind, _, name = match.group(1).partition(":")
            if kind in fixed:
                return self.model(fixed[kind])
            if kind == "ckpt":
                return self.checkpoint(name)
            if kind == "h5":
                return os.path.join(self.h5, name + ".h5")
            if kind == "complete":
                return self.complete()
            if kind not in own:
                own[kind] = self.new("" if kind == "tmp" else "out.h5")
                if kind == "parts":
                    os.mkdir(own[kind] + ".parts")
                    with open(own[kind] + ".parts/part-0-000000.h5", "wb") as f:
                        f.write(b"left over")
            return own[kind]
        return re.sub(r"\{([a-z0-9]+(?::[a-z0-9-]+)?)\}", value, text)


def run(command, ranks, options):
    if ranks > 1:
        command = [options.mpirun, "-n", str(ranks)] + command
    start = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as child:
        try:
            output = child.communicate(timeout=6 * LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            child.terminate()
            output = child.communicate()[0]
    return {"code": child.returncode, "output": output, "seconds": time.monotonic() - start}


def judge(done, code, message, own):
    """Complaints about a finished run."""
    found = []
    if done["code"] != code:
        found.append(f"expected exit code {code}, found {done['code']}")
    times = done["output"].count(message)
    if times != 1:
        found.append(f"expected '{message}' once, found it {times} times")
    crash = CRASH.search(done["output"])
    if crash:
        found.append(f"crashed: {crash.group(0)}")
    if done["seconds"] >= LIMIT_S:
        found.append(f"expected less than {LIMIT_S} s, took {done['seconds']:.1f} s")
    if code not in (0, 1) and "out" in own:
        left = os.listdir(os.path.dirname(own["out"]))
        if left:
            found.append(f"left {left} behind")
    return found


def all_cases():
    for name, arguments, code, message in cli_table.ON_RANKS:
        for ranks in (1, 4):
            yield name, ranks, arguments, code, message
    for name, arguments, code, message in cli_table.ALONE:
        yield name, 1, arguments, code, message
    yield from cli_table.RANKS


def main():
    parser = argparse.ArgumentParser()
    for name in ("--program", "--maker", "--models"):
        parser.add_argument(name, required=True)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("-v", action="store_true", help="print what every case printed")
    options = parser.parse_args()
    cases = [c for c in all_cases() if options.only in c[0]]
    print(f"1..{len(cases)}")
    with tempfile.TemporaryDirectory(prefix="cli-cases-") as folder:
        workspace = Workspace(options, folder)

        def start(case):
            _, ranks, arguments, code, message = case
            own = {}
            command = [options.program] + shlex.split(workspace.fill(arguments, own))
            message = workspace.fill(message, own)
            return lambda: (command, *(lambda d: (d, judge(d, code, message, own)))(run(command, ranks, options)))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = [pool.submit(start(case)) for case in cases]
            for number, (case, result) in enumerate(zip(cases, results), 1):
                command, done, complaints = result.result()
                if complaints or options.v:
                    for line in complaints + ["ran: " + shlex.join(command)] + done["output"].splitlines():
                        print("#", line, file=sys.stderr)
                print("not ok" if complaints else "ok", number, "-", f"{case[0]}, {case[1]} ranks", flush=True)


if __name__ == "__main__":
    sys.exit(main())
