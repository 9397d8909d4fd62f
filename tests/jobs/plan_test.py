# SPDX-License-Identifier: Apache-2.0
"""What a run takes is known before it runs, and one that does not fit is refused.
Usage: plan_test.py MPIRUN QUADRILLE DATA_FOLDER"""
import json
import os
import re
import subprocess
import sys
import tempfile

from job_runs import expect, run_cases

MPIRUN, QUADRILLE, DATA = map(os.path.abspath, sys.argv[1:4])
TARGET = os.path.join(DATA, "models", "demo-full-4bpw")
DRAFT = os.path.join(DATA, "models", "demo-dflash2")
PROMPTS = os.path.join(DATA, "demo_prompts.jsonl")
LARGE = ["--max-seqs", "96", "--max-context", "3072", "--max-batched-tokens", "2048"]


def run(command):
    """(exit code, output, peak resident bytes)"""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), usage.ru_maxrss * 1024


def plan(scratch, name, *flags):
    path = os.path.join(scratch, name + ".json")
    code, text, _ = run([QUADRILLE, "plan", "--target", TARGET, "--backend", "cpu", "--json", path, *flags])
    expect(code in (0, 5), f"exit code {code}: {text}")
    with open(path, encoding="utf-8") as file:
        return code, text, json.load(file)


def generate(scratch, name, *flags, ranks=1, samples=8):
    command = [QUADRILLE, "generate", "--target", TARGET, "--backend", "cpu", "--prompts", PROMPTS, "--n", str(samples), "--out",
               os.path.join(scratch, name + ".h5"), "--max-new-tokens", "2", *flags]
    return run(command if ranks == 1 else [MPIRUN, "-n", str(ranks), *command])


def peak_is_within_a_tenth(scratch):
    flags = ["--draft", DRAFT, "--prompts", PROMPTS, "--n", "8", *LARGE]
    _, _, planned = plan(scratch, "peak", *flags)
    expect(planned["slots"] == 96 and planned["context"] == 3072, str(planned))
    _, _, idle = generate(scratch, "idle", "--draft", DRAFT, *LARGE, "--dry-run")
    code, text, peak = generate(scratch, "run", "--draft", DRAFT, *LARGE)
    expect(code == 0, text)
    whole = planned["total"] + idle
    expect(planned["total"] > 4 * idle, f"too small to tell: {planned}")
    expect(0.9 * whole < peak < 1.1 * whole, f"planned {whole}, {idle} of it the program, found {peak}: {planned}")


def classes_grow_with_what_they_are_of(scratch):
    def bytes_of(*flags):
        return plan(scratch, "grow", *flags)[2]["bytes"]
    one = bytes_of("--max-seqs", "4", "--max-context", "1024")
    slots = bytes_of("--max-seqs", "8", "--max-context", "1024")
    context = bytes_of("--max-seqs", "4", "--max-context", "2048")
    ranks = bytes_of("--max-seqs", "4", "--max-context", "1024", "--ranks", "4")
    for other in (slots, context):
        ratio = other["latents and pools"] / one["latents and pools"]
        expect(1.9 < ratio < 2.1, f"{one}, {other}")
        expect(other["weights"] == one["weights"], f"{one}, {other}")
    expect(abs(slots["KDA state"] - 2 * one["KDA state"]) < 0.1 * one["KDA state"], f"{one}, {slots}")
    expect(context["KDA state"] == one["KDA state"], f"{one}, {context}")
    expect(3 < one["KDA state"] / ranks["KDA state"] < 4.5, f"{one}, {ranks}")
    drafted = bytes_of("--draft", DRAFT, "--max-seqs", "4", "--max-context", "1024")
    expect(drafted["drafter's context"] > 0 and drafted["weights"] > one["weights"], str(drafted))


def what_fits_is_taken(scratch):
    memory = plan(scratch, "some", *LARGE[2:], "--max-seqs", "20")[2]["total"]
    flags = [*LARGE[2:], "--memory", str(memory / 1e9)]
    code, text, found = plan(scratch, "fitted", *flags)
    expect(code == 0 and found["slots"] == 20, text)
    code, text, found = plan(scratch, "refused", *flags, "--max-seqs", "21")
    expect(code == 5 and not found["fits"] and re.search(r"does not fit: --max-seqs 20 fits", text), text)
    code, text, found = plan(scratch, "short", *LARGE[2:], "--memory", "0.3")
    expect(code == 0 and found["slots"] < 20, text)
    code, text, _ = plan(scratch, "none", *LARGE[2:], "--memory", "0.02")
    expect(code == 5 and "the weights alone take" in text, text)
    code, text, found = plan(scratch, "prompts", "--prompts", PROMPTS, "--limit", "3", "--max-new-tokens", "5")
    expect(code == 0 and found["slots"] == 3 and found["context"] < 1000, text)


def too_much_is_refused_before_weights_are_read(scratch):
    most = ["--max-seqs", "4096", "--max-context", "4096"]
    for ranks in (1, 2):
        code, text, peak = generate(scratch, f"refused-{ranks}", *most, ranks=ranks, samples=400)
        if code == 0:
            return  # a machine of very much memory
        expect(code == 5, f"exit code {code}: {text}")
        expect(len(re.findall(r"memory: 4096 slots of 4096 tokens do not fit", text)) == 1, text)
        expect(re.search(r"--max-seqs \d+ fits", text) and "latents and pools" in text, text)
        expect(ranks > 1 or peak < 400e6, f"{peak} bytes")


def a_dry_run_shows_the_plan(scratch):
    flags = ["--max-seqs", "5", "--draft", DRAFT]
    code, text, _ = generate(scratch, "dry", *flags, "--dry-run")
    expect(code == 0 and re.search(r"5 slots of \d+ tokens", text), text)
    _, planned, _ = plan(scratch, "dry", *flags, "--prompts", PROMPTS, "--n", "8", "--max-new-tokens", "2")
    for name in ("weights", "KDA state", "pass buffers", "workspace of ops"):
        line = re.search(rf"^ +{name} .*$", planned, re.M)
        expect(line and line.group(0) in text, f"{name}:\n{planned}\n{text}")


def verified_weights_are_those(scratch):
    code, text, _ = generate(scratch, "verified", "--verify-weights", "--limit", "1", ranks=2)
    expect(code == 0, text)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        return run_cases([peak_is_within_a_tenth, classes_grow_with_what_they_are_of, what_fits_is_taken,
                          too_much_is_refused_before_weights_are_read, a_dry_run_shows_the_plan,
                          verified_weights_are_those], scratch, 1)


sys.exit(main())
