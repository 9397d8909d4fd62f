# SPDX-License-Identifier: Apache-2.0
"""Progress as its reader can take it: a bar that stays on one line of a terminal, under mpirun too, plain lines
elsewhere; on 1, 2 and 4 ranks.
Usage: progress_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""
import os
import pty
import re
import subprocess
import sys
import tempfile

from demo_runs import DemoRuns


def command(runs, prompts, name, ranks):
    launcher = [runs.mpirun, "-n", str(ranks)] if ranks > 1 else []
    return [*launcher, runs.program, "generate", "--target", runs.target, "--draft", runs.drafter, "--prompts", prompts,
            "--out", runs.path(name + ".h5"), "--max-new-tokens", "64", "--max-seqs", "2"]


def on_terminal(arguments):
    """Exit code and all that a terminal was sent."""
    master, slave = pty.openpty()
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    said = b""
    while True:
        try:
            said += os.read(master, 65536)
        except OSError:  # everybody has closed it
            break
    os.close(master)
    return process.wait(timeout=60), said.decode()


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        prompts = runs.pack("prompts", runs.demo_prompts())
        for ranks in (1, 2, 4):
            code, said = on_terminal(command(runs, prompts, f"terminal-{ranks}", ranks))
            bars = [part for part in re.split(r"[\r\n]|\x1b\[K", said) if part.startswith("[")]
            runs.check(f"{ranks} ranks: a bar on a terminal", code == 0 and len(bars) > 1 and "12/12 records" in bars[-1], said)
            runs.check(f"{ranks} ranks: it fits a line", all(len(bar) < 80 for bar in bars), said)
            runs.check(f"{ranks} ranks: it is drawn over", said.count("\x1b[K") >= len(bars) - 1, said)
            done = subprocess.run(command(runs, prompts, f"pipe-{ranks}", ranks), capture_output=True, text=True, check=False)
            runs.check(f"{ranks} ranks: plain lines elsewhere", done.returncode == 0 and "\r" not in done.stderr
                       and "\x1b" not in done.stderr and "quadrille: 12/12 records" in done.stderr, done.stderr)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
