#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results on a disk that fails at every possible call: the run ends with exit code 4 and names a
file below the folder, or succeeds; OUT is whole (the old one or the new one) or absent; a call that
succeeds leaves no parts; after a failure a second run takes up what was committed and completes it.
TAP. failing_disk_test.py LIBRARY WRITE_RESULTS"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT = 2000  # calls a run may make
WHOLE = "whole 8"  # of write_results check


def run(program, verb, out, library=None, **settings):
    env = dict(os.environ)
    if library:
        env.update(LD_PRELOAD=library, FAILING_IO_FOLDER=os.path.dirname(out))
        env.update({"FAILING_IO_" + k: v for k, v in settings.items()})
    return subprocess.run([program, verb, out], env=env, capture_output=True, text=True, check=False)


def judge(program, out, result, before):
    """What is wrong, or None."""
    after = run(program, "check", out).stdout.strip() if os.path.exists(out) else "none"
    if result.returncode == 0:
        if after != WHOLE:
            return f"success, but there is {after or 'no readable file'}"
        left = sorted(set(os.listdir(os.path.dirname(out))) - {"out.h5"})
        return f"success leaves {left}" if left else None
    if result.returncode != 4:
        return f"exit code {result.returncode}: {result.stderr.strip()}"
    if os.path.dirname(out) not in result.stderr:
        return f"names no file: {result.stderr.strip()}"
    if after not in (before, WHOLE):
        return f"{before} became {after or 'unreadable'}"
    return None


def judge_resume(program, out, log, at):
    """After the k-th call has failed: what is wrong with a second run on a good disk, or None."""
    with open(log, encoding="utf-8") as lines:
        committed = any(line.startswith("r ") and "/part-" in line for line in lines.read().split("\n")[:at - 1])
    again = run(program, "write", out)
    if again.returncode != 0:
        return f"resumed: exit code {again.returncode}: {again.stderr.strip()}"
    if committed and not re.match("resumed [58]", again.stdout):
        return f"a part was lost: {again.stdout.strip()}"
    problem = judge(program, out, again, WHOLE)
    return problem and "resumed: " + problem


def every_call(library, program, old, **settings):
    """Fails call 1, 2, … until a run makes fewer calls. Returns (runs that failed, problems)."""
    failed, problems = 0, []
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # no waits for a disk
    with tempfile.TemporaryDirectory(dir=memory) as root:
        first = os.path.join(root, "first.h5")
        run(program, "write", first)
        for at in range(1, LIMIT):
            folder = os.path.join(os.path.realpath(root), str(at))
            out, log = os.path.join(folder, "out.h5"), folder + ".log"
            os.mkdir(folder)
            if old:
                shutil.copy(first, out)
            result = run(program, "write", out, library, AT=str(at), LOG=log, **settings)
            problem = judge(program, out, result, WHOLE if old else "none")
            if result.returncode != 0 and not problem:
                problem = judge_resume(program, out, log, at)
            if problem:
                problems.append(f"call {at}: {problem}")
            failed += result.returncode != 0
            calls = 0
            if os.path.exists(log):
                with open(log, encoding="utf-8") as lines:
                    calls = sum(1 for _ in lines)
            if calls < at:
                return failed, problems
    return failed, problems + [f"more than {LIMIT} calls"]


def main():
    library, program = (os.path.abspath(path) for path in sys.argv[1:3])
    cases = [("an old result and a disk that stays full", True, {"STICKY": "1"}),
             ("one failing sync, rename or close", True, {"OPS": "src", "ERRNO": "EIO"}),
             ("one failing write", False, {"OPS": "wt", "ERRNO": "EIO"})]
    print(f"1..{len(cases)}")
    for number, (name, old, settings) in enumerate(cases, 1):
        failed, problems = every_call(library, program, old, **settings)
        for problem in problems[:10]:
            print(f"# {problem}", file=sys.stderr)
        good = not problems and failed > 0
        print(f"{'ok' if good else 'not ok'} {number} - {name}: {failed} calls fail")


if __name__ == "__main__":
    main()
