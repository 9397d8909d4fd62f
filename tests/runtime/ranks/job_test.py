# SPDX-License-Identifier: Apache-2.0
"""Signals, silent and stuck ranks, a dead launcher: every job ends in time, with its code and a line
that names the culprit. Usage: job_test.py MPIRUN HELPER"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

MPIRUN, HELPER = sys.argv[1:3]
LIMIT = 4
RANKS = 4
SLACK = 6  # seconds that a busy machine may add


class Job:
    """mpirun with the helper; output in files, because pipes would outlive a killed mpirun."""

    def __init__(self, way, ranks=RANKS):
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([MPIRUN, "-n", str(ranks), HELPER, way, str(LIMIT)],
                                        stdout=self.out, stderr=self.err)
        self.ranks = ranks

    def text(self, file):
        """Not by seek and read: the place in the file is shared with those who write it."""
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    def wait_for(self, pattern, count=1):
        """What `pattern` finds in the output, once it does so `count` times."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = re.findall(pattern, self.text(self.out))
            if len(found) == count:
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{pattern}: not {count} times\n{self.text(self.out)}{self.text(self.err)}")

    def pids(self):
        """Of all ranks, once each has done its first step."""
        found = dict(self.wait_for(r"rank (\d+) pid (\d+)", self.ranks))
        return [int(found[str(rank)]) for rank in range(self.ranks)]

    def wait(self):
        start = time.monotonic()
        code = self.process.wait(timeout=90)
        return code, time.monotonic() - start

    def error_lines(self):
        return [line for line in self.text(self.err).splitlines()
                if re.match(r"\[rank \d+/\d+ \S+\] \w+ error:", line)]


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def expect_one_line(job, pattern):
    lines = job.error_lines()
    expect(len(lines) == 1 and re.search(pattern, lines[0]), f"expected one line like {pattern}: {lines}")


def expect_drained(job, code, what):
    expect(code == 75, f"exit code {code}, expected 75")
    expect(len(re.findall(what, job.text(job.out))) == 1, f"expected '{what}': {job.text(job.out)}")


def a_signal_to_mpirun_drains_all():
    job = Job("run")
    job.pids()
    job.process.send_signal(signal.SIGUSR1)
    code, _ = job.wait()
    expect_drained(job, code, r"drained after 100 steps")


def a_signal_to_one_rank_drains_all():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        job = Job("run")
        os.kill(job.pids()[2], number)
        code, _ = job.wait()
        expect_drained(job, code, r"drained after 100 steps")


def a_second_signal_stops():
    job = Job("run")
    pid = job.pids()[1]
    os.kill(pid, signal.SIGTERM)
    job.wait_for("draining")  # two signals at once may be delivered as one
    os.kill(pid, signal.SIGTERM)
    code, _ = job.wait()
    expect_drained(job, code, r"stopped after \d\d? steps")


def a_stopped_rank_is_named():
    job = Job("run")
    victim = job.pids()[2]
    time.sleep(3)  # a rank tells the others once a second where it is; nothing shows that it did
    os.kill(victim, signal.SIGSTOP)
    code, seconds = job.wait()
    expect(code == 6, f"exit code {code}, expected 6")
    expect_one_line(job, r"^\[rank 0/4 \S+\] comm error: rank 2 \(\S+\) has been silent for \d+ s, "
                         r"last seen at step \d+, (layer 2, op work|op meet) ")
    expect(seconds < LIMIT + SLACK, f"took {seconds:.1f} s, the limit is {LIMIT} s")


def the_lowest_live_rank_reports_rank_zero():
    job = Job("run")
    os.kill(job.pids()[0], signal.SIGSTOP)
    code, _ = job.wait()
    expect(code == 6, f"exit code {code}, expected 6")
    expect_one_line(job, r"^\[rank 1/4 \S+\] comm error: rank 0 \(\S+\) has been silent")


def stuck_rank_3_is_named(way):
    job = Job(way)
    job.pids()
    code, seconds = job.wait()
    expect(code == 6, f"exit code {code}, expected 6")
    expect_one_line(job, r"comm error: rank 3 \(\S+\) has not moved for \d+ s, "
                         r"last seen at step 20, layer 2, op work ")
    expect(seconds < LIMIT + SLACK, f"took {seconds:.1f} s, the limit is {LIMIT} s")


def a_stuck_rank_is_named():
    stuck_rank_3_is_named("stuck")


def a_stuck_group_is_named_while_others_move():
    stuck_rank_3_is_named("stuck-group")


def a_suspended_job_goes_on():
    job = Job("run")
    pids = job.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LIMIT + 2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1)
    expect(job.process.poll() is None, f"the job ended: {job.error_lines()}")
    os.kill(pids[0], signal.SIGUSR1)
    code, _ = job.wait()
    expect_drained(job, code, r"drained after 100 steps")


def ranks_that_are_done_wait_in_peace():
    jobs = [Job("early"), Job("early", ranks=1)]  # the rank that works on has others beside it, or none
    for job in jobs:
        code, _ = job.wait()
        expect(code == 0, f"exit code {code}: {job.text(job.err)}")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def ranks_of_a_killed_mpirun_end():
    job = Job("run")
    pids = job.pids()
    job.process.kill()
    start = time.monotonic()
    while any(alive(pid) for pid in pids):
        expect(time.monotonic() - start < SLACK + 15, "ranks live on without mpirun")
        time.sleep(0.05)
    job.wait()


def main():
    cases = [a_signal_to_mpirun_drains_all, a_signal_to_one_rank_drains_all, a_second_signal_stops,
             a_stopped_rank_is_named, the_lowest_live_rank_reports_rank_zero, a_stuck_rank_is_named,
             a_stuck_group_is_named_while_others_move,
             a_suspended_job_goes_on, ranks_that_are_done_wait_in_peace, ranks_of_a_killed_mpirun_end]
    good = True
    print(f"1..{len(cases)}")
    for case in cases:
        problem = None
        try:
            case()
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            good = False
            print("\n".join("# " + line for line in problem.splitlines()), file=sys.stderr)
        print(f"{'not ok' if problem else 'ok'} - {case.__name__.replace('_', ' ')}", flush=True)
    return 0 if good else 1


sys.exit(main())
