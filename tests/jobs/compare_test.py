#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille compare: what it says of runs of the same prompts is what their files say. TAP; for its arguments see
tests/jobs/demo_runs.py."""
import json
import subprocess
import sys
import tempfile

from demo_runs import DemoRuns, run


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        prompts = [runs.pack("prompts", runs.demo_prompts())]
        tokens = ["--max-new-tokens", "16"]
        base = runs.generate("base", prompts, 1, tokens)
        more = runs.generate("three drafts", prompts, 2, [*tokens, "--k", "3"])
        warm = runs.generate("sampled", prompts, 1, [*tokens, "--temperature", "1", "--seed", "9"])
        report = runs.path("report.json")
        text = run([runs.program, "compare", base, more, warm, "--json", report])
        with open(report, encoding="utf-8") as file:
            first, second, third = json.load(file)["files"]
        records = {out: runs.unpack(out) for out in (base, more, warm)}
        count = len(records[base])
        runs.check("a file is equal to itself", first["equal"] == count and first["first_different_record"] == -1, text)
        runs.check("speculation changes nothing", second["equal"] == count and "k 2, 3" in second["differs_in"], text)
        pairs = list(zip(records[base], records[warm], strict=True))
        equal = sum(a["tokens"] == b["tokens"] and a["finish_reason"] == b["finish_reason"] for a, b in pairs)
        where = next(i for i, (a, b) in enumerate(pairs) if a["tokens"] != b["tokens"])
        a, b = pairs[where][0]["tokens"], pairs[where][1]["tokens"]
        token = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        runs.check("the first difference is found", third["equal"] == equal < count
                   and (third["first_different_record"], third["first_different_token"]) == (where, token), f"{third}")
        runs.check("and told", f"record {where}, token {token}" in text and "temperature 0, 1" in text, text)
        for out, told in ((base, first), (more, second), (warm, third)):
            steps, accepted = (sum(record["acceptance"][name] for record in records[out]) for name in ("steps", "accepted"))
            runs.check(f"acceptance of {told['file'][-16:]}", abs(told["accept_length"]["value"] - 1 - accepted / steps) < 1e-12
                       and len(told["by_position"]) == told["k"], text)
            ends = sum(record["finish_reason"] == "length" for record in records[out])
            runs.check(f"ends of {told['file'][-16:]}", told["finish_reasons"]["length"] == ends
                       and told["tokens"] == sum(len(record["tokens"]) for record in records[out]), text)
        other = runs.generate("other", [runs.lines("other.jsonl", [{"tokens": [5, 6]}])], 1, tokens)
        for name, files, code, word in (("other prompts", [base, other], 3, "expected the prompts of"),
                                        ("one file", [base], 2, "at least two"),
                                        ("no generations", [base, prompts[0]], 3, "generations")):
            done = subprocess.run([runs.program, "compare", *files], capture_output=True, text=True, check=False)
            runs.check(f"refused: {name}", done.returncode == code and word in done.stderr, done.stderr)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
