# SPDX-License-Identifier: Apache-2.0
"""An exception on one rank while the others wait for it: the job ends soon, with the error's exit
code, one line that tells who, what and where, and the hooks run. Usage: fatal_test.py MPIRUN HELPER"""

import re
import subprocess
import sys
import threading
import time

MPIRUN, HELPER = sys.argv[1:3]
ERROR = re.compile(r"\[rank \d+/\d+ \S+\] \w+ error:")


def run(ranks, way):
    """Exit code, lines on stderr, seconds from the error to the end of the job."""
    lines, seen = [], None
    with subprocess.Popen([MPIRUN, "-n", str(ranks), HELPER, way], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as job:
        patience = threading.Timer(60, job.kill)
        patience.start()
        for line in job.stderr:
            lines.append(line.rstrip("\n"))
            if seen is None and ERROR.match(line):
                seen = time.monotonic()
        code = job.wait()
        patience.cancel()
    return code, lines, time.monotonic() - (seen or 0.0)


def check(name, ranks, way, code, line, hooks, longest=15.0):
    found, printed, seconds = run(ranks, way)
    stderr = "\n".join(printed)
    lines = [text for text in printed if ERROR.match(text)]
    problems = []
    if found != code:
        problems.append(f"exit code {found}, expected {code}")
    if len(lines) != 1 or not re.fullmatch(line, lines[0]):
        problems.append(f"error lines {lines}, expected one like {line}")
    if ("hook one of rank" in stderr) != hooks:
        problems.append(f"hooks ran: {not hooks}, expected {hooks}")
    told = [text for text in printed if " is told: " in text]
    if len(told) != 1 or told[0].split(": ", 1)[1] not in line.replace(r"\.", "."):
        problems.append(f"told {told}, expected the error once")
    if hooks and "while ending: hook two fails" not in stderr:
        problems.append("no word of the hook that failed")
    if "last hook of rank" not in stderr and way != "hang":
        problems.append("the last hook did not run")
    if seconds > longest:
        problems.append(f"ended {seconds:.1f} s after its error, expected at most {longest} s")
    for problem in problems:
        print(f"# {problem}", file=sys.stderr)
    if problems:
        print("\n".join("# | " + text for text in printed), file=sys.stderr)
    print(f"{'not ok' if problems else 'ok'} - {name}", flush=True)
    return not problems


def main():
    at = r" \(fatal_helper\.cpp:\d+\) at step 118, layer 3, op moe"
    good = True
    print("1..8")
    for ranks in (1, 2, 4):
        good &= check(f"an Error ends {ranks} ranks", ranks, "throw", 4,
                      rf"\[rank {ranks - 1}/{ranks} \S+\] io error: disk full{at}", hooks=True)
    anywhere = r" \(\w+\.\w+:\d+\) at step 118, layer 3, op moe"
    good &= check("an exception of a library is internal", 4, "other", 7,
                  rf"\[rank 3/4 \S+\] internal error: index 9 of 3{anywhere}", hooks=True)
    good &= check("std::terminate comes here too", 4, "nested", 5,
                  rf"\[rank 3/4 \S+\] device error: second exception{at}", hooks=True)
    good &= check("another thread's exception runs no hooks", 4, "thread", 4,
                  rf"\[rank 3/4 \S+\] io error: thrown in a thread{at}", hooks=False)
    good &= check("a hook that hangs is left behind", 2, "hang", 4,
                  rf"\[rank 1/2 \S+\] io error: disk full{at}", hooks=False, longest=30.0)
    good &= check("so is a last one", 2, "last", 4,
                  rf"\[rank 1/2 \S+\] io error: disk full{at}", hooks=True, longest=5.0)
    return 0 if good else 1


sys.exit(main())
