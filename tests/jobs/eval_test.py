# SPDX-License-Identifier: Apache-2.0
"""quadrille eval: the golden NLL of all packs on the held-out texts (where those lie beside the folder that
QUADRILLE_TEST_MODELS names), the same figures for any ranks and batch, generate's own log-probabilities, bad
input. Usage: eval_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER GOLDEN_FILES"""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

import native_model
from demo_runs import DemoRuns, run

NLL_TOLERANCE = 1e-5
TOKEN_TOLERANCE = 1e-4  # of a log-probability between a decode and a prefill pass
KINDS = ("code", "docs", "prose")


def evaluate(runs, target, prompts, ranks=1, more=()):
    report = runs.path("report.json")
    said = run([runs.mpirun, "-n", str(ranks), runs.program, "eval", "--target", target, "--prompts", prompts,
                "--json", report, *more])
    with open(report, encoding="utf-8") as file:
        return json.load(file)["kinds"], said


def check_ranks_and_batches(runs, prompts):
    expected, said = evaluate(runs, runs.target, prompts)
    runs.check("a table is printed", "perplexity" in said and "all" in said, said)
    for name, ranks, more in (("two ranks", 2, []), ("four ranks", 4, []), ("one record at a time", 1, ["--max-seqs", "1"]),
                              ("small passes", 2, ["--max-batched-tokens", "64"])):
        found, _ = evaluate(runs, runs.target, prompts, ranks, more)
        runs.check(f"the same figures with {name}", found == expected, f"{found}, expected {expected}")
    sliced = [evaluate(runs, runs.target, prompts, 1, ["--shard", f"{i}/2"])[0]["all"] for i in range(2)]
    tokens = sum(part["tokens"] for part in sliced)
    mean = sum(part["nll"] * part["tokens"] for part in sliced) / tokens
    runs.check("shards add up", tokens == expected["all"]["tokens"] and abs(mean - expected["all"]["nll"]) < 1e-12,
               f"{sliced}, expected {expected}")


def check_against_generate(runs):
    """What generate says of the tokens it chose is what eval says of them."""
    prompts = runs.lines("few.jsonl", [{"tokens": [100 + i, 200, 300 + i]} for i in range(4)])
    out = runs.generate("few", [prompts], 1, ["--max-new-tokens", "24", "--ignore-eos", "--logprobs", "0"])
    records = runs.unpack(out)
    whole = runs.lines("whole.jsonl", [{"tokens": [100 + i, 200, 300 + i] + record["tokens"]}
                                       for i, record in enumerate(records)])
    parts, _ = evaluate(runs, runs.target, prompts)
    all_of, _ = evaluate(runs, runs.target, whole)
    nll = all_of["all"]["nll"] * all_of["all"]["tokens"] - parts["all"]["nll"] * parts["all"]["tokens"]
    expected = -sum(sum(record["logprobs"]["chosen"]) for record in records)
    count = all_of["all"]["tokens"] - parts["all"]["tokens"]
    runs.check("generate's log-probabilities", count == 96 and abs(nll - expected) < TOKEN_TOLERANCE * count,
               f"{nll}, expected {expected}; {count} tokens")
    likely = all_of["all"]["most_likely"] * all_of["all"]["tokens"]
    runs.check("greedy tokens are the most likely ones", likely >= count, f"{likely} of {count}")


def check_golden(runs, golden_files):
    """How many packs were there."""
    models = os.environ.get("QUADRILLE_TEST_MODELS", "")
    heldout = os.path.join(models, "..", "golden", "demo_heldout.h5")
    packs = [pack for pack in ("bf16", "tr3-4bpw", "k2", "full-4bpw") if os.path.isdir(os.path.join(models, "demo-" + pack))]
    if not models or not os.path.exists(heldout):
        packs = []
    texts = {}
    for kind in KINDS if packs else ():
        texts[kind] = runs.path(kind + ".h5")
        run([golden_files, "heldout", heldout, kind, texts[kind]])
    for pack in packs:
        target = os.path.join(models, "demo-" + pack)
        for kind, prompts in texts.items():
            expected = float(run([golden_files, "nll", pack, kind]))
            found = evaluate(runs, target, prompts, 2)[0]["all"]["nll"]
            runs.check(f"golden NLL of {pack}, {kind}", abs(found - expected) < NLL_TOLERANCE, f"{found}, expected {expected}")
    return len(packs)


def uniform_model(runs, model):
    """A copy whose head is zero: every token is as likely as any other."""
    folder = runs.path("uniform")
    shutil.copytree(model, folder)
    tensors = native_model.read(folder + "/model.safetensors")
    vocab, hidden = tensors["model.language_model.embed_tokens.weight"][1]
    for name in [name for name in tensors if name.startswith("lm_head.")]:
        del tensors[name]
    tensors["lm_head.weight"] = "BF16", [vocab, hidden], bytes(2 * vocab * hidden)
    native_model.write(folder + "/model.safetensors", tensors)
    return folder, vocab


def check_divergence(runs, prompts):
    """KL(uniform || model) of one row is the mean over all tokens of their NLL there, less log of the vocabulary."""
    model = os.path.join(runs.data, "models", "toy-vocab768")
    uniform, vocab = uniform_model(runs, model)
    every = runs.lines("every.jsonl", [{"tokens": [5, token]} for token in range(vocab)])
    one = runs.lines("one-row.jsonl", [{"tokens": [5, 7]}])
    mean = evaluate(runs, model, every)[0]["all"]["nll"]
    found = evaluate(runs, model, one, 1, ["--against", uniform])[0]["all"]
    runs.check("KL of a row", abs(found["kl"] - (mean - math.log(vocab))) < 1e-6 and found["kl"] > 1e-3,
               f"{found}, NLL of all tokens {mean}")
    back = evaluate(runs, uniform, one, 1, ["--against", model])[0]["all"]
    runs.check("NLL of a uniform model", abs(back["nll"] - math.log(vocab)) < 1e-9 and 0 < back["kl"] < 1, str(back))
    own = evaluate(runs, runs.target, prompts, 2, ["--against", runs.target])[0]["all"]
    runs.check("a model is no distance from itself", own["kl"] == 0 and own["same_choice"] == 1, str(own))
    longer = runs.lines("longer.jsonl", [{"tokens": [(7 * i * n) % vocab for i in range(n)]} for n in (1, 2, 64, 65, 200)])
    expected, said = evaluate(runs, model, longer, 1, ["--against", uniform])
    runs.check("a table with both", "KL" in said and "same choice" in said, said)
    for ranks, more in ((2, ["--max-seqs", "1"]), (4, ["--max-batched-tokens", "64"])):
        again = evaluate(runs, model, longer, ranks, ["--against", uniform, *more])[0]
        runs.check(f"the same distance on {ranks} ranks", again == expected, f"{again}, expected {expected}")
    done = subprocess.run([runs.program, "eval", "--target", model, "--against", runs.target, "--prompts", one],
                          capture_output=True, text=True, timeout=60, check=False)
    runs.check("another vocabulary is refused", done.returncode == 3 and "expected the target's vocabulary of 768 tokens, "
               "found 4096" in done.stderr, done.stderr)


def check_refusals(runs, prompts):
    one = runs.lines("one.jsonl", [{"tokens": [5]}])
    for name, arguments, code, words in (
            ("nothing to score", ["--prompts", one], 3, "two tokens or more"),
            ("no prompts", [], 2, "--prompts"),
            ("a report on its input", ["--prompts", prompts, "--json", prompts], 2, "--json"),
            ("no such file", ["--prompts", runs.path("none.h5")], 4, "none.h5")):
        done = subprocess.run([runs.program, "eval", "--target", runs.target, *arguments], capture_output=True, text=True,
                              timeout=60, check=False)
        runs.check(f"refused: {name}", done.returncode == code and words in done.stderr, f"{done.returncode}: {done.stderr}")
    mixed = runs.lines("mixed.jsonl", [{"tokens": [5]}, {"tokens": [5, 6, 7]}, {"tokens": [5, 99999]}])
    kinds, _ = evaluate(runs, runs.target, mixed)
    runs.check("records that cannot be scored are left out", kinds["all"]["records"] == 1 and kinds["all"]["tokens"] == 2,
               str(kinds))


def main():
    golden_files = os.path.abspath(sys.argv[5])
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        prompts = runs.path("prompts.h5")
        run([golden_files, "prompts", prompts])
        check_ranks_and_batches(runs, prompts)
        check_against_generate(runs)
        check_divergence(runs, prompts)
        check_refusals(runs, prompts)
        packs = check_golden(runs, golden_files)
        if packs == 0:
            runs.check("golden NLL # SKIP no held-out texts beside QUADRILLE_TEST_MODELS", True)
        return runs.report()


sys.exit(main())
