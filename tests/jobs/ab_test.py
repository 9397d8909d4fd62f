#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quadrille ab: what it says of two drafters' generations is what the files say. TAP; for its
arguments see tests/jobs/demo_runs.py."""
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
        files = [runs.generate("sharded", prompts, 1, tokens), runs.generate("other", prompts, 1, tokens)]
        other_k = runs.generate("one draft", prompts, 1, [*tokens, "--k", "1"])
        report = runs.path("report.json")
        text = run([runs.program, "ab", *files, "--json", report])
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
        records = runs.unpack(files[0])
        sums = [sum(record["acceptance"][name] for record in records) for name in ("steps", "accepted")]
        base, second = found["results"]
        runs.check("accept length is that of the file",
                   abs(base["accept_length"]["value"] - 1 - sums[1] / sums[0]) < 1e-12, text)
        runs.check("the same drafter gains nothing",
                   second["gain"] == {"value": 0.0, "low": 0.0, "high": 0.0}, text)
        runs.check("its interval holds the value",
                   base["accept_length"]["low"] < base["accept_length"]["value"] < base["accept_length"]["high"], text)
        runs.check("it tells tokens/s", found["drafters"][0]["tokens_per_second"] > 0, text)
        runs.check("the table has every draft", "draft 2" in text and "draft 3" not in text, text)
        done = subprocess.run([runs.program, "ab", files[0], other_k], capture_output=True, text=True, check=False)
        runs.check("another K is refused", done.returncode == 3 and "k: expected 2" in done.stderr, done.stderr)
        done = subprocess.run([runs.program, "ab", files[0], prompts[0]], capture_output=True, text=True, check=False)
        runs.check("prompts are no generations", done.returncode == 3, done.stderr)
        done = subprocess.run([runs.program, "ab", files[0]], capture_output=True, text=True, check=False)
        runs.check("one file is not enough", done.returncode == 2, done.stderr)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
