# SPDX-License-Identifier: Apache-2.0
"""The scripts of jobs/slurm/ on a real Slurm of one node, which the test starts: both forms, an array and its
merge, runs that go on after they ran out of time, were signalled or cancelled. Needs root and Slurm's programs."""
import os
import shutil
import subprocess
import sys
import tempfile

from job_runs import PATIENCE, Workshop, expect, read_options, run_cases, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NODE = os.path.join(ROOT, "tests", "support", "single-node-slurm.sh")
RECORDS, TOKENS = 60, 8  # of runs that end early: 60 steps of 8 records and more
STEP_MS = 100


def run(*command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT,
                          env={**os.environ, **(env or {})})
    expect(done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


class Job:
    """A script in the queue; its ranks' steps take a while where asked."""

    def __init__(self, shop, script, out, options=(), flags=(), ranks=2, slow=False, max_time="slurm"):
        self.log, self.out, program = shop.path("log"), out, shop.path("quadrille")
        preload = " ".join(f"{k}={v}" for k, v in shop.slow(STEP_MS).items()) if slow else ""
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec env {preload} "{shop.options.program}" "$@"\n')
        os.chmod(program, 0o755)
        env = {"QUADRILLE": program, "TARGET": shop.model, "PROMPTS": shop.prompts(RECORDS), "OUT": out,
               "MAX_TIME": max_time}
        self.id = run("sbatch", "--parsable", "--ntasks", str(ranks), "--time", "30", "--output", self.log + "-%a",
                      *options, f"jobs/slurm/{script}.sbatch", "--max-new-tokens", str(TOKENS), "--ignore-eos",
                      "--max-seqs", "8", "--grace", "1", *flags, env=env)

    def show(self, field):
        """Of each task of the job; a job that is through stays known for a few minutes."""
        shown = run("scontrol", "show", "job", "--oneliner", self.id)
        return [word.split("=", 1)[1] for word in shown.split() if word.split("=", 1)[0] == field]

    def logs(self):
        folder = os.path.dirname(self.log)
        texts = []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return "\n".join(texts)

    def wait(self, states, seconds=3 * PATIENCE):
        def there():
            found = self.show("JobState")
            over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"} - set(states)
            expect(not over & set(found), f"job {self.id}: {found}, expected {states}:\n{self.logs()}")
            return set(found) <= set(states)
        try:
            wait_until(there, f"job {self.id} is {states}", seconds, 0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_for_steps(self):
        """Some records are computed."""
        lock = self.out + ".parts/lock"

        def computing():
            try:
                with open(lock, encoding="utf-8") as file:
                    return sum(int(line.split()[2]) for line in file) > 0
            except (OSError, IndexError, ValueError):
                return False
        wait_until(computing, f"job {self.id} computes", PATIENCE, 0.1)

    def expect_requeued(self):
        """Back in the queue by its own request."""
        wait_until(lambda: int(self.show("Restarts")[0]) > 0, f"job {self.id} is requeued", PATIENCE, 0.2)
        expect("stopped with" in self.logs(), f"it did not stop early:\n{self.logs()}")


def whole(shop, out):
    shop.compare(out, RECORDS, TOKENS)


def ranks_of_mpirun_and_of_srun_write_what_one_rank_does(shop):
    for script in ("mpirun", "srun"):
        job = Job(shop, script, shop.path("out.h5"))
        job.wait(["COMPLETED"])
        whole(shop, job.out)
        again = Job(shop, script, job.out)
        again.wait(["COMPLETED"])
        expect("nothing is left to do" in again.logs(), again.logs())


def ranks_that_pmi_did_not_connect_say_so(shop):
    script = shop.path("bare.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nsrun --mpi=none {shop.options.program} generate --target {shop.model} "
                   f"--prompts {shop.prompts(RECORDS)} --out {shop.path('out.h5')}\n")
    log = shop.path("log")
    done = subprocess.run(["sbatch", "--wait", "-n", "2", "-o", log, script], check=False, capture_output=True,
                          timeout=PATIENCE)
    with open(log, encoding="utf-8") as file:
        text = file.read()
    expect(done.returncode == 2 and "srun needs --mpi=pmix" in text, f"exit {done.returncode}\n{text}")


def tasks_of_an_array_make_one_file(shop):
    out = shop.path("results")
    job = Job(shop, "sweep", out, options=("--array=0-2",), ranks=1)
    job.wait(["COMPLETED"])
    merged = shop.path("merged.h5")
    run(shop.options.program, "merge", *(f"{out}-{i}.h5" for i in range(3)), "--out", merged)
    whole(shop, merged)
    wrong = Job(shop, "sweep", out, options=("--array=1-2",), ranks=1)
    wrong.wait(["FAILED"])
    expect("expected --array=0-N, found tasks 1 to 2" in wrong.logs(), wrong.logs())


def a_run_out_of_time_is_requeued_and_goes_on(shop):
    for script in ("mpirun", "srun"):
        job = Job(shop, script, shop.path("out.h5"), slow=True, max_time="6")
        job.expect_requeued()
        job.wait(["COMPLETED"])
        whole(shop, job.out)


def a_signalled_run_is_requeued_and_goes_on(shop):
    for script, more in (("mpirun", ["--batch"]), ("srun", [])):
        job = Job(shop, script, shop.path("out.h5"), slow=True)
        job.wait_for_steps()
        run("scancel", "--signal=USR1", *more, job.id)
        job.expect_requeued()
        job.wait(["COMPLETED"])
        whole(shop, job.out)


def a_cancelled_run_goes_on_when_submitted_again(shop):
    for script in ("mpirun", "srun"):
        job = Job(shop, script, shop.path("out.h5"), slow=True)
        job.wait_for_steps()
        run("scancel", job.id)
        job.wait(["CANCELLED"])
        expect(not os.path.exists(job.out), "it was too fast to be cancelled")
        again = Job(shop, script, job.out)
        again.wait(["COMPLETED"])
        expect("going on with" in again.logs(), again.logs())
        whole(shop, job.out)


CASES = [ranks_of_mpirun_and_of_srun_write_what_one_rank_does, ranks_that_pmi_did_not_connect_say_so,
         tasks_of_an_array_make_one_file, a_run_out_of_time_is_requeued_and_goes_on,
         a_signalled_run_is_requeued_and_goes_on, a_cancelled_run_goes_on_when_submitted_again]


def main():
    options = read_options()
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
    if missing or os.getuid() != 0:
        print(f"1..0 # SKIP needs root and {', '.join(missing) or 'nothing else'}")
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        slurm = os.path.join(folder, "slurm")
        os.environ["SLURM_CONF"] = os.path.join(slurm, "slurm.conf")
        try:
            run("bash", NODE, "start", slurm)
            cases = [case for case in CASES if options.only in case.__name__]
            return run_cases(cases, Workshop(options, folder), 1)
        finally:
            subprocess.run(["bash", NODE, "stop", slurm], check=False)


if __name__ == "__main__":
    sys.exit(main())
