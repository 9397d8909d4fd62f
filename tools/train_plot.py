#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows train.tsv of `quadrille train`: validations as a table; with --plot an SVG of losses and accept
length over the steps, losses of training steps as means of equal shares of the run.

  tools/train_plot.py DIR/train.tsv [--plot OUT.svg] [--points N]
"""
import argparse
import os
import sys

import report_plot
from report_plot import Plot, Series

COLUMNS = ["step", "what", "rate", "loss", "block_ce", "kl", "selector", "anchor", "hidden", "norm", "accept_length",
           "accept_length_head", "teacher_forced"]
SHOWN = ["step", "loss", "block_ce", "kl", "selector", "anchor", "hidden", "accept_length", "teacher_forced"]


def read(path):
    """{what: [row]}, a row being {column: number}. ValueError names file, line, expected and found."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    if not lines or lines[0].split("\t") != COLUMNS:
        raise ValueError(f"{path}:1: expected the columns {', '.join(COLUMNS)}, found {lines[0] if lines else ''!r}")
    rows = {"train": [], "validation": []}
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != len(COLUMNS) or fields[1] not in rows:
            raise ValueError(f"{path}:{number}: expected {len(COLUMNS)} fields of a step or validation, found {line!r}")
        try:
            rows[fields[1]].append({name: float(field) for name, field in zip(COLUMNS, fields) if name != "what"})
        except ValueError as error:
            raise ValueError(f"{path}:{number}: expected numbers: {error}") from None
    return rows


def means(rows, column, points):
    """(step, mean) of equal shares of the rows, at the middle of each share's steps."""
    points = min(points, len(rows))
    shares = [rows[i * len(rows) // points:(i + 1) * len(rows) // points] for i in range(points)]
    return [((share[0]["step"] + share[-1]["step"]) / 2, sum(row[column] for row in share) / len(share))
            for share in shares]


def table(rows):
    cells = [SHOWN] + [[f"{row[c]:.0f}" if c == "step" else f"{row[c]:.4f}" for c in SHOWN] for row in rows]
    width = [max(len(line[i]) for line in cells) for i in range(len(SHOWN))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(line, width)) for line in cells]


def svg(rows, points):
    plots = []
    for column, title in (("loss", "loss over steps"), ("accept_length", "accept length over steps")):
        series = [Series("train", means(rows["train"], column, points))] if rows["train"] else []
        series.append(Series("validation", [(row["step"], row[column]) for row in rows["validation"]]))
        plots.append(Plot(column, title, "step", column.replace("_", " "), series))
    return report_plot.column(plots)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("--plot", metavar="OUT.svg", help="write a picture there")
    parser.add_argument("--points", type=int, default=50, help="of the training loss, at most [50]")
    options = parser.parse_args()
    if options.points < 1:
        parser.error(f"--points: expected 1 or more, found {options.points}")
    try:
        rows = read(options.file)
        if not rows["validation"]:
            raise ValueError(f"{options.file}: expected a validation or more, found none")
        print("\n".join(table(rows["validation"])))
        if options.plot:
            with open(options.plot, "w", encoding="utf-8") as file:
                file.write(svg(rows, options.points))
    except (OSError, ValueError) as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
