#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A record that ends the process of `generate`: the next start runs the records that ran then one by one, after
the others; the one that does it again is skipped with an error, the others come out as ever. What is killed by
another process accuses no record. TAP; for its arguments see tests/jobs/meson.build."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from job_runs import Run, Workshop, adopt_orphans, expect, read_options, run_cases

SHORT, LONG = 4, 60  # tokens of a record: the long ones run together, and each for seconds
SLOW = 40            # milliseconds a step


class Case:
    """Eight records, four slots: 0 to 3 are short, 4 to 7 run together for long."""

    def __init__(self, shop, ranks, tp=2):
        self.shop, self.ranks, self.tp = shop, ranks, tp
        self.out, self.trigger = shop.path("out.h5"), shop.path("now")
        self.prompts = shop.path("prompts.jsonl")
        with open(self.prompts, "w", encoding="utf-8") as file:
            for record in range(8):
                file.write(json.dumps({"tokens": [record + 5, 7, 9],
                                       "max_new_tokens": SHORT if record < 4 else LONG}) + "\n")

    def start(self, out=None, rank=None, act="segv", slow=True, more=()):
        shop, env = self.shop, {}
        if slow:
            env = shop.slow(SLOW)
        if rank is not None:
            env = shop.slow(SLOW, **{"": rank}, ACT=act, FILE=self.trigger)
        command = [shop.options.mpirun, "-n", str(self.ranks), shop.options.program, "generate", "--target", shop.model,
                   "--prompts", self.prompts, "--out", out or self.out, "--ignore-eos", "--max-seqs", "4",
                   "--tp", str(self.tp), *more]
        return Run(command, env, out or self.out)

    def crash(self, rank, act, computed, code):
        """A start that ends itself once so many records are done, by all starts."""
        run = self.start(rank=rank, act=act)
        run.wait_computed(computed)
        time.sleep(10 * SLOW / 1000)  # the next ones run
        with open(self.trigger, "w", encoding="ascii"):
            pass
        expect(run.wait() == code, f"exit code {run.wait()}, expected {code}:\n{run.errors}")
        os.unlink(self.trigger)
        return run

    def log(self):
        try:
            with open(self.out + ".parts/crashes", encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def lines(self, out=None):
        done = subprocess.run([self.shop.options.program, "unpack", out or self.out], capture_output=True, text=True,
                              check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def expect_others_as_ever(self, skipped):
        whole = self.shop.path("whole.h5")
        self.start(whole, slow=False).expect_code(0)
        for record, (mine, other) in enumerate(zip(self.lines(), self.lines(whole), strict=True)):
            if record not in skipped:
                expect(mine == other, f"record {record}: {mine} is not {other}")


def ends_twice(shop, ranks, rank, act, code, cause):
    case = Case(shop, ranks)
    case.crash(rank, act, 4, code)
    first = case.log()
    expect(re.fullmatch(r"0\tsignal " + cause + r"\t0/4/0 0/5/0 0/6/0 0/7/0\n", first), f"the log: {first!r}")
    lost = 0 if any(name.startswith("part-") for name in os.listdir(case.out + ".parts")) else 4
    run = case.crash(rank, act, 4 + lost + 3, code)  # 4, 5, 6 have run alone, 7 runs
    run.expect_one(r"4 records ran when an earlier start ended by itself \(see .*out\.h5\.parts/crashes\): "
                   r"each of them runs alone, after the others")
    expect(case.log() == first + re.sub(r"^0(\t.*\t).*\n", r"1\g<1>0/7/0\n", first), f"the log: {case.log()!r}")
    last = case.start(slow=False)
    last.expect_code(0)
    last.expect_one("1 records ran when two earlier starts ended by themselves: they are skipped")
    record = case.lines()[7]
    expect(record["status"] == "error" and record["finish_reason"] == "error", str(record))
    expect(re.fullmatch(f"skipped: 2 starts of this run ended while they ran it: signal {cause}; signal {cause}",
                        record["error"]), record["error"])
    expect(os.listdir(os.path.dirname(case.out)) == ["out.h5"], "something is left")
    case.expect_others_as_ever({7})


def a_record_that_ends_the_leader_twice_is_skipped(shop):
    ends_twice(shop, 2, 0, "segv", 139, r"11 \(Segmentation fault\)")


def a_record_that_ends_another_rank_twice_is_skipped(shop):
    ends_twice(shop, 2, 1, "abrt", 134, r"6 \(Aborted\)")


def only_the_records_of_its_group_are_suspects(shop):
    """Two groups of two ranks: those of the other group ran too, elsewhere."""
    case = Case(shop, 4)
    case.crash(2, "bus", 4, 135)
    found = re.fullmatch(r"0\tsignal 7 \(Bus error\)\t([0-9/ ]+)\n", case.log())
    expect(found, f"the log: {case.log()!r}")
    suspects = found.group(1).split()
    expect(1 <= len(suspects) <= 3, f"suspects: {suspects}")
    last = case.start(slow=False)
    last.expect_code(0)
    last.expect_one(f"{len(suspects)} records ran when an earlier start ended by itself")
    case.expect_others_as_ever(set())


def what_is_killed_accuses_no_record(shop):
    case = Case(shop, 2)
    for count, (victim, name) in enumerate([(0, signal.SIGKILL), (1, signal.SIGSEGV), (0, signal.SIGABRT)]):
        run = case.start()
        run.wait_computed(min(4 + count, 4))
        os.kill(run.rank(victim), name)
        expect(run.wait() != 0, "a run whose rank is killed ends well")
        expect(case.log() == "", f"the log: {case.log()!r}")
    case.start(slow=False).expect_code(0)
    case.expect_others_as_ever(set())


def a_crash_before_any_part_binds_nobody(shop):
    """The same run remembers it; one with other settings begins afresh."""
    case = Case(shop, 2)
    run = case.start(rank=0, more=["--max-new-tokens", "9"])
    run.wait_for(lambda: os.path.exists(case.out + ".parts/run.h5"), "the run is claimed")
    with open(case.trigger, "w", encoding="ascii"):
        pass
    expect(run.wait() == 139, f"exit code {run.wait()}:\n{run.errors}")
    os.unlink(case.trigger)
    for name in os.listdir(case.out + ".parts"):
        expect(not name.startswith("part-"), "a part is there already")
    for text in ("", "0\tsignal 11\t0/4/0\n", "broken\n0\n1\tx\n2\tx\t9/9/9 -1/0/0 0/1 0/0/0/0\n"):
        with open(case.out + ".parts/crashes", "w", encoding="ascii") as file:
            file.write(text)
        shutil.copytree(case.out + ".parts", case.out + ".kept")
        last = case.start(slow=False, more=["--seed", "5"])
        last.expect_code(0)
        expect(not last.lines("ended by itself"), last.errors)
        case.expect_others_as_ever(set())
        os.unlink(case.out)
        os.rename(case.out + ".kept", case.out + ".parts")


def main():
    options = read_options()
    cases = [a_record_that_ends_the_leader_twice_is_skipped, a_record_that_ends_another_rank_twice_is_skipped,
             only_the_records_of_its_group_are_suspects, what_is_killed_accuses_no_record,
             a_crash_before_any_part_binds_nobody]
    cases = [case for case in cases if options.only in case.__name__]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="crash-test-") as folder:
        return run_cases(cases, Workshop(options, folder), at_once=2)


if __name__ == "__main__":
    sys.exit(main())
