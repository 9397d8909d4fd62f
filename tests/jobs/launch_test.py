# SPDX-License-Identifier: Apache-2.0
"""tools/launch-sparks.sh: what it hands to mpirun, a run of two ranks here, what it says of a host that is not
ready. Usage: launch_test.py MPIRUN QUADRILLE SOURCE_FOLDER"""
import os
import shlex
import subprocess
import sys
import tempfile

from job_runs import expect, run_cases

MPIRUN, QUADRILLE, SOURCE = map(os.path.abspath, sys.argv[1:4])
MODEL = os.path.join(SOURCE, "tests", "data", "models", "demo-full-4bpw")
PROMPTS = os.path.join(SOURCE, "tests", "data", "demo_prompts.jsonl")


def launch(*arguments, folder=None, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "UCX_"))}
    return subprocess.run([os.path.join(SOURCE, "tools", "launch-sparks.sh"), *arguments], capture_output=True,
                          text=True, timeout=120, check=False, cwd=folder,
                          env={**env, "QUADRILLE": QUADRILLE, "MPIRUN": MPIRUN, **variables})


def head_gives_each_host_a_rank_and_every_variable(_):
    done = launch("show", "--out", "a b.h5", HOSTS="s1 s2 s3 s4", MPI_IFNAME="eth0", NCCL_IB_HCA="a,b",
                  NCCL_NVLS_ENABLE="0", UCX_TLS="tcp")
    expect(done.returncode == 0, done.stderr)
    words = shlex.split(done.stdout)
    expected = [MPIRUN, "-n", "4", "--host", "s1:1,s2:1,s3:1,s4:1", "--map-by", "ppr:1:node", "--mca",
                "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "-x", "NCCL_IB_HCA", "-x",
                "NCCL_NVLS_ENABLE", "-x", "UCX_TLS", QUADRILLE, "generate", "--out", "a b.h5"]
    expect(words == expected, f"found {words}")


def head_runs_generate_on_all_ranks(folder):
    done = launch("head", "--prompts", PROMPTS, "--out", "out.h5", "--max-new-tokens", "2", HOSTS="localhost",
                  RANKS_PER_HOST="2", EXL3_MODEL=MODEL, folder=folder)
    expect(done.returncode == 0 and "12 ok" in done.stdout, done.stdout + done.stderr)
    expect(os.path.exists(os.path.join(folder, "out.h5")), "OUT is not where the command was given")


def a_host_that_is_not_ready_says_why(_):
    done = launch("worker", "2", EXL3_MODEL="/no/model", NCCL_IB_HCA="=none0:1,^none1")
    expect(done.returncode == 1 and "host 2 is not ready" in done.stderr, done.stdout + done.stderr)
    for words in ("ok  program: quadrille", "no config.json in /no/model", "device none0", "device none1"):
        expect(words in done.stdout, f"'{words}' is not said:\n{done.stdout}")


def what_it_cannot_do_it_says(_):
    for arguments, words in ((("worker",), "expected the number of the host"), (("worker", "x"), "found 'x'"),
                             ((), "worker N"), (("head",), "HOSTS")):
        done = launch(*arguments, HOSTS="") if arguments != ("head",) else launch(*arguments)
        expect(done.returncode != 0 and words in done.stdout + done.stderr, f"{arguments}: {done.stdout}{done.stderr}")


CASES = [head_gives_each_host_a_rank_and_every_variable, head_runs_generate_on_all_ranks,
         a_host_that_is_not_ready_says_why, what_it_cannot_do_it_says]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run_cases(CASES, scratch, 1))
