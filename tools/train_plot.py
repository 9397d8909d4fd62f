#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows train.tsv of `quadrille train`: validations as a table; with --plot an SVG of losses and accept
length over the steps, losses of training steps as means of equal shares of the run.

  tools/train_plot.py DIR/train.tsv [--plot OUT.svg] [--points N]
"""
import argparse
import html
import os
import sys

COLUMNS = ["step", "what", "rate", "loss", "block_ce", "kl", "selector", "anchor", "hidden", "norm", "accept_length",
           "accept_length_head", "teacher_forced"]
SHOWN = ["step", "loss", "block_ce", "kl", "selector", "anchor", "hidden", "accept_length", "teacher_forced"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 260, 56, 16, 28, 32
COLOURS = {"train": "#0072b2", "validation": "#d55e00"}


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


def chart(title, lines, top, last):
    """SVG elements of one chart: lines {name: [(step, value)]}, whose origin is (0, 0) and 0 at the left."""
    most = max((y for points in lines.values() for _, y in points), default=0) * 1.05 or 1
    place = lambda x, y: (round(LEFT + x / max(last, 1) * (WIDTH - LEFT - RIGHT), 1),
                          round(top + HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM), 1))
    out = [f'<text x="{WIDTH / 2}" y="{top + 16}" text-anchor="middle" font-weight="bold">{html.escape(title)}</text>']
    for i in range(5):
        y = place(0, most * i / 4)[1]
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{most * i / 4:.3g}</text>')
        x = place(last * i / 4, 0)[0]
        out.append(f'<text x="{x}" y="{top + HEIGHT - BOTTOM + 18}" text-anchor="middle">{last * i / 4:g}</text>')
    for n, (name, points) in enumerate(lines.items()):
        places = " ".join(f"{x},{y}" for x, y in (place(*p) for p in points))
        out.append(f'<polyline points="{places}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - RIGHT - 90 * (2 - n)}" y="{top + 16}" fill="{COLOURS[name]}">{name}</text>')
    return out


def svg(rows, points):
    last = max(row["step"] for of in rows.values() for row in of)
    out = []
    for n, (column, title) in enumerate((("loss", "loss over steps"), ("accept_length", "accept length over steps"))):
        lines = {"train": means(rows["train"], column, points)} if rows["train"] else {}
        lines["validation"] = [(row["step"], row[column]) for row in rows["validation"]]
        out += chart(title, lines, n * HEIGHT, last)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * HEIGHT}" width="{WIDTH}" '
            f'height="{2 * HEIGHT}" font-family="sans-serif" font-size="11">\n<rect width="{WIDTH}" '
            f'height="{2 * HEIGHT}" fill="#ffffff"/>\n' + "\n".join(out) + "\n</svg>\n")


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
