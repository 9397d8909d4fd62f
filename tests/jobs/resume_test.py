#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing computed is lost: runs of `generate` are killed, signalled, stopped, starved of their disk,
and the next start completes them to the result of an uninterrupted run. TAP; for its arguments see
tests/jobs/meson.build. --long: more of each, and a million records."""
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from job_runs import (LONG_TOKENS, PATIENCE, RUN_TIME, Run, Workshop, adopt_orphans, alive, expect, read_options,
                      run_cases, wait_until)

RECORDS, TOKENS = 600, 4   # of most runs: two full parts and some more
MANY = 1_000_000


def landing(run, out):
    """What a run is doing, as its files tell."""
    parts = out + ".parts"
    if run.lines("no record is started any more"):
        return "drain"
    if os.path.exists(out):
        return "end"
    if os.path.exists(out + ".tmp"):
        return "assembly"
    if not os.path.exists(parts + "/run.h5"):
        return "start-up"
    try:
        with open(parts + "/lock", encoding="ascii") as lock:
            return "loading" if lock.read().endswith(" 0\n") else "steps"
    except FileNotFoundError:
        return "end"


def kill_once(shop, out, rng):
    """Starts the run and kills it somewhere; where, or None: it was done before."""
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(4))
    before = run.computed()
    victim = rng.choice(["mpirun", 0, 1])
    pid = run.process.pid if victim == "mpirun" else run.ranks(2).get(victim)
    kind = rng.random()
    if kind < 0.2:
        wait_until(lambda: run.computed() >= before + 8 or run.ended(), "some records", RUN_TIME)
        run.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: run.lines("no record is started any more") or run.ended(), "the drain", RUN_TIME, 0.001)
        time.sleep(rng.uniform(0, 0.03))
    elif kind < 0.5:
        wait_until(lambda: os.path.exists(out + ".tmp") or run.ended(), "assembly", RUN_TIME, 0.0005)
        time.sleep(rng.uniform(0, 0.01))
    else:
        time.sleep(rng.uniform(0, 3.0))
    where = landing(run, out)
    killed = run.kill(pid)
    expect(not os.path.exists(out + ".parts/crashes"), "a kill accuses records")
    return where if killed else None


def kills(shop, count, seed):
    rng, landed, done = random.Random(seed), {}, 0
    while done < count:
        out, here = shop.path("out.h5"), 0
        while done < count and not os.path.exists(out):
            where = kill_once(shop, out, rng)
            if where:
                landed[where] = landed.get(where, 0) + 1
                here, done = here + 1, done + 1
        if os.path.exists(out):
            _, computed = shop.compare(out, RECORDS, TOKENS)
        else:
            _, computed = shop.complete(out, RECORDS, TOKENS, ranks=2)
        expect(computed <= RECORDS + here * 256, f"{computed} records computed after {here} kills")
    expect(count < 50 or landed.get("assembly", 0) > 0, f"no kill landed in an assembly: {landed}")
    print(f"# {count} kills landed in:", "; ".join(f"{where}: {n}" for where, n in sorted(landed.items())))


def killed_at_random_the_result_is_the_same(shop):
    kills(shop, 1000 if shop.options.long else 5, seed=1)


def a_signal_to_mpirun_drains(shop):
    out, heartbeat = shop.path("out.h5"), shop.path("heartbeat.json")
    run = shop.start(out, RECORDS, TOKENS, ["--heartbeat", heartbeat], env=shop.slow(20))
    run.wait_computed(40)
    with open(heartbeat, encoding="utf-8") as file:
        expect(json.load(file)["state"] == "running", "the heartbeat of a run")
    run.process.send_signal(signal.SIGUSR1)
    run.expect_code(75).expect_one(r"signal 10 \(.*\): no record is started any more")
    run.expect_one(r"stopped with \d+ of 600 records done; the same command goes on")
    with open(heartbeat, encoding="utf-8") as file:
        beat = json.load(file)
    expect(beat["state"] == "stopped" and 40 <= beat["records_done"] < beat["records_total"] == RECORDS, str(beat))
    restarts, computed = shop.complete(out, RECORDS, TOKENS)
    expect((restarts, computed) == (1, RECORDS), f"{restarts} restarts, {computed} records computed")


def a_signal_to_one_rank_drains(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_computed(20)
    os.kill(run.rank(1), signal.SIGTERM)
    run.expect_code(75).expect_one("a signal to another rank: no record is started any more")
    _, computed = shop.complete(out, RECORDS, TOKENS)
    expect(computed == RECORDS, f"{computed} records computed")


def a_second_signal_and_grace_cut_a_drain_short(shop):
    shop.cut_short(lambda out, more, **others: shop.start(out, 40, LONG_TOKENS, more, **others))


def mpirun_is_told_to_end_and_leaves_a_second(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_computed(40)
    run.process.send_signal(signal.SIGTERM)
    run.wait(PATIENCE)
    expect(run.process.returncode != 0, "mpirun ended well")
    _, computed = shop.complete(out, RECORDS, TOKENS)
    expect(computed <= RECORDS + 2 * 8, f"{computed} records computed: the open part was lost")


def time_that_is_up_ends_a_run(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, ["--max-time", "2"], env=shop.slow(30))
    run.expect_code(75).expect_one("--max-time: no record is started any more")
    shop.complete(out, RECORDS, TOKENS)


def a_record_longer_than_the_time_limit_is_finished(shop):
    """Steps of 200 ms: 8 s for 40 tokens, which no start of 4 s has; each goes on where the last one was stopped."""
    tokens, whole = 40, shop.path("whole.h5")
    one = ["--limit", "1", "--max-seqs", "1"]
    shop.start(whole, 40, tokens, one, ranks=0).expect_code(0)
    out, starts = shop.path("out.h5"), 0
    while not os.path.exists(out):
        starts += 1
        expect(starts <= 6, "six starts of 4 s have not finished a record of 8 s")
        run = shop.start(out, 40, tokens, [*one, "--max-time", "4", "--grace", "2"], env=shop.slow(200))
        expect(run.wait() in (0, 75), f"exit code {run.wait()}:\n{run.errors}")
        if run.wait() == 75:
            run.expect_one("stopped with 0 of 1 records done")
            expect(any(name.startswith("partial-0-") for name in run.parts()), f"nothing kept: {run.parts()}")
    expect(starts > 1, "one start was enough")
    expect(not os.path.exists(out + ".parts"), "OUT.parts is left over")
    shop.same(whole, out)


def a_stopped_rank_is_named(shop):
    out = shop.path("out.h5")
    # After three seconds: a rank tells the others once a second where it is.
    run = shop.start(out, RECORDS, TOKENS, ["--watchdog", "4"], env=shop.slow(30, **{"": 1}, AT=100, ACT="stop"))
    run.wait_computed(20)
    run.expect_code(6)
    run.expect_one(r"^\[rank 0/2 \S+\] comm error: rank 1 \(\S+\) has been silent for \d+ s, "
                   r"last seen at step \d+, (layer \d+, )?op \w+")
    expect(len(run.lines(r"^\[rank \d")) == 1, "more than one message:\n" + run.errors)
    shop.complete(out, RECORDS, TOKENS)


def a_rank_that_fails_ends_all_with_one_message(shop):
    ways = [("error", 1, 6, r"^\[rank 1/2 \S+\] comm error: MPI_Allreduce: .* at step \d+"),
            ("error", 0, 6, r"^\[rank 0/2 \S+\] comm error: MPI_Allreduce: .* at step \d+"),
            ("segv", 1, 139, "exited on signal 11"),
            # mpirun's own line, which it sometimes garbles
            ("abort", 1, 9, r"MPI_ABORT was invoked|show_help\.c")]
    for act, rank, code, message in ways:
        out = shop.path("out.h5")
        run = shop.start(out, RECORDS, TOKENS, env=shop.slow(0, **{"": rank}, AT=100, ACT=act))
        run.expect_code(code).expect_one(message)
        _, computed = shop.complete(out, RECORDS, TOKENS)
        lost = 0 if act == "error" and rank == 0 else 256  # the leader saves its open part
        expect(RECORDS <= computed <= RECORDS + lost, f"{act} of rank {rank}: {computed} records computed")


def a_folder_that_is_removed_is_named(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_computed(10)
    os.rename(out + ".parts", out + ".removed")  # at once: the run may be writing there
    shutil.rmtree(out + ".removed")
    run.expect_code(4).expect_one(r"^\[rank 0/2 \S+\] io error: .*out\.h5\.parts.*No such file")
    shop.complete(out, RECORDS, TOKENS)


def a_folder_that_becomes_read_only_is_named(shop):
    """As another user where this is root, who may write anywhere."""
    nobody = 65534
    out = shop.path("out.h5")
    folder, popen, program = os.path.dirname(out), {}, None
    if os.geteuid() == 0:
        program = shop.path("quadrille")
        shutil.copy(shop.options.program, program)
        shutil.copytree(shop.model, os.path.join(os.path.dirname(program), "model"))
        os.chown(folder, nobody, nobody)
        popen = {"user": nobody, "group": nobody, "cwd": folder}
        popen["model"] = os.path.join(os.path.dirname(program), "model")
    run = shop.start(out, RECORDS, TOKENS, ranks=0, program=program, env={**shop.slow(20), "HOME": folder}, **popen)
    run.wait_computed(10)
    os.chmod(out + ".parts", 0o555)
    run.expect_code(4).expect_one(r"io error: .*out\.h5\.parts.*Permission denied")
    os.chmod(out + ".parts", 0o755)
    shop.complete(out, RECORDS, TOKENS)


def a_second_run_of_the_same_output_is_turned_away(shop):
    out = shop.path("out.h5")
    first = shop.start(out, RECORDS, TOKENS, env=shop.slow(60))
    first.wait_computed(8)
    second = shop.start(out, RECORDS, TOKENS, ranks=0)
    second.expect_code(2).expect_one(rf"out\.h5\.parts is in use by process {first.rank(0)} on \S+")
    expect(not first.ended(), "the first run ended:\n" + first.errors)
    first.process.send_signal(signal.SIGUSR1)
    first.expect_code(75)
    shop.complete(out, RECORDS, TOKENS)


def a_file_system_without_locks_is_named(shop):
    out = shop.path("out.h5")
    env = {"LD_PRELOAD": shop.options.io, "FAILING_IO_FOLDER": os.path.dirname(out), "FAILING_IO_OPS": "l",
           "FAILING_IO_AT": "1", "FAILING_IO_STICKY": "1", "FAILING_IO_ERRNO": "ENOLCK"}
    run = shop.start(out, RECORDS, TOKENS, ranks=0, env=env)
    run.expect_code(4).expect_one(r"out\.h5\.parts/lock: this file system gives no lock .* HDF5_USE_FILE_LOCKING=FALSE")
    expect(os.listdir(os.path.dirname(out)) == [], "something is left")
    shop.start(out, RECORDS, TOKENS, ranks=0, env={**env, "HDF5_USE_FILE_LOCKING": "FALSE"}).expect_code(0)
    shop.compare(out, RECORDS, TOKENS)


def other_settings_are_refused(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_computed(20)
    run.process.send_signal(signal.SIGUSR1)
    run.expect_code(75)
    for more in ((), ("--dry-run",), ("--output-exists", "overwrite")):
        other = shop.start(out, RECORDS, TOKENS, ["--seed", "5", "--limit", "9", *more], ranks=0)
        other.expect_code(2).expect_one(r"\(context was 14, is \d+; limit was 0, is 9; seed was 0, is 5\)|"
                                        r"\(limit was 0, is 9; seed was 0, is 5\)")
    shop.start(out, RECORDS, TOKENS, ["--dry-run"], ranks=0).expect_code(0)
    shop.complete(out, RECORDS, TOKENS, ranks=4)  # the number of ranks is no setting


def samples_with_everything_on_are_the_same(shop):
    """Text, a drafter, two prompt files, samples at a temperature, log-probabilities."""
    models, prompts = shop.options.models, []
    for name in ("a", "b"):
        lines, packed = shop.path(name + ".txt"), shop.path(name + ".h5")
        with open(lines, "w", encoding="utf-8") as file:
            file.writelines(f"{word} {name}\n" for word in ("The king", "int main(", "Blessed are"))
        subprocess.run([shop.options.program, "pack", lines, "--out", packed], check=True, stdout=subprocess.DEVNULL)
        prompts.append(packed)

    def start(out, env=None):
        return Run([shop.options.mpirun, "-n", "2", shop.options.program, "generate",
                    "--target", models + "/demo-full-4bpw", "--draft", models + "/demo-dflash2", "--prompts", *prompts,
                    "--n", "2", "--temperature", "0.8", "--logprobs", "2", "--max-new-tokens", "8", "--max-seqs", "2",
                    "--out", out], env or {}, out)
    whole, out = shop.path("whole.h5"), shop.path("out.h5")
    start(whole).expect_code(0)
    run = start(out, shop.slow(100))
    run.wait_computed(3)
    run.process.send_signal(signal.SIGUSR1)
    run.expect_code(75)
    again = start(out).expect_code(0)
    again.expect_one("going on with .*: [0-9]+ of 12 records are done")
    said = again.text(again.stdout)
    expect("of the file: records, tokens written, accept length; of this start" in said, said)
    expect(shop.same(whole, out) == (1, 12), "restarts and records computed")
    told = json.loads(subprocess.run([shop.options.program, "inspect", "--json", out], capture_output=True, check=True).stdout)
    facts = told["provenance"]
    expect(facts["all_starts_tokens_written"] == told["tokens"] > facts["last_start_tokens_written"], f"tokens of {facts}")
    expect(facts["all_starts_seconds"] > facts["last_start_seconds"] and facts["all_starts_passes"] > facts["last_start_passes"],
           f"figures of {facts}")
    expect("all starts     2 in " in said, said)


def a_run_can_be_looked_at(shop):
    """inspect and unpack read what is done, under the name of the output too, and change nothing."""
    finished, out = shop.reference(RECORDS, TOKENS), shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_for(lambda: glob.glob(out + ".parts/part-*.h5"), "a part")

    def told(*arguments):
        return subprocess.run([shop.options.program, *arguments], capture_output=True, text=True, check=False)
    seen = [told("inspect", "--json", out), told("inspect", finished, out), told("unpack", out + ".parts"),
            told("unpack", finished, out)]
    for done in seen:
        expect(done.returncode == 0, done.stderr)
    facts = json.loads(seen[0].stdout)
    expect(facts["kind"] == "run" and not facts["complete"] and facts["records_of_run"] == RECORDS, str(facts))
    expect(0 < facts["records"] < RECORDS and facts["records"] % 256 == 0, str(facts))
    expect(re.search(r"out.h5.parts: \d+ of 600 records done", seen[1].stdout), seen[1].stdout)
    expect(re.search(r"^  .*out.h5.parts +\d+ +600 +0", seen[1].stdout, re.MULTILINE), "a table of several outputs")
    records = [json.loads(line) for line in seen[2].stdout.splitlines()]
    whole = [json.loads(line) for line in told("unpack", finished).stdout.splitlines()]
    expect(len(records) >= facts["records"] and all(record == whole[record["index"]] for record in records),
           "what is done is what the finished file has")
    expect(f"{len(records)} of 600 records done" in seen[2].stderr, seen[2].stderr)
    files = {json.loads(line)["file"] for line in seen[3].stdout.splitlines()}
    expect(files == {finished, out + ".parts"}, str(files))
    expect(told("unpack", out, "--format", "openai").returncode == 2, "--format openai needs the whole run")
    run.expect_code(0)
    shop.compare(out, RECORDS, TOKENS)


def a_rank_without_its_launcher_writes_nothing(shop):
    out = shop.path("out.h5")
    run = shop.start(out, RECORDS, TOKENS, env=shop.slow(20))
    run.wait_computed(200)
    pid = run.rank(0)
    os.kill(pid, signal.SIGSTOP)
    run.process.kill()
    run.wait(PATIENCE)
    time.sleep(0.1)
    expect(alive(pid), "the rank was to outlive its launcher")
    before = run.parts()
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not alive(pid), "the rank ends")
    expect(run.parts() == before, f"{before} became {run.parts()}")
    shop.complete(out, RECORDS, TOKENS)


def a_failing_disk_loses_nothing(shop):
    """Every sync, rename, close and truncate of a run when --long, else a few; some writes."""
    log, first = shop.path("log"), shop.path("out.h5")

    def env(out, **settings):
        settings = {"FOLDER": os.path.dirname(out), **settings}
        return {"LD_PRELOAD": shop.options.io, **{"FAILING_IO_" + k: v for k, v in settings.items()}}
    shop.start(first, RECORDS, TOKENS, ranks=0, env=env(first, LOG=log)).expect_code(0)
    with open(log, encoding="utf-8") as lines:
        kinds = [line[0] for line in lines]
    for ops, step in (("tsrc", 1 if shop.options.long else 12), ("w", 97 if shop.options.long else 700)):
        calls = sum(kind in ops for kind in kinds)
        for at in range(1, calls + 1, step):
            out = shop.path("out.h5")
            run = shop.start(out, RECORDS, TOKENS, ranks=2 if at % 3 == 1 else 0,
                             env=env(out, OPS=ops, AT=str(at), ERRNO="EIO" if at % 2 else "ENOSPC"))
            if run.wait() == 0:  # a close that fails after all is read, say
                shop.compare(out, RECORDS, TOKENS)
                continue
            run.expect_code(4).expect_one(r"io error: .*" + os.path.dirname(out))
            if os.path.exists(out):
                shop.compare(out, RECORDS, TOKENS)
            else:
                shop.complete(out, RECORDS, TOKENS)


def a_million_records_take_bounded_memory(shop):
    def peak(out, code, more=()):
        run = shop.start(out, MANY, 1, ["--max-seqs", "256", "--max-context", "12", *more], ranks=0)
        run.expect_code(code, seconds=3000)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    few = peak(shop.path("out.h5"), 0, ["--limit", "10000"])
    out = shop.path("out.h5")
    peak(out, 75, ["--max-time", "60", "--grace", "5"])
    many = peak(out, 0)
    print(f"# peak memory: {few / 1024:.0f} MiB for 10,000 records, {many / 1024:.0f} MiB for a million")
    expect(many - few < 120 * 1024, "more than 120 bytes a record")


def main():
    options = read_options()
    cases = [killed_at_random_the_result_is_the_same, a_failing_disk_loses_nothing]
    if options.long:
        cases += [a_million_records_take_bounded_memory]
    else:
        cases += [a_signal_to_mpirun_drains, a_signal_to_one_rank_drains, a_second_signal_and_grace_cut_a_drain_short,
                  mpirun_is_told_to_end_and_leaves_a_second, time_that_is_up_ends_a_run,
                  a_record_longer_than_the_time_limit_is_finished, a_stopped_rank_is_named,
                  a_rank_that_fails_ends_all_with_one_message, a_folder_that_is_removed_is_named,
                  a_folder_that_becomes_read_only_is_named, a_second_run_of_the_same_output_is_turned_away,
                  a_file_system_without_locks_is_named, other_settings_are_refused,
                  samples_with_everything_on_are_the_same, a_run_can_be_looked_at, a_rank_without_its_launcher_writes_nothing]
    cases = [case for case in cases if options.only in case.__name__]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="resume-test-") as folder:
        os.chmod(folder, 0o755)
        return run_cases(cases, Workshop(options, folder), at_once=1 if options.long else 2)


if __name__ == "__main__":
    sys.exit(main())
