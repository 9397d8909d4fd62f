# SPDX-License-Identifier: Apache-2.0
"""Signals and --max-time before the first step end a run at once, resumable; the watchdog ends one that hangs.
Usage: early_signal_test.py MPIRUN QUADRILLE DATA_FOLDER"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from job_runs import RESUMABLE, expect, run_cases

# Whoever runs the tests may ignore it (nohup), which children would inherit.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
MPIRUN, QUADRILLE, DATA = map(os.path.abspath, sys.argv[1:4])
SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"]
LIMIT = 2  # seconds from the signal to the end


class Start:
    """A run that stays in its start-up: a file of its model is a pipe into which nobody writes."""

    def __init__(self, scratch, ranks=0, more=(), before=()):
        folder = tempfile.mkdtemp(dir=scratch)
        model = os.path.join(folder, "model")
        shutil.copytree(os.path.join(DATA, "models", "demo-full-4bpw"), model)
        os.remove(os.path.join(model, "model.safetensors"))
        os.mkfifo(os.path.join(model, "model.safetensors"))
        command = [QUADRILLE, "generate", "--target", model, "--prompt", "The river", "--out",
                   os.path.join(folder, "out.h5"), *more]
        if ranks:
            command = [MPIRUN, "-n", str(ranks), *command]
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*before, *command], stdout=subprocess.DEVNULL, stderr=self.err)

    def rank(self, which, ranks):
        """Its process id, once all ranks are there."""
        while True:
            time.sleep(0.05)
            expect(self.process.poll() is None, "ended early: " + self.errors())
            found = {}
            for entry in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{entry}/stat", encoding="utf-8") as stat:
                        parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                    with open(f"/proc/{entry}/environ", encoding="utf-8", errors="replace") as environ:
                        rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environ.read())
                except OSError:
                    continue
                if parent == self.process.pid and rank:
                    found[int(rank.group(1))] = int(entry)
            if len(found) == ranks:
                return found[which]

    def errors(self):
        return os.pread(self.err.fileno(), 1 << 20, 0).decode(errors="replace")

    def expect_end(self, why):
        start = time.monotonic()
        code = self.process.wait(timeout=60)
        seconds = time.monotonic() - start
        expect(code == RESUMABLE, f"exit code {code}, expected {RESUMABLE}: {self.errors()}")
        lines = re.findall(why + r": stopped, the same command goes on", self.errors())
        expect(len(lines) >= 1, self.errors())
        expect(seconds < LIMIT, f"took {seconds:.1f} s")


def alone(name, delay):
    def case(scratch):
        run = Start(scratch)
        time.sleep(delay)
        run.process.send_signal(getattr(signal, name))
        run.expect_end(rf"signal {int(getattr(signal, name))} \(.*\)")
    case.__name__ = f"{name} {delay} s after the start"
    return case


def a_signal_to_one_rank_ends_all(scratch):
    run = Start(scratch, ranks=2)
    pid = run.rank(1, 2)
    time.sleep(1.5)  # into the phases after MPI's start
    os.kill(pid, signal.SIGTERM)
    run.expect_end(r"signal 15 \(Terminated\)")


def a_signal_to_mpirun_ends_all(scratch):
    run = Start(scratch, ranks=2)
    run.rank(0, 2)
    time.sleep(1.5)
    run.process.send_signal(signal.SIGUSR1)
    run.expect_end(r"signal 10 \(.*\)")


def time_counts_while_loading(scratch):
    start = time.monotonic()
    run = Start(scratch, more=["--max-time", "3", "--grace", "1"])
    run.process.wait(timeout=60)
    run.expect_end("--max-time")
    expect(time.monotonic() - start < 2 + LIMIT, "the time was not kept")


def a_start_up_that_hangs_is_named(scratch):
    for ranks in (0, 2):
        start = time.monotonic()
        run = Start(scratch, ranks=ranks, more=["--watchdog", "4"])
        code = run.process.wait(timeout=60)
        expect(code == 6, f"exit code {code}, expected 6: {run.errors()}")
        expect(time.monotonic() - start < 12, "it took too long")
        lines = re.findall(r"rank 0 \(.*\) has not moved for \d+ s, at start-up, op checkpoint, "
                           r".*/model/model\.safetensors", run.errors())
        expect(len(lines) == 1, run.errors())


def a_hangup_that_nohup_ignores_is_ignored(scratch):
    run = Start(scratch, before=["nohup"])
    time.sleep(1)
    run.process.send_signal(signal.SIGHUP)
    time.sleep(1)
    expect(run.process.poll() is None, "ended: " + run.errors())
    run.process.send_signal(signal.SIGTERM)
    run.expect_end(r"signal 15 \(Terminated\)")


def main():
    cases = [alone(name, delay) for delay in (0.1, 1) for name in SIGNALS]
    cases += [a_signal_to_one_rank_ends_all, a_signal_to_mpirun_ends_all, time_counts_while_loading,
              a_start_up_that_hangs_is_named,
              a_hangup_that_nohup_ignores_is_ignored]
    with tempfile.TemporaryDirectory() as scratch:
        return run_cases(cases, scratch, 1)


sys.exit(main())
