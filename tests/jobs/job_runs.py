# SPDX-License-Identifier: Apache-2.0
"""Runs of the program, started, watched, ended in the middle, compared; cases told as TAP."""
import argparse
import concurrent.futures
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

PATIENCE = 60  # seconds for anything that should happen at once
RUN_TIME = 300  # seconds for a run to get somewhere, however busy the machine
RESUMABLE = 75
LONG_TOKENS = 100  # of records that take a while


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def adopt_orphans():
    """A stopped process whose parent dies is ended by SIGHUP, unless its next parent is of the same session."""
    set_child_subreaper = 36
    expect(ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0, "prctl failed")


def wait_until(condition, what, seconds=PATIENCE, pause=0.01):
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(pause)


class Run:
    """One start of the program; its output goes to files, because pipes would outlive a killed mpirun."""

    def __init__(self, command, env, out, **popen):
        self.out, self.start = out, time.monotonic()
        self.stdout, self.stderr = (tempfile.TemporaryFile("w+") for _ in range(2))
        self.process = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                                        stdout=self.stdout, stderr=self.stderr, **popen)

    def text(self, file):
        """Not by seek and read: the place in the file is shared with those who write it."""
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    @property
    def errors(self):
        return self.text(self.stderr)

    def lines(self, pattern):
        return [line for line in self.errors.splitlines() if re.search(pattern, line)]

    def wait(self, seconds=RUN_TIME):
        self.process.wait(timeout=seconds)
        return self.process.returncode

    def wait_or_tell(self, seconds):
        """A process that outlives its end is described: those of its session that are left, and where they are."""
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            left = subprocess.run(["ps", "-eLo", "pid,ppid,tid,stat,wchan:30,comm"], capture_output=True, text=True,
                                  check=False).stdout
            lines = [line for line in left.splitlines() if "quadrille" in line or "mpirun" in line]
            raise AssertionError(f"mpirun {self.process.pid} lives on after {seconds} s:\n{self.errors}\n"
                                 + "\n".join(lines)) from None

    def ended(self):
        return self.process.poll() is not None

    def expect_code(self, code, seconds=None):
        """A run that was asked to end does so at once."""
        found = self.wait(seconds or (PATIENCE if code == RESUMABLE else RUN_TIME))
        expect(found == code, f"exit code {found}, expected {code}:\n{self.errors}")
        return self

    def expect_one(self, pattern):
        found = self.lines(pattern)
        expect(len(found) == 1, f"{len(found)} lines like '{pattern}', expected one:\n{self.errors}")

    def ranks(self, count):
        """Process ids by rank, once all are there."""
        found = {}

        def look():
            for entry in os.listdir("/proc"):
                if not entry.isdigit():
                    continue
                try:
                    with open(f"/proc/{entry}/stat", encoding="utf-8") as stat:
                        parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                    if parent != self.process.pid:
                        continue
                    with open(f"/proc/{entry}/environ", encoding="utf-8", errors="replace") as environ:
                        rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environ.read())
                    if rank:
                        found[int(rank.group(1))] = int(entry)
                except OSError:
                    pass
            return len(found) == count or self.ended()
        wait_until(look, "the ranks start")
        return found

    def rank(self, which, count=2):
        """Its process id."""
        found = self.ranks(count)
        expect(which in found, f"ended early:\n{self.errors}")
        return found[which]

    def kill(self, pid):
        """False: it was done before, and well, or had stopped."""
        try:
            if not self.ended():
                os.kill(pid, signal.SIGKILL)
                self.wait_or_tell(PATIENCE)
                return True
        except ProcessLookupError:
            pass  # a rank ends before mpirun does
        expect(self.wait() in (0, RESUMABLE), f"exit code {self.wait()}:\n{self.errors}")
        return False

    def computed_by_group(self):
        """Records computed by all starts, a number a group, as the locks in OUT.parts tell."""
        try:
            counts = []
            for name in os.listdir(self.out + ".parts"):
                if name == "lock" or name.startswith("lock-"):
                    with open(os.path.join(self.out + ".parts", name), encoding="utf-8") as lock:
                        counts.append(sum(int(line.split()[2]) for line in lock.read().splitlines()))
            return counts
        except (OSError, IndexError, ValueError):
            return []

    def computed(self):
        return sum(self.computed_by_group())

    def parts(self):
        """What is in OUT.parts for good."""
        return sorted(name for name in os.listdir(self.out + ".parts") if not name.endswith(".tmp"))

    def wait_for(self, condition, what):
        wait_until(lambda: condition() or self.ended(), what, RUN_TIME)
        expect(not self.ended(), f"ended early:\n{self.errors}")

    def wait_until_running(self, heartbeat):
        """A step is done, as the file of --heartbeat tells."""
        def running():
            try:
                with open(heartbeat, encoding="utf-8") as file:
                    return json.load(file)["state"] == "running"
            except OSError:
                return False
        self.wait_for(running, "the first step")

    def wait_computed(self, records):
        self.wait_for(lambda: self.computed() >= records, f"{records} records")


class Workshop:
    """Where the program, its models and the runs' files are."""

    def __init__(self, options, folder):
        self.options, self.folder, self.count = options, folder, 0
        self.model = os.path.join(options.models, "toy-vocab768")
        self.made, self.lock = {}, threading.RLock()

    def path(self, name):
        with self.lock:
            self.count += 1
            folder = os.path.join(self.folder, str(self.count))
        os.mkdir(folder)
        return os.path.join(folder, name)

    def once(self, key, make):
        with self.lock:
            if key not in self.made:
                self.made[key] = make()
            return self.made[key]

    def prompts(self, records, longest=10):
        def make():
            rng = random.Random(records)
            lines, packed = self.path("lines.jsonl"), self.path("prompts.h5")
            with open(lines, "w", encoding="utf-8") as file:
                for _ in range(records):
                    tokens = [rng.randrange(768) for _ in range(rng.randint(1, longest))]
                    file.write(json.dumps({"tokens": tokens}) + "\n")
            subprocess.run([self.options.program, "pack", lines, "--out", packed], check=True, stdout=subprocess.DEVNULL)
            return packed
        return self.once(("prompts", records, longest), make)

    def start(self, out, records, tokens, more=(), ranks=2, env=None, program=None, model=None, **popen):
        command = [program or self.options.program, "generate", "--target", model or self.model, "--prompts",
                   self.prompts(records), "--out", out, "--max-new-tokens", str(tokens), "--ignore-eos", *more]
        if "--max-seqs" not in more:
            command += ["--max-seqs", "8"]
        if ranks:
            command = [self.options.mpirun, "-n", str(ranks)] + command
        return Run(command, env or {}, out, **popen)

    def slow(self, milliseconds, **act):
        """Environment of a run whose steps take longer, or of which a rank comes to grief. The test
        must find its moment however late the machine runs it: what is left of the run then counts,
        600 records of 4 tokens being 300 steps of 8 records."""
        env = {"LD_PRELOAD": self.options.rank, "FAILING_RANK_MS": str(milliseconds)}
        return {**env, **{"FAILING_RANK" + ("_" + k if k else ""): str(v) for k, v in act.items()}}

    def cut_short(self, start):
        """Runs whose drain would take half a minute: a second signal and little grace end it at once.
        `start`(out, more, **others) starts one of 40 records."""
        for more, signals in ((["--grace", "2m"], 2), (["--grace", "1"], 1)):
            out, heartbeat = self.path("out.h5"), self.path("heartbeat.json")
            run = start(out, [*more, "--heartbeat", heartbeat], env=self.slow(300))
            run.wait_until_running(heartbeat)
            victim = run.rank(1)
            os.kill(victim, signal.SIGINT)
            run.wait_for(lambda: run.lines("no record is started any more"), "the drain")
            for _ in range(signals - 1):
                os.kill(victim, signal.SIGINT)
            begin = time.monotonic()
            run.expect_code(RESUMABLE).expect_one("stopped with 0 of 40 records done")
            expect(time.monotonic() - begin < 15, "the running records were waited for")
            self.complete(out, 40, LONG_TOKENS)

    def reference(self, records, tokens):
        def make():
            out = self.path("out.h5")
            self.start(out, records, tokens, ranks=0).expect_code(0)
            return out
        return self.once(("reference", records, tokens), make)

    def compare(self, out, records, tokens):
        """As same, with an uninterrupted run."""
        return self.same(self.reference(records, tokens), out)

    def same(self, whole, out):
        """(restarts, records computed) of a result that must equal an uninterrupted one."""
        done = subprocess.run([self.options.compare, whole, out], capture_output=True, text=True, check=False)
        found = re.fullmatch(r"equal, restarts (\d+), records_computed (\d+)\n", done.stdout)
        expect(found, f"the result is not that of an uninterrupted run: {done.stdout}{done.stderr}")
        return int(found.group(1)), int(found.group(2))

    def complete(self, out, records, tokens, ranks=0):
        """Goes on with an interrupted run to its end; returns as compare."""
        self.start(out, records, tokens, ranks=ranks).expect_code(0)
        left = sorted(set(os.listdir(os.path.dirname(out))) - {os.path.basename(out)})
        expect(not left, f"left over: {left}")
        return self.compare(out, records, tokens)


def run_case(case, workshop):
    """What is wrong, or None; seconds."""
    start = time.monotonic()
    try:
        case(workshop)
        return None, time.monotonic() - start
    except AssertionError as error:
        return str(error), time.monotonic() - start
    except Exception:  # whatever it is, the other cases go on
        return traceback.format_exc(), time.monotonic() - start


def read_options():
    """The command line of a test of runs: the programs and models it needs, which cases."""
    parser = argparse.ArgumentParser()
    for name in ("--program", "--compare", "--mpirun", "--models", "--rank", "--io"):
        parser.add_argument(name, required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    for name in ("program", "compare", "models", "rank", "io"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    return options


def run_cases(cases, workshop, at_once):
    """TAP, one point a case. Runs spend most of their time waiting."""
    print(f"1..{len(cases)}", flush=True)
    good = True
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for case, result in [(case, pool.submit(run_case, case, workshop)) for case in cases]:
            problem, seconds = result.result()
            good = good and not problem
            for line in (problem or "").splitlines():
                print("# " + line, file=sys.stderr)  # what meson shows of a test that failed
            print(f"{'not ok' if problem else 'ok'} - {case.__name__.replace('_', ' ')} ({seconds:.1f} s)", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit("run resume_test.py")
