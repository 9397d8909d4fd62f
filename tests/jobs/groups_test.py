#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several groups of ranks in one job: the file is that of one group, whatever dies, stops or fails in
whichever group, and however many groups a later start has. TAP; for its arguments see
tests/jobs/meson.build. --long: more kills."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from job_runs import (LONG_TOKENS, PATIENCE, RUN_TIME, Run, Workshop, adopt_orphans, alive, expect, read_options,
                      run_cases, wait_until)

RECORDS, TOKENS = 600, 4
LAYOUTS = [(2, 1), (4, 2), (3, 1)]  # ranks, ranks of a group


def groups(shop, out, ranks=2, tp=1, more=(), records=RECORDS, tokens=TOKENS, **start):
    return shop.start(out, records, tokens, ["--tp", str(tp), *more], ranks=ranks, **start)


def the_file_is_that_of_one_group(shop):
    for ranks, tp in LAYOUTS:
        out = shop.path("out.h5")
        run = groups(shop, out, ranks, tp)
        run.expect_code(0)
        expect(f"means of {ranks // tp} groups" in run.text(run.stdout), "the summary counts the groups")
        expect("600 ok, 0 with an error" in run.text(run.stdout), "the summary is of all groups")
        expect(re.search(r"3287 read, 2400 written", run.text(run.stdout)), "tokens of all groups")
        found = shop.compare(out, RECORDS, TOKENS)
        expect(found == (0, RECORDS), f"restarts, records computed: {found}")
        expect(os.listdir(os.path.dirname(out)) == ["out.h5"], "something is left")


def every_group_has_its_part(shop):
    """Also with fewer records than groups, and with none."""
    out = shop.path("out.h5")
    run = groups(shop, out, 4, 1, env=shop.slow(15))
    run.wait_for(lambda: sum(count > 0 for count in run.computed_by_group()) == 4, "a record of each group")
    run.process.send_signal(signal.SIGUSR1)
    run.expect_code(75)
    found = {name.split("-")[1] for name in os.listdir(out + ".parts") if name.startswith("part-")}
    expect(found == {"0", "1", "2", "3"}, f"parts of groups {sorted(found)}")
    shop.complete(out, RECORDS, TOKENS)
    for records in (1, 3):
        out = shop.path("out.h5")
        groups(shop, out, 4, 1, records=records).expect_code(0)
        shop.compare(out, records, TOKENS)
    groups(shop, out, 4, 1, ["--dry-run", "--output-exists", "overwrite"]).expect_code(0)


def samples_with_everything_on_are_the_same(shop):
    """Text, a drafter, two prompt files, samples at a temperature, log-probabilities, a bad record."""
    models, prompts = shop.options.models, []
    for name in ("a", "b"):
        lines, packed = shop.path(name + ".jsonl"), shop.path(name + ".h5")
        with open(lines, "w", encoding="utf-8") as file:
            for word in ("The king", "int main(", "Blessed are", "too long " * 50):
                file.write(json.dumps({"id": f"{word[:9]} {name}", "text": f"{word} {name}"}) + "\n")
        subprocess.run([shop.options.program, "pack", lines, "--out", packed], check=True, stdout=subprocess.DEVNULL)
        prompts.append(packed)

    def start(out, ranks, tp, env=None):
        return Run([shop.options.mpirun, "-n", str(ranks), shop.options.program, "generate",
                    "--target", models + "/demo-full-4bpw", "--draft", models + "/demo-dflash2", "--prompts", *prompts,
                    "--n", "2", "--temperature", "0.8", "--logprobs", "2", "--max-new-tokens", "8", "--max-seqs", "2",
                    "--tp", str(tp), "--max-context", "64", "--fail-on-error", "--out", out], env or {}, out)
    whole, out = shop.path("whole.h5"), shop.path("out.h5")
    start(whole, 2, 2).expect_code(1)
    start(out, 4, 2).expect_code(1)
    expect(shop.same(whole, out) == (0, 16), "restarts and records computed")
    out = shop.path("out.h5")
    run = start(out, 2, 1, shop.slow(100))
    run.wait_computed(3)
    run.process.send_signal(signal.SIGUSR1)
    run.expect_code(75)
    start(out, 4, 2).expect_code(1).expect_one("going on with .*: [0-9]+ of 16 records are done")
    expect(shop.same(whole, out) == (1, 16), "restarts and records computed")


def a_signal_to_any_group_drains_all(shop):
    for ranks, tp, victim in ((2, 1, 1), (4, 2, 3), (2, 1, 0)):
        out, heartbeat = shop.path("out.h5"), shop.path("heartbeat.json")
        run = groups(shop, out, ranks, tp, ["--heartbeat", heartbeat], env=shop.slow(20))
        run.wait_computed(20)
        os.kill(run.rank(victim, ranks), signal.SIGTERM)
        run.expect_code(75).expect_one("no record is started any more")
        found = re.search(r"stopped with (\d+) of 600 records done", run.errors)
        with open(heartbeat, encoding="utf-8") as file:
            beat = json.load(file)
        expect(found and beat["state"] == "stopped" and beat["records_done"] == int(found.group(1)) == run.computed(),
               f"{beat}, {run.computed()} records computed:\n{run.errors}")
        found = shop.complete(out, RECORDS, TOKENS, ranks=2 if victim else 0)
        expect(found == (1, RECORDS), f"restarts, records computed: {found}")


def a_second_signal_and_grace_cut_a_drain_short(shop):
    shop.cut_short(lambda out, more, **others: groups(shop, out, more=more, records=40, tokens=LONG_TOKENS, **others))


def time_that_is_up_stops_all(shop):
    """All records together would take more than a minute, those that are running half of one."""
    out = shop.path("out.h5")
    run = groups(shop, out, more=["--max-time", "8"], records=40, tokens=LONG_TOKENS, env=shop.slow(300))
    run.expect_code(75).expect_one("stopped with 0 of 40 records done")
    shop.complete(out, 40, LONG_TOKENS)


def mpirun_is_told_to_end_and_leaves_a_second(shop):
    out = shop.path("out.h5")
    run = groups(shop, out, env=shop.slow(20))
    run.wait_computed(60)
    run.process.send_signal(signal.SIGTERM)
    run.wait(PATIENCE)
    expect(run.process.returncode != 0, "mpirun ended well")
    _, computed = shop.complete(out, RECORDS, TOKENS)
    expect(computed <= RECORDS + 2 * 2 * 8, f"{computed} records computed: an open part was lost")


def a_rank_that_fails_in_any_group_ends_all(shop):
    ways = [("error", 3, 6, r"^\[rank 3/4 \S+\] comm error: MPI_Allreduce: .* at step \d+"),
            ("error", 2, 6, r"^\[rank 2/4 \S+\] comm error: MPI_Allreduce: .* at step \d+"),
            ("segv", 2, 139, "exited on signal 11"),
            ("abort", 3, 9, r"MPI_ABORT was invoked|show_help\.c")]
    for act, rank, code, message in ways:
        out = shop.path("out.h5")
        # Slow and early: a group whose ranks the machine runs less is left few records.
        run = groups(shop, out, 4, 2, env=shop.slow(10, **{"": rank}, AT=30, ACT=act))
        run.expect_code(code).expect_one(message)
        _, computed = shop.complete(out, RECORDS, TOKENS)
        expect(RECORDS <= computed <= RECORDS + 2 * 256, f"{act} of rank {rank}: {computed} records computed")


def a_stopped_rank_in_any_group_is_named(shop):
    for victim in (0, 2):
        out = shop.path("out.h5")
        # After three seconds: a rank tells the others once a second where it is.
        run = groups(shop, out, 4, 2, ["--watchdog", "4"], env=shop.slow(100, **{"": victim}, AT=30, ACT="stop"))
        run.expect_code(6)
        run.expect_one(rf"comm error: rank {victim} \(\S+\) has been silent for \d+ s, "
                       r"last seen at step \d+, (layer \d+, )?op \w+")
        shop.complete(out, RECORDS, TOKENS)


def groups_that_are_done_wait_in_peace(shop):
    """One record of many tokens: the other group waits longer than the watchdog."""
    out = shop.path("out.h5")
    run = groups(shop, out, 4, 2, ["--watchdog", "4"], records=1, tokens=150, env=shop.slow(60))
    run.expect_code(0)
    expect(time.monotonic() - run.start > 6, "too fast to tell")
    shop.compare(out, 1, 150)


def a_start_waits_for_the_groups_of_the_last(shop):
    """The launcher is dead, the run's leader too, another leader is not: nothing is taken up yet."""
    out = shop.path("out.h5")
    run = groups(shop, out, env=shop.slow(30))
    run.wait_computed(100)
    leader, other = (run.rank(rank) for rank in (0, 1))
    os.kill(other, signal.SIGSTOP)
    run.process.kill()
    run.wait(PATIENCE)
    wait_until(lambda: not alive(leader), "the leader ends")
    expect(alive(other), "the other leader was to outlive its launcher")
    before = run.parts()
    shop.start(out, RECORDS, TOKENS, ranks=0).expect_code(2).expect_one(rf"in use by process {other} on \S+")
    os.kill(other, signal.SIGCONT)
    wait_until(lambda: not alive(other), "the other rank ends")
    expect(set(run.parts()) <= set(before), f"{before} became {run.parts()}")
    shop.complete(out, RECORDS, TOKENS)


def a_failing_disk_under_any_group_loses_nothing(shop):
    for rank in (0, 1):
        for ops, at, errno in (("s", 2, "EIO"), ("r", 1, "ENOSPC"), ("w", 20, "ENOSPC"), ("c", 2, "EIO")):
            out = shop.path("out.h5")
            env = {"LD_PRELOAD": shop.options.io + ":" + shop.options.rank, "FAILING_RANK_MS": "10",
                   "FAILING_IO_FOLDER": os.path.dirname(out), "FAILING_IO_OPS": ops, "FAILING_IO_AT": str(at),
                   "FAILING_IO_ERRNO": errno, "FAILING_IO_RANK": str(rank)}
            run = groups(shop, out, env=env)
            run.expect_code(4)
            expect(len(run.lines(r"io error: .*" + os.path.dirname(out))) == 1, f"rank {rank}, {ops}:\n{run.errors}")
            shop.complete(out, RECORDS, TOKENS)


def other_prompts_on_another_host_are_refused(shop):
    """Hosts are folders here, the names of the prompts relative."""
    out, homes = shop.path("out.h5"), []
    for records in (600, 599):
        homes.append(os.path.dirname(shop.path("x")))
        os.symlink(shop.prompts(records), os.path.join(homes[-1], "prompts.h5"))
    rank = [shop.options.program, "generate", "--target", shop.model, "--prompts", "prompts.h5", "--out", out, "--tp", "1"]
    command = [shop.options.mpirun, "-n", "1", "-wdir", homes[0], *rank, ":", "-n", "1", "-wdir", homes[1], *rank]
    run = Run(command, {}, out)
    run.expect_code(3).expect_one(r"sees other files than \S+: prompts_digest \w+ \(rank 1\)")
    expect(os.listdir(os.path.dirname(out)) == [], "something is left")


def an_mpi_without_windows_is_named(shop):
    out = shop.path("out.h5")
    run = groups(shop, out, env={"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "pt2pt"})
    run.expect_code(6).expect_one(r"^quadrille: comm error: MPI_Win_allocate: .* no one-sided calls .* --shard I/2")
    expect(os.listdir(os.path.dirname(out)) == [], "something is left")


def kill_once(shop, out, rng):
    """Starts the run in some layout and kills a rank or mpirun; the number of groups, 0: it was done."""
    ranks, tp = rng.choice([(1, 1), (2, 2), *LAYOUTS])
    run = groups(shop, out, ranks, tp, env=shop.slow(4))
    victim = rng.choice(["mpirun", *range(ranks)])
    pid = run.process.pid if victim == "mpirun" else run.ranks(ranks).get(victim)
    if rng.random() < 0.25:
        wait_until(lambda: os.path.exists(out + ".tmp") or run.ended(), "assembly", RUN_TIME, 0.0005)
        time.sleep(rng.uniform(0, 0.01))
    else:
        time.sleep(rng.uniform(0, 2.5))
    return ranks // tp if run.kill(pid) else 0


def killed_at_random_the_result_is_the_same(shop):
    """Every start has another number of groups."""
    rng, done = random.Random(2), 0
    kills = 40 if shop.options.long else 4
    while done < kills:
        out, lost = shop.path("out.h5"), 0
        while done < kills and not os.path.exists(out):
            killed = kill_once(shop, out, rng)
            lost += killed * 256
            done += killed > 0
        computed = (shop.compare if os.path.exists(out) else shop.complete)(out, RECORDS, TOKENS)[1]
        expect(RECORDS <= computed <= RECORDS + lost, f"{computed} records computed, {lost} may be lost")


def main():
    options = read_options()
    cases = [killed_at_random_the_result_is_the_same]
    if not options.long:
        cases += [the_file_is_that_of_one_group, every_group_has_its_part, samples_with_everything_on_are_the_same,
                  a_signal_to_any_group_drains_all, a_second_signal_and_grace_cut_a_drain_short,
                  time_that_is_up_stops_all,
                  mpirun_is_told_to_end_and_leaves_a_second, a_rank_that_fails_in_any_group_ends_all,
                  a_stopped_rank_in_any_group_is_named,
                  groups_that_are_done_wait_in_peace, a_start_waits_for_the_groups_of_the_last,
                  a_failing_disk_under_any_group_loses_nothing, other_prompts_on_another_host_are_refused,
                  an_mpi_without_windows_is_named]
    cases = [case for case in cases if options.only in case.__name__]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="groups-test-") as folder:
        return run_cases(cases, Workshop(options, folder), at_once=2)


if __name__ == "__main__":
    sys.exit(main())
