#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows measurements of results.tsv: the last value of every (hardware, bench, shape) beside the one before
it, as a table. With --html one page of tables and plots: ladder, K sweep, step against floor, acceptance,
negative results; it needs no network.

  tools/report.py [FILE...] [--bench TEXT] [--hardware TEXT] [--all] [--html PAGE] [--png DIR]

FILEs, told apart by what is in them (default: docs/results.tsv):
  results.tsv   rows of `quadrille bench --append-tsv`: date, commit, hardware, bench, shape, value, unit, floor
                (the fraction of the floor of docs/design.md section 10; may be empty)
  runs.tsv      the runs of tools/ladder.sh
  *.h5          generations, read by `quadrille inspect --json`
"""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys

import report_page
import report_plot

COLUMNS = ["date", "commit", "hardware", "bench", "shape", "value", "unit", "floor"]
Row = collections.namedtuple("Row", COLUMNS)
RUN_COLUMNS = ["run", "exit", "seconds", "command"]
Run = collections.namedtuple("Run", RUN_COLUMNS)
HERE = os.path.dirname(os.path.abspath(__file__))


def read_table(path, lines, columns):
    """(line number, fields) of every line. ValueError names file, line, expected and found."""
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if line and len(fields) != len(columns):
            raise ValueError(f"{path}:{number}: expected {len(columns)} fields, found {len(fields)}")
        if line:
            yield number, fields


def read_rows(path, lines):
    """Rows in the order of the file."""
    rows = []
    for number, fields in read_table(path, lines, COLUMNS):
        row = Row(*fields)
        try:
            rows.append(row._replace(value=float(row.value),
                                     floor=float(row.floor) if row.floor else None))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: expected numbers as value and fraction: {error}") from None
    return rows


def read_tsv(path):
    """(rows, runs) of a file, whichever it holds."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    if lines[0].split("\t") == RUN_COLUMNS:
        return [], [Run(*fields) for _, fields in read_table(path, lines, RUN_COLUMNS)]
    if lines[0].split("\t") != COLUMNS:
        raise ValueError(f"{path}:1: expected the columns {', '.join(COLUMNS)}, found {lines[0]!r}")
    return read_rows(path, lines), []


def read_generations(path, program):
    """What the program says of the file."""
    done = subprocess.run([program, "inspect", "--json", "--limit", "0", path], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"{program} inspect {path}: exit code {done.returncode}")
    told = json.loads(done.stdout)
    if "acceptance" not in told:
        raise ValueError(f"{path}: expected generations, found {told['kind']}")
    return told


def find_program(name):
    """As named, else on PATH, else where the build leaves it."""
    build = os.path.join(HERE, "..", os.environ.get("QUADRILLE_BUILD", "build"), "jobs", "quadrille")
    return name or shutil.which("quadrille") or build


def series(rows):
    """{(hardware, bench, shape, unit): [rows by date]}, in order of first appearance."""
    groups = {}
    for row in rows:
        groups.setdefault((row.hardware, row.bench, row.shape, row.unit), []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: row.date)
    return groups


def table(rows, every):
    """Lines of text: of each series the last row, or all of them."""
    cells, hardware = [["bench", "shape", "value", "unit", "of floor", "change", "date", "commit"]], None
    for (machine, bench, shape, unit), group in sorted(series(rows).items(), key=lambda item: item[0][0]):
        if machine != hardware:
            cells.append([machine])
            hardware = machine
        before = None
        for i, row in enumerate(group):
            if every or i == len(group) - 1:
                change = "" if not before else f"{100 * (row.value / before - 1):+.1f} %"
                fraction = "" if row.floor is None else f"{100 * row.floor:.0f} %"
                cells.append([bench, shape, f"{row.value:.6g}", unit, fraction, change, row.date[:10],
                              row.commit])
            before = row.value
    width = [max(len(line[i]) for line in cells if len(line) > 1) for i in range(len(COLUMNS))]
    out = []
    for line in cells:
        if len(line) == 1:
            out.extend(["", line[0]])
            continue
        right = (2, 4, 5)
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, width)))
        out.append(("  " + "  ".join(padded)).rstrip())
    return out


def write_page(rows, runs, files, options):
    """The page and its pictures; lines that say what was written."""
    text, plots = report_page.page(rows, runs, files, series)
    said = []
    if options.html:
        with open(options.html, "w", encoding="utf-8") as f:
            f.write(text)
        said.append(f"{options.html}: {len(plots)} plots")
    if options.png:
        os.makedirs(options.png, exist_ok=True)
        for plot in plots:
            said.append(os.path.join(options.png, plot.name + ".png"))
            report_plot.png(plot, said[-1])
    return said


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[os.path.join(HERE, "..", "docs", "results.tsv")])
    parser.add_argument("--bench", default="", help="only benches that contain TEXT")
    parser.add_argument("--hardware", default="", help="only hardware that contains TEXT")
    parser.add_argument("--all", action="store_true", help="every measurement, not only the last")
    parser.add_argument("--html", metavar="PAGE", help="write the page there instead of the table")
    parser.add_argument("--png", metavar="DIR", help="write its plots there as PNG (needs matplotlib)")
    parser.add_argument("--program", default="", help="quadrille, for .h5 files [on PATH, else of the build]")
    return parser.parse_args()


def main():
    options = read_options()
    rows, runs, files = [], [], []
    try:
        for path in options.files:
            if path.endswith(".h5"):
                files.append(read_generations(path, find_program(options.program)))
                continue
            more_rows, more_runs = read_tsv(path)
            rows += [row for row in more_rows if options.bench in row.bench and options.hardware in row.hardware]
            runs += more_runs
        if options.html or options.png:
            print(*write_page(rows, runs, files, options), sep="\n")
            return 0
    except ImportError:
        print("report: --png: matplotlib is not installed", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows, options.all)) if rows else "report: no measurements")
    return 0


if __name__ == "__main__":
    sys.exit(main())
