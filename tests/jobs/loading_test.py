# SPDX-License-Identifier: Apache-2.0
"""Weights from a disk that gives short reads, fails, hangs or loses the end of a file.
Usage: loading_test.py MPIRUN QUADRILLE SAME_RESULTS FAILING_IO DATA_FOLDER"""
import os
import re
import signal
import sys
import tempfile
import time

from job_runs import RESUMABLE, Run, expect, run_cases, wait_until

MPIRUN, QUADRILLE, COMPARE, SHIM, DATA = map(os.path.abspath, sys.argv[1:6])
MODEL = os.path.join(DATA, "models", "demo-full-4bpw")
WEIGHTS = os.path.join(MODEL, "model.safetensors")
READ = 1_000_000  # bytes: only weights are read in such pieces


def start(scratch, name, ranks=1, **settings):
    out = os.path.join(scratch, name + ".h5")
    env = {"FAILING_IO_" + key: str(value) for key, value in settings.items()}
    if settings:
        env.update(LD_PRELOAD=SHIM, FAILING_IO_FOLDER=MODEL)
    command = [QUADRILLE, "generate", "--target", MODEL, "--prompt", "The river", "--max-new-tokens", "8", "--out", out]
    if ranks > 1:
        command = [MPIRUN, "-n", str(ranks), *command]
    return Run(command, env, out)


def fails(scratch, name, pattern, ranks=1, **settings):
    run = start(scratch, name, ranks, OPS="p", LEAST=READ, AT=1, **settings)
    run.expect_code(4, seconds=30)
    found = run.lines(pattern)
    expect(len(found) == 1, f"expected one line like {pattern}:\n{run.errors}")
    expect(not os.path.exists(run.out), "there is an output")


def short_reads_change_nothing(scratch):
    whole, short = start(scratch, "whole"), start(scratch, "short", SHORT=99_991)
    for run in (whole, short):
        run.expect_code(0)
    Run([COMPARE, whole.out, short.out], {}, "").expect_code(0)


def a_read_error_is_named(scratch):
    fails(scratch, "error", re.escape(WEIGHTS) + r": cannot read at byte \d+: Input/output error \(tensor .*\)", ERRNO="EIO")


def on_one_of_two_ranks(scratch):
    fails(scratch, "rank", r"cannot read at byte \d+: Input/output error", ranks=2, ERRNO="EIO", RANK=1)


def a_file_that_shrinks_is_named(scratch):
    size = os.path.getsize(WEIGHTS)
    fails(scratch, "end", rf"{re.escape(WEIGHTS)}: expected {size} bytes, .*, found its end at \d+", ERRNO="END")


def a_signal_ends_a_load_that_hangs(scratch):
    log = os.path.join(scratch, "reads")
    run = start(scratch, "hang", OPS="p", LEAST=READ, AT=1, STICKY=1, ERRNO="HANG", LOG=log)
    wait_until(lambda: os.path.exists(log), "a read of weights")
    begin = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    run.expect_code(RESUMABLE)
    expect(time.monotonic() - begin < 2, f"took {time.monotonic() - begin:.1f} s")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        return run_cases([short_reads_change_nothing, a_read_error_is_named, on_one_of_two_ranks,
                          a_file_that_shrinks_is_named, a_signal_ends_a_load_that_hangs], scratch, 2)


sys.exit(main())
