# SPDX-License-Identifier: Apache-2.0
"""quadrille score: sums that eval's NLL agrees with, the same bits for any ranks, groups and batch, continuations
joined as harnesses join them, errors of single records, runs that are killed. Usage: score_test.py MPIRUN QUADRILLE
SAME_RESULTS DATA_FOLDER GOLDEN_FILES"""
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from demo_runs import DemoRuns, run

TOLERANCE = 1e-6  # of a mean over tokens that are stored in fp32


def score(runs, name, prompts, ranks=1, more=(), target=None):
    out = runs.path(name.replace(" ", "-") + ".h5")
    run([runs.mpirun, "-n", str(ranks), runs.program, "score", "--target", target or runs.target, "--prompts", prompts,
         "--out", out, *more])
    return out


def nll(runs, prompts, target=None):
    report = runs.path("report.json")
    run([runs.program, "eval", "--target", target or runs.target, "--prompts", prompts, "--json", report])
    with open(report, encoding="utf-8") as file:
        return json.load(file)["kinds"]["all"]


def check_figures(runs, prompts):
    """Golden through eval, whose figures are tested against others'; sums, greedy flags, top lists."""
    out = score(runs, "whole", prompts, 1, ["--top-n", "3"])
    records = runs.unpack(out)
    expected = nll(runs, prompts)
    tokens = sum(len(record["tokens"]) for record in records)
    mean = -sum(record["sum_logprob"] for record in records) / tokens
    runs.check("the mean is eval's NLL", tokens == expected["tokens"] and abs(mean - expected["nll"]) < TOLERANCE,
               f"{mean}, expected {expected}")
    sums = all(record["sum_logprob"] == math.fsum(record["logprobs"]["chosen"]) or
               abs(record["sum_logprob"] - math.fsum(record["logprobs"]["chosen"])) < 1e-9 for record in records)
    runs.check("sums are those of the parts", sums)
    good = True
    for record in records:
        ids, values = record["logprobs"]["top_ids"], record["logprobs"]["top"]
        likely = [ids[3 * i] == token for i, token in enumerate(record["tokens"])]
        good = good and len(ids) == 3 * len(record["tokens"]) and record["is_greedy"] == all(likely)
        for i, (token, chosen) in enumerate(zip(record["tokens"], record["logprobs"]["chosen"])):
            top = values[3 * i:3 * i + 3]
            good = good and top == sorted(top, reverse=True) and (token not in ids[3 * i:3 * i + 3] or chosen in top)
    runs.check("the most likely tokens stand beside", good)
    return records


def check_ranks(runs, prompts):
    whole = score(runs, "one rank", prompts)
    for name, ranks, more in (("two ranks", 2, []), ("four ranks", 4, []), ("groups", 4, ["--tp", "2"]),
                              ("four groups", 4, ["--tp", "1"]), ("one at a time", 1, ["--max-seqs", "1"]),
                              ("small passes", 2, ["--max-batched-tokens", "64"])):
        runs.same_file(f"the same file: {name}", whole, score(runs, name, prompts, ranks, more))


def check_score_from(runs):
    """What is scored from a place on is the end of what is scored from the start."""
    rng = random.Random(2)
    tokens = [rng.randrange(4000) for _ in range(90)]
    cuts = [1, 2, 64, 65, 88, 89]
    lines = [{"tokens": tokens}] + [{"tokens": tokens, "score_from": cut} for cut in cuts]
    whole, *parts = runs.unpack(score(runs, "from", runs.lines("from.jsonl", lines), 2))
    good = all(part["tokens"] == tokens[cut:] and part["logprobs"]["chosen"] == whole["logprobs"]["chosen"][cut - 1:]
               and part["score_from"] == cut for cut, part in zip(cuts, parts))
    runs.check("score_from cuts, and changes nothing", good, str(parts)[:500])


def encoded(runs, text):
    """The tokens of a text: it is scored from its first token on, which is made known by a second prompt."""
    record, = runs.unpack(score(runs, "encoded", runs.lines("encoded.jsonl", [{"text": text}]), 1,
                                ["--output-exists", "overwrite"]))
    return record["tokens"]


def check_continuations(runs):
    plain = runs.lines("plain.jsonl", [{"text": "a b c"}])
    done = subprocess.run([runs.program, "score", "--target", runs.target, "--prompts", plain, "--out", runs.path("plain.h5")],
                          capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 2 and "text" in done.stderr:
        runs.check("continuations # SKIP this program is built without text", True)
        return
    lines = [{"text": "The king said", "continuation": " to the people"},
             {"text": "The king said ", "continuation": "to the people"},
             {"text": "The king said \n", "continuation": "to the people", "id": "white"},
             {"messages": [{"role": "user", "content": "Speak."}], "continuation": "Yes."}]
    for number, line in enumerate(lines):
        line["id"] = str(number)
    first, second, third, chat = runs.unpack(score(runs, "joined", runs.lines("joined.jsonl", lines)))
    runs.check("blanks at the end of the context belong to the continuation",
               first["tokens"] == second["tokens"] and first["sum_logprob"] == second["sum_logprob"]
               and first["score_from"] == second["score_from"] and len(third["tokens"]) > 0, f"{first} {second}")
    behind = encoded(runs, "The king said to the people")
    runs.check("the tokens are those of the whole text", behind[first["score_from"] - 1:] == first["tokens"],
               f"{behind}, {first}")
    runs.check("conversations have continuations too", chat["status"] == "ok" and chat["score_from"] > 3, str(chat))
    bad = [{"text": " ", "continuation": "a"}, {"text": "a", "continuation": "b"}]
    records = runs.unpack(score(runs, "bad joins", runs.lines("bad.jsonl", bad)))
    runs.check("a context of blanks is that record's error",
               records[0]["status"] == "error" and "continuation: expected a token before it" in records[0]["error"],
               str(records))


def check_errors(runs):
    lines = [{"tokens": [5]}, {"tokens": [5, 6], "score_from": 2}, {"tokens": [5, 99999]}, {"tokens": [5, 6, 7]},
             {"tokens": [5] * 9000}]
    records = runs.unpack(score(runs, "errors", runs.lines("errors.jsonl", lines), 2))
    words = ["expected two tokens or more", "score_from: expected 1 to 1", "99999", None, "fills the context"]
    good = all((record["error"] is None) == (word is None) and (word is None or word in record["error"])
               for record, word in zip(records, words))
    runs.check("errors are those of their records", good and records[3]["status"] == "ok", str(records)[:900])
    alone, = runs.unpack(score(runs, "alone", runs.lines("alone.jsonl", [lines[3]])))
    runs.check("their company is as ever", alone["logprobs"] == records[3]["logprobs"])
    for name, arguments, code, word in (
            ("score_from is not for generate", ["generate", "--prompts", runs.lines("g.jsonl", [{"tokens": [5, 6, 7],
             "score_from": 2}])], 3, "score_from"),
            ("a continuation needs text", ["score", "--prompts", runs.lines("t.jsonl", [{"tokens": [5, 6],
             "continuation": "a"}])], 3, "continuation")):
        done = subprocess.run([runs.program, *arguments, "--target", runs.target, "--out", runs.path("refused.h5")],
                              capture_output=True, text=True, timeout=60, check=False)
        runs.check(f"refused: {name}", word in done.stderr and done.returncode in (code, 0), f"{done.returncode} {done.stderr}")
    other = runs.generate("other", [runs.lines("o.jsonl", [{"tokens": [5, 6, 7]}])], 1, ["--max-new-tokens", "2"])
    done = subprocess.run([runs.program, "score", "--target", runs.target, "--prompts", runs.lines("s.jsonl", [lines[3]]),
                           "--out", other, "--output-exists", "overwrite"], capture_output=True, text=True, timeout=60,
                          check=False)
    runs.check("generations are not replaced by scores", done.returncode == 2 and "kind 'generations'" in done.stderr,
               f"{done.returncode} {done.stderr}")


def check_kills(runs, prompts):
    whole, out = score(runs, "uninterrupted", prompts), runs.path("killed.h5")
    rng, kills = random.Random(5), 0
    while not os.path.exists(out):
        with subprocess.Popen([runs.mpirun, "-n", "2", runs.program, "score", "--target", runs.target, "--prompts",
                               prompts, "--out", out, "--max-seqs", "2"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as job:
            try:
                job.wait(timeout=rng.uniform(0.5, 2.5) + kills / 4)
            except subprocess.TimeoutExpired:
                job.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
                kills += 1
        time.sleep(0.2)
        if kills > 40:
            break
    runs.same_file(f"killed {kills} times, and the same file", whole, out)


def main():
    golden_files = os.path.abspath(sys.argv[5])
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        prompts = runs.path("prompts.h5")
        run([golden_files, "prompts", prompts])
        check_figures(runs, prompts)
        check_ranks(runs, prompts)
        check_score_from(runs)
        check_continuations(runs)
        check_errors(runs)
        check_kills(runs, prompts)
        return runs.report()


sys.exit(main())
