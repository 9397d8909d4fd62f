# SPDX-License-Identifier: Apache-2.0
"""The program's own command line, alone and on ranks: help, version and usage errors are printed
once, end with the documented code, in time. Usage: cli_test.py MPIRUN QUADRILLE"""

import os
import subprocess
import sys
import time

MPIRUN, QUADRILLE = sys.argv[1:3]

# name, arguments, environment, exit code, stream, what it must hold (once)
CASES = [
    ("no arguments", [], {}, 2, "stdout", "Usage: quadrille"),
    ("help", ["--help"], {}, 0, "stdout", "Usage: quadrille"),
    ("version", ["--version"], {}, 0, "stdout", "quadrille 0."),
    ("unknown subcommand", ["generat"], {}, 2, "stderr",
     "quadrille: usage error: unknown subcommand 'generat'"),
]


def run(ranks, arguments, environment):
    command = [QUADRILLE] + arguments
    if ranks:
        command = [MPIRUN, "-n", str(ranks)] + command
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30,
                          env={**os.environ, **environment})
    return done, time.monotonic() - start


def main():
    good = True
    print(f"1..{3 * len(CASES)}")
    for name, arguments, environment, code, stream, part in CASES:
        for ranks in (0, 1, 4):
            done, seconds = run(ranks, arguments, environment)
            text = done.stdout if stream == "stdout" else done.stderr
            problems = []
            if done.returncode != code:
                problems.append(f"exit code {done.returncode}, expected {code}")
            if text.count(part) != 1:
                problems.append(f"{text.count(part)} times {part!r} on {stream}")
            if seconds > 10:
                problems.append(f"took {seconds:.1f} s")
            for problem in problems:
                print(f"# {problem}", file=sys.stderr)
            if problems:
                good = False
                print("\n".join("# | " + line for line in (done.stdout + done.stderr).splitlines()), file=sys.stderr)
            where = f"on {ranks} ranks" if ranks else "alone"
            print(f"{'not ok' if problems else 'ok'} - {name} {where}", flush=True)
    return 0 if good else 1


sys.exit(main())
