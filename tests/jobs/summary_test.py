# SPDX-License-Identifier: Apache-2.0
"""What generate says at its end, on 1, 2 and 4 ranks, in one group and in two: where the time went, step against
floor, latencies, acceptance by position and kind, rows of measurements.
Usage: summary_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""
import json
import os
import re
import subprocess
import sys
import tempfile

from demo_runs import DemoRuns, run

COLUMNS = ["date", "commit", "hardware", "bench", "shape", "value", "unit", "floor"]


def generate(runs, prompts, name, ranks, *more):
    launcher = [runs.mpirun, "-n", str(ranks)] if ranks > 1 else []
    return run([*launcher, runs.program, "generate", "--target", runs.target, "--draft", runs.drafter, "--prompts", prompts,
                "--out", runs.path(name + ".h5"), "--max-new-tokens", "24", "--append-tsv", runs.path("results.tsv"), *more])


def seconds_of(said):
    """The table of times, by title."""
    lines = said[said.index("time went to"):].splitlines()[1:]
    rows = {}
    for line in lines:
        found = re.match(r"  (\S.*?) +([0-9.]+) +[0-9]+ %", line)
        if not found:
            break
        rows[found.group(1)] = float(found.group(2))
    return rows


def check_summary(runs, title, said, groups):
    times = seconds_of(said)
    collectives = times.pop("(collectives)", None)
    total = float(re.search(r"^time +([0-9.]+) s", said, re.MULTILINE).group(1))
    runs.check(f"{title}: the times of the table are those of the start", abs(sum(times.values()) - total) < 0.02 + 0.1 * total,
               said)
    runs.check(f"{title}: every phase is named", {"start-up", "prefill", "draft", "verify", "accept", "reading", "writing"}
               <= set(times) and ("idle" in times) == (groups > 1) and collectives is not None, said)
    step = re.search(r"^step +([0-9.]+) ms; at best ([0-9.]+) ms \(([0-9]+) %\): \w", said, re.MULTILINE)
    passes = re.search(r"passes of ([0-9.]+) ms", said)
    runs.check(f"{title}: the step beside its floor", step and 0 < float(step.group(2)) and step.group(1) == passes.group(1), said)
    latency = re.search(r"^latency +([0-9.]+) / ([0-9.]+) / ([0-9.]+) / ([0-9.]+) s a record", said, re.MULTILINE)
    values = [float(value) for value in latency.groups()] if latency else []
    runs.check(f"{title}: latencies ascend and end within the run", values == sorted(values) and values and values[-1] <= total, said)
    runs.check(f"{title}: acceptance with errors, by position and kind",
               re.search(r"^accept length +[0-9.]+ ± [0-9.]+ at K = 2; drafts accepted by position: [0-9.]+ [0-9.]+ \(± ", said,
                         re.MULTILINE) and re.search(r"^  code +6 +[0-9.]+ ± ", said, re.MULTILINE), said)


def check_rows(runs, runs_made):
    with open(runs.path("results.tsv"), encoding="utf-8") as file:
        lines = [line.split("\t") for line in file.read().splitlines()]
    runs.check("rows have the columns of docs/results.tsv, once", lines[0] == COLUMNS and lines.count(COLUMNS) == 1
               and all(len(line) == len(COLUMNS) for line in lines), str(lines[:2]))
    benches = {line[3] for line in lines[1:]}
    runs.check("rows tell rates, steps, floors, latencies and acceptance",
               {"generate prefill", "generate decode", "generate step", "generate step floor", "generate latency p99",
                "generate accept length"} <= benches, str(benches))
    shapes = {line[4] for line in lines[1:]}
    runs.check("a shape a run", len(shapes) == runs_made, str(shapes))
    tools = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "report.py")
    done = subprocess.run([sys.executable, tools, runs.path("results.tsv"), "--html", runs.path("page.html")],
                          capture_output=True, text=True, check=False)
    with open(runs.path("page.html"), encoding="utf-8") as file:
        runs.check("the page has them", done.returncode == 0 and "generate decode" in file.read(), done.stderr)


def check_refusals(runs, prompts):
    for name, path, code in (("a folder that is not there", runs.path("none/x.tsv"), 4), ("another file", prompts, 2)):
        done = subprocess.run([runs.program, "generate", "--target", runs.target, "--prompts", prompts, "--out",
                               runs.path("refused.h5"), "--append-tsv", path], capture_output=True, text=True, check=False)
        runs.check(f"--append-tsv refuses {name} before the run", done.returncode == code and path in done.stderr
                   and not os.path.exists(runs.path("refused.h5.parts")), f"exit {done.returncode}: {done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = DemoRuns(folder)
        prompts = runs.pack("prompts", [{**line, "kind": ("prose", "code")[i % 2]} for i, line in enumerate(runs.demo_prompts())])
        for name, ranks, groups, more in (("one", 1, 1, ()), ("two", 2, 1, ()), ("four", 4, 1, ()), ("groups", 4, 2, ("--tp", "2"))):
            check_summary(runs, name, generate(runs, prompts, name, ranks, *more), groups)
        told = [json.loads(run([runs.program, "inspect", "--json", runs.path(name + ".h5")])) for name in ("one", "groups")]
        runs.check("statistics are the same on any ranks", told[0]["acceptance"] == told[1]["acceptance"]
                   and told[0]["kinds"] == told[1]["kinds"], str(told))
        for facts in (one["provenance"] for one in told):
            runs.check("the only start is all starts", facts["all_starts_tokens_written"] == facts["last_start_tokens_written"]
                       == 12 * 24 and facts["all_starts_seconds"] == facts["last_start_seconds"], str(facts))
        check_rows(runs, 4)
        check_refusals(runs, prompts)
        return runs.report()


if __name__ == "__main__":
    sys.exit(main())
