#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows measurements of docs/results.tsv: the last value of every (hardware, bench, shape) beside the
one before it, as a table; with --plots a PNG a bench as well, where matplotlib is installed.

  tools/report.py [FILE] [--bench TEXT] [--hardware TEXT] [--all] [--plots DIR]

Columns of the file: date, commit, hardware, bench, shape, value, unit, floor (the fraction of the floor of
docs/design.md section 10; may be empty). `quadrille bench --append-tsv FILE` writes such rows.
"""
import argparse
import collections
import os
import re
import sys

COLUMNS = ["date", "commit", "hardware", "bench", "shape", "value", "unit", "floor"]
Row = collections.namedtuple("Row", COLUMNS)


def read_rows(path):
    """Rows in the order of the file. ValueError names file, line, expected and found."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    if lines[0].split("\t") != COLUMNS:
        raise ValueError(f"{path}:1: expected the columns {', '.join(COLUMNS)}, found {lines[0]!r}")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != len(COLUMNS):
            raise ValueError(f"{path}:{number}: expected {len(COLUMNS)} fields, found {len(fields)}")
        row = Row(*fields)
        try:
            rows.append(row._replace(value=float(row.value),
                                     floor=float(row.floor) if row.floor else None))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: expected numbers as value and fraction: {error}") from None
    return rows


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


def plot(rows, folder):
    """One PNG a bench: a line for each hardware and shape over the measurements. Paths written."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    os.makedirs(folder, exist_ok=True)
    by_bench = {}
    for (machine, bench, shape, unit), group in series(rows).items():
        by_bench.setdefault((bench, unit), []).append((f"{machine}: {shape}", group))
    paths = []
    for (bench, unit), lines in by_bench.items():
        figure, axes = pyplot.subplots(figsize=(10, 5))
        for title, group in lines:
            axes.plot([row.date[:16].replace("T", " ") for row in group], [row.value for row in group],
                      marker="o", label=title)
        axes.set(title=bench, ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.tick_params(axis="x", rotation=30)
        axes.legend(fontsize="x-small")
        figure.tight_layout()
        paths.append(os.path.join(folder, re.sub(r"[^A-Za-z0-9]+", "-", bench).strip("-") + ".png"))
        figure.savefig(paths[-1], dpi=120)
        pyplot.close(figure)
    return paths


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=os.path.join(here, "..", "docs", "results.tsv"))
    parser.add_argument("--bench", default="", help="only benches that contain TEXT")
    parser.add_argument("--hardware", default="", help="only hardware that contains TEXT")
    parser.add_argument("--all", action="store_true", help="every measurement, not only the last")
    parser.add_argument("--plots", metavar="DIR", help="write a PNG a bench there")
    options = parser.parse_args()
    try:
        rows = [row for row in read_rows(options.file)
                if options.bench in row.bench and options.hardware in row.hardware]
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    if not rows:
        print("report: no measurements")
        return 0
    print("\n".join(table(rows, options.all)))
    if options.plots:
        try:
            print("", *plot(rows, options.plots), sep="\n")
        except ImportError:
            print("report: matplotlib is not installed: no plots", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
