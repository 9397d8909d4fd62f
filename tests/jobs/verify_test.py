# SPDX-License-Identifier: Apache-2.0
"""quadrille verify: replays of speculative, sampled, sharded runs agree; a weight that has changed under an unchanged
digest is found, with token and gap; files that cannot be verified are refused. Usage: verify_test.py MPIRUN QUADRILLE
SAME_RESULTS DATA_FOLDER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import native_model
from demo_runs import DemoRuns


def verify(runs, out, prompts, ranks=1, more=(), target=None):
    """Exit code, output, report."""
    report = runs.path("report.json")
    done = subprocess.run([runs.mpirun, "-n", str(ranks), runs.program, "verify", out, "--target", target or runs.target,
                           "--prompts", *prompts, "--json", report, *more], capture_output=True, text=True, timeout=120,
                          check=False)
    told = None
    if os.path.exists(report):
        with open(report, encoding="utf-8") as file:
            told = json.load(file)
        os.unlink(report)
    return done.returncode, done.stdout + done.stderr, told


def check_equal(runs, prompts):
    ways = [("greedy", 2, ["--k", "3"], []), ("sampled", 1, ["--k", "2", "--temperature", "0.9", "--top-p", "0.9", "--seed",
            "5", "--n", "2"], []), ("a shard", 1, ["--shard", "1/3", "--limit", "10"], []),
            ("a sample", 2, [], ["--sample", "4"]), ("all", 1, ["--ignore-eos"], ["--sample", "0"])]
    for name, ranks, arguments, more in ways:
        out = runs.generate(name, [prompts], ranks, ["--max-new-tokens", "12", *arguments])
        count = len(runs.unpack(out))
        code, said, told = verify(runs, out, [prompts], 3 - ranks, more)
        expected = 4 if name == "a sample" else count
        runs.check(f"replayed and equal: {name}", code == 0 and told["differences"] == [] and told["records"] == expected
                   and told["tokens"] > 0, f"{code} {told} {said}")
        left = [file for file in os.listdir(runs.folder) if ".verify." in file]
        runs.check(f"nothing is left: {name}", not left, str(left))


def changed_model(runs):
    """Other weights of the head, behind what the checkpoint's digest covers."""
    folder = runs.path("changed")
    shutil.copytree(runs.target, folder)
    tensors = native_model.read(folder + "/model.safetensors")
    kind, shape, data = tensors["lm_head.trellis"]
    data = bytearray(data)
    for at in range(len(data) // 2, len(data) // 2 + 20000):
        data[at] ^= 0x5a
    tensors["lm_head.trellis"] = kind, shape, bytes(data)
    native_model.write(folder + "/model.safetensors", tensors)
    return folder


def check_different(runs, prompts):
    """Both models are written by the same hand, so that their digests are equal."""
    sound = runs.path("sound")
    shutil.copytree(runs.target, sound)
    native_model.write(sound + "/model.safetensors", native_model.read(sound + "/model.safetensors"))
    out = runs.path("sound.h5")
    subprocess.run([runs.program, "generate", "--target", sound, "--prompts", prompts, "--out", out, "--max-new-tokens",
                    "24"], check=True, capture_output=True, timeout=120)
    code, said, told = verify(runs, out, [prompts], 2, ["--sample", "0"], changed_model(runs))
    first = told["differences"][0] if told and told["differences"] else None
    tokens = {record["index"]: record["tokens"] for record in runs.unpack(out)}
    runs.check("changed weights are found", code == 1 and first is not None
               and tokens[first["record"]][first["token"]] == first["found"] != first["replayed"]
               and (first["gap"] is None or first["gap"] >= 0) and " differ" in said, f"{code} {said}")


def check_refusals(runs, prompts):
    out = runs.generate("refusals", [prompts], 1, ["--max-new-tokens", "4"])
    other = runs.lines("other.jsonl", [{"tokens": [5, 6, 7]}] * 12)
    rejection = runs.generate("rejection", [prompts], 1, ["--max-new-tokens", "4", "--accept", "rejection", "--temperature",
                              "1"])
    scores = runs.path("scores.h5")
    subprocess.run([runs.program, "score", "--target", runs.target, "--prompts", other, "--out", scores], check=True,
                   capture_output=True, timeout=60)
    for name, file, given, target, word in (
            ("other prompts", out, other, runs.target, "prompts_digest was"),
            ("another model", out, prompts, os.path.join(runs.data, "models", "toy-vocab768"), ""),
            ("rejection", rejection, prompts, runs.target, "--accept rejection"),
            ("scores", scores, other, runs.target, "generations"),
            ("no such file", runs.path("none.h5"), prompts, runs.target, "none.h5")):
        code, said, told = verify(runs, file, [given], 2, (), target)
        runs.check(f"refused: {name}", code in (3, 4) and told is None and word in said, f"{code} {said[:800]}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        lines = [{"tokens": [100 + 17 * i, 200, 300 + i]} for i in range(12)]
        prompts = runs.pack("prompts", lines)
        check_equal(runs, prompts)
        check_different(runs, prompts)
        check_refusals(runs, prompts)
        return runs.report()


sys.exit(main())
