#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench job as a whole; TAP. Every run writes the same tokens, for any K, concurrency and number
of ranks; its JSON, table and rows hold together; tools/report.py reads the rows; bad input ends as
documented.   bench_test.py --program QUADRILLE --maker MAKE_BAD_INPUTS --mpirun MPIRUN --models DIR
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

COLUMNS = ["date", "commit", "hardware", "bench", "shape", "value", "unit", "floor"]
REPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "report.py")


class Failed(Exception):
    pass


def expect(true, what):
    if not true:
        raise Failed(what)


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.digests = options, folder, {}
        self.h5 = os.path.join(folder, "h5")
        os.mkdir(self.h5)
        subprocess.run([options.maker, self.h5], check=True)
        self.demo = os.path.join(options.models, "demo-full-4bpw")
        self.drafter = os.path.join(options.models, "demo-dflash2")
        self.toy = os.path.join(options.models, "toy-vocab768")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, ranks, *arguments):
        command = [self.options.program, "bench", *arguments]
        if ranks:
            command = [self.options.mpirun, "-n", str(ranks)] + command
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)

    def measure(self, ranks, *arguments):
        """The JSON of a run that must succeed, and its standard output."""
        file = self.path("report.json")
        done = self.run(ranks, *arguments, "--json", file)
        expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
        with open(file, encoding="utf-8") as f:
            return json.load(f), done.stdout

    # ---- cases -----------------------------------------------------------------------------------
    def speculation(self, ranks):
        """K and concurrency change nothing but speed."""
        rows = self.path("results.tsv")
        report, text = self.measure(ranks, "--target", self.demo, "--draft", self.drafter, "--k", "0,2,7",
                                    "--concurrency", "1,3", "--prompt-tokens", "20", "--new-tokens", "9",
                                    "--append-tsv", rows)
        runs = report["runs"]
        expect([(r["concurrency"], r["k"]) for r in runs] == [(1, 0), (1, 2), (1, 7), (3, 0), (3, 2), (3, 7)],
               "a run for every concurrency and K, in that order")
        expect(report["tokens_equal"] is True, "tokens_equal")
        digests = {r["tokens_digest"] for r in runs}
        expect(len(digests) == 1, f"one digest, found {digests}")
        digest = digests.pop()
        expect(self.digests.setdefault("speculation", digest) == digest, "the same tokens on 1 and 2 ranks")
        expect(text.count(digest) == 6, "the digest in every line of the table")
        expect((report["ranks"], report["records"], report["prompt_tokens"]) == (ranks or 1, 3, 60),
               "ranks, records and prompt tokens")
        for run in runs:
            self.sound(run)
        one, many = runs[0], runs[3]
        expect(one["decode_records"] == one["decode_passes"] == 24, "3 records of 8 steps, one at a time")
        expect(many["decode_records"] == 24 and many["decode_passes"] == 8, "3 records at a time")
        expect(many["step_work"]["all"]["state_bytes"] > 2.9 * one["step_work"]["all"]["state_bytes"],
               "state of three records")
        expect(runs[1]["step_work"]["draft head"]["exl3_weights"] == runs[1]["step_work"]["head"]["exl3_weights"],
               "the head once more for the draft")
        expect(set(report["exl3_weights_per_second"]) == {"4 bits mul1", "5 bits mul1", "6 bits mul1"},
               f"a ruler for every form, found {report['exl3_weights_per_second']}")

    def sampled(self):
        """Draws with every option: the same tokens for every K, concurrency and number of ranks."""
        digests = set()
        for ranks in (0, 2):
            report, text = self.measure(ranks, "--target", self.demo, "--draft", self.drafter, "--k", "0,2",
                                        "--concurrency", "1,3", "--prompt-tokens", "20", "--new-tokens", "9",
                                        "--temperature", "1", "--top-p", "0.95", "--top-k", "900",
                                        "--repetition-penalty", "1.3", "--logprobs", "2")
            expect(report["tokens_equal"] is True, "tokens_equal")
            told = "temperature 1, top_p 0.95, top_k 900, repetition_penalty 1.3, logprobs 2"
            expect(report["draws"] == told and told in text, f"the draws are told, found {report['draws']}")
            digests |= {r["tokens_digest"] for r in report["runs"]}
        expect(len(digests) == 1, f"one digest, found {digests}")
        expect(digests != {self.digests["speculation"]}, "other tokens than the greedy ones")

    @staticmethod
    def sound(run):
        what = f"K {run['k']}, concurrency {run['concurrency']}: "
        expect(run["prefill_tokens"] == 60 and run["decode_tokens"] == 24, what + "tokens counted")
        for key in ("prefill_seconds", "decode_seconds", "prefill_fraction", "decode_fraction",
                    "prefill_tokens_per_second", "decode_tokens_per_second", "step_floor_seconds"):
            expect(run[key] > 0 and math.isfinite(run[key]), what + key)
        parts = sum(run[key] for key in ("draft_seconds", "verify_seconds", "accept_seconds", "context_seconds"))
        expect(0.5 * run["decode_seconds"] < parts <= run["decode_seconds"], what + "the split adds up")
        expect(run["collective_seconds"] < run["decode_seconds"], what + "collectives are a part")
        expect(math.isclose(run["step_seconds"] * run["decode_passes"], run["decode_seconds"]), what + "step")
        expect((run["draft_seconds"] > 1e-4) == (run["k"] > 0), what + "drafts take time")
        expect(1 <= run["accept_length"] <= run["k"] + 1, what + "accept length")
        expect(0 < run["prefill_passes"] <= 3, what + "prefill passes")

    def rows(self):
        """What the runs before appended: eight columns, one first line."""
        with open(self.path("results.tsv"), encoding="utf-8") as f:
            lines = [line.split("\t") for line in f.read().splitlines()]
        expect(lines[0] == COLUMNS, f"columns, found {lines[0]}")
        expect(all(len(line) == len(COLUMNS) for line in lines), "eight fields in every row")
        expect(sum(line == COLUMNS for line in lines) == 1, "the columns once")
        benches = {line[3] for line in lines[1:]}
        expect({"bench read", "bench prefill", "bench decode", "bench step", "bench accept length"} <= benches,
               f"benches, found {benches}")
        expect(all(float(line[5]) >= 0 for line in lines[1:]), "values are numbers")
        for line in lines[1:]:
            expect((line[7] != "") == (line[3] in ("bench prefill", "bench decode", "bench step", "bench step collectives")),
                   f"a fraction where there is a floor: {line}")
        expect(len({line[4] for line in lines if line[3] == "bench decode"}) == 12, "a shape a configuration")

    def report(self):
        """tools/report.py shows them."""
        done = subprocess.run([sys.executable, REPORT, self.path("results.tsv"), "--bench", "bench decode"],
                              capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
        expect(done.stdout.count("tokens/s") == 12, f"12 lines, found\n{done.stdout}")
        broken = self.path("broken.tsv")
        with open(broken, "w", encoding="utf-8") as f:
            f.write("\t".join(COLUMNS) + "\na\tb\n")
        done = subprocess.run([sys.executable, REPORT, broken], capture_output=True, text=True, check=False)
        expect(done.returncode == 1 and "broken.tsv:2: expected 8 fields, found 2" in done.stderr, done.stderr)

    def prompts_file(self):
        """A file's prompts, and the median of repeats."""
        report, text = self.measure(0, "--target", self.toy, "--prompts", os.path.join(self.h5, "good.h5"),
                                    "--new-tokens", "3", "--concurrency", "2", "--repeat", "3")
        expect(report["records"] == 3 and report["prompt_tokens"] == 9, "all records of the file")
        expect(report["prompts"] == "good.h5" and "good.h5" in text, "the file is named")
        expect(report["runs"][0]["decode_tokens"] == 6, "no end token ends a record")
        limited, _ = self.measure(0, "--target", self.toy, "--prompts", os.path.join(self.h5, "good.h5"),
                                  "--limit", "1", "--new-tokens", "1", "--concurrency", "2")
        expect(limited["records"] == 1, "--limit")
        expect(limited["runs"][0]["step_seconds"] is None, "no decode pass, no step")

    def bad(self, code, part, *arguments, ranks=0):
        done = self.run(ranks, *arguments)
        expect(done.returncode == code, f"expected exit code {code}, found {done.returncode}: {done.stderr}")
        expect(done.stderr.count(part) == 1, f"expected {part!r} once in: {done.stderr}")

    def bad_input(self):
        """Bad input ends with one line before anything is measured."""
        target, quick = ["--target", self.toy], ["--new-tokens", "1", "--prompt-tokens", "1"]
        self.bad(2, "--target: expected a checkpoint folder")
        self.bad(2, "--k: expected 0 without a drafter", *target, "--k", "2", ranks=2)
        self.bad(2, "8 drafts per step: expected 0 to 7", "--target", self.demo, "--draft", self.drafter,
                 "--k", "0,8", ranks=2)
        self.bad(3, "this drafter does not fit the target", *target, "--draft", self.drafter)
        self.bad(3, self.path("none"), "--target", self.path("none"), ranks=2)
        self.bad(4, "none/x.tsv: cannot write in the folder", *target, *quick, "--append-tsv", self.path("none/x.tsv"))
        self.bad(4, "none/x.json: cannot write in the folder", *target, *quick, "--json", self.path("none/x.json"))
        self.bad(3, "expected a first line of", *target, *quick, "--append-tsv",
                 os.path.join(self.toy, "config.json"), ranks=2)
        self.bad(2, "expected at most 2048 in all", *target, "--prompt-tokens", "2048")
        self.bad(3, "expected records, found none", *target, "--prompts", os.path.join(self.h5, "no-records.h5"))
        self.bad(2, "--tp 1: 2 ranks would form 2 groups", *target, "--tp", "1", ranks=2)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--program", "--maker", "--mpirun", "--models"):
        parser.add_argument(flag, required=True)
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        cases = [("equal tokens for every K and concurrency, alone", lambda: bench.speculation(0)),
                 ("the same on 2 ranks", lambda: bench.speculation(2)), ("rows of results", bench.rows),
                 ("report of results", bench.report), ("a file's prompts", bench.prompts_file),
                 ("sampled steps", bench.sampled),
                 ("bad input", bench.bad_input)]
        print(f"1..{len(cases)}")
        for claim, case in cases:
            try:
                case()
                print("ok -", claim, flush=True)
            except (Failed, OSError, ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
                good = False
                print("\n".join("# " + line for line in f"{type(error).__name__}: {error}".splitlines()),
                      file=sys.stderr)
                print("not ok -", claim, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
