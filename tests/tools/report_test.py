# SPDX-License-Identifier: Apache-2.0
"""tools/report.py and tools/ladder.sh: the page has the numbers that were measured, its plots are pictures
that are not blank, a ladder goes on after a failure and behind what it has; TAP.
Usage: report_test.py MPIRUN QUADRILLE SOURCE_FOLDER"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib

import paint

MPIRUN, QUADRILLE, SOURCE = map(os.path.abspath, sys.argv[1:4])
MODELS = os.path.join(SOURCE, "tests", "data", "models")
TARGET, DRAFT = (os.path.join(MODELS, name) for name in ("demo-full-4bpw", "demo-dflash2"))
TOOLS = os.path.join(SOURCE, "tools")
COLUMNS = "date\tcommit\thardware\tbench\tshape\tvalue\tunit\tfloor\n"
SHAPE = "pack, {draft}, cuda, 4 ranks, 128 made-up tokens, 64 new, batch {batch}, K {k}, {mode}"


def expect(true, what):
    if not true:
        raise AssertionError(what)


def run(*command, code=0, **env):
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env={**os.environ, **env})
    expect(done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def report(*arguments, **more):
    return run(sys.executable, os.path.join(TOOLS, "report.py"), *arguments, "--program", QUADRILLE, **more)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def page(folder, *files):
    out = os.path.join(folder, "page.html")
    report(*files, "--html", out)
    return read(out)


def plots(text):
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


def look(svg):
    """A picture that is one: of its size, neither blank nor full, nothing outside, its title and axes there."""
    picture = paint.Painting(svg)
    expect(picture.width == 720 and 400 <= picture.height <= 600, f"{picture.width} x {picture.height}")
    expect(0.005 < picture.part_painted() < 0.5, f"{100 * picture.part_painted():.1f} % painted")
    expect(not picture.outside, f"outside of the picture: {picture.outside[:2]}")
    expect(len(picture.colours()) >= 4, f"colours {picture.colours()}")
    expect(len(picture.texts) >= 6, f"texts {picture.texts}")
    return picture


def rows(*configs):
    """Rows of results.tsv for (draft, batch, K, mode, decode rate, step, floor)."""
    text = COLUMNS
    for draft, batch, k, mode, rate, step, floor in configs:
        shape = SHAPE.format(draft=draft, batch=batch, k=k, mode=mode)
        for bench, value in (("decode", rate), ("step", step), ("step floor", floor)):
            text += f"2026-12-01T10:00:00Z\tabc\tGPU <&>\tbench {bench}\t{shape}\t{value}\tunit\t\n"
    return text


def project_results(folder):
    """The measurements of the project: one page that asks no network for anything."""
    text = page(folder)
    for word in ("<script", "<link", "<img", "src=", "href=", "@import", "url("):
        expect(word not in text, f"{word} in the page")
    expect(set(re.findall(r"https?://[^\"' ]*", text)) <= {"http://www.w3.org/2000/svg"}, "addresses in the page")
    expect(len(plots(text)) >= 5, f"{len(plots(text))} plots")
    for svg in plots(text):
        look(svg)
    for title in ("Ladder", "Drafts a step", "Step against floor", "Negative results", "Other measurements"):
        expect(f"<h2>{title}" in text, title)


def known_numbers(folder):
    """Made measurements: what is best, what loses and by how much, and where the points lie."""
    tsv = write(os.path.join(folder, "results.tsv"), rows(
        ("d1", 1, 2, "graphs", 100, 10, 6), ("d1", 4, 2, "graphs", 200, 20, 9), ("d1", 16, 2, "graphs", 400, 40, 30),
        ("d1", 1, 0, "graphs", 60, 8, 6), ("d1", 1, 4, "graphs", 80, 14, 7), ("d1", 1, 2, "eager", 75, 13, 6),
        ("d2", 1, 2, "graphs", 90, 10, 6)))
    runs = write(os.path.join(folder, "runs.tsv"), "run\texit\tseconds\tcommand\nk-7\t5\t3\tbench <x>\nk-3\t4\t1\tbench\n"
                 "k-3\t0\t1\tbench\n")
    text = page(folder, tsv, runs)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    lost = {row[2]: row[4] for row in cells if len(row) == 5 and "→" in row[2]}
    expect(lost == {"drafter d1 → d2": "-10.0 %", "K 2 → 4": "-20.0 %", "steps graphs → eager": "-25.0 %",
                    "drafter d1 → no drafter, K 2 → 0": "-40.0 %"}, f"negative results {lost}")
    expect(["k-7", "5", "3", "bench &lt;x&gt;"] in cells and not any(row[:1] == ["k-3"] for row in cells),
           "the run that failed, not the one that was done again")
    best = [row[1] for row in cells if row and row[-1] == "best"]
    expect(best == ["2"], f"best K {best}")
    expect("GPU &lt;&amp;&gt;" in text and "GPU <&>" not in text, "names are text, not HTML")
    expect(any(row[-3:] == ["10.000", "6.000", "60 %"] for row in cells), "step against floor")
    look_at_points(plots(text)[0])
    for svg in plots(text):
        look(svg)


def look_at_points(svg):
    """The ladder of 1, 4 and 16 records: equal steps to the right, heights as the rates 100, 200, 400."""
    points = re.search(r'<polyline points="([^"]*)"', svg).group(1).split()
    (x1, y1), (x2, y2), (x3, y3) = (tuple(map(float, point.split(","))) for point in points)
    bottom = float(re.search(r'y1="([\d.]+)" y2="\1" stroke="#000000"', svg).group(1))
    expect(abs((x2 - x1) - (x3 - x2)) < 0.3, "a logarithmic axis")
    expect(abs((bottom - y2) - 2 * (bottom - y1)) < 0.5 and abs((bottom - y3) - 4 * (bottom - y1)) < 0.5, "heights")


def acceptance(folder):
    """Generations of prompts with kinds: rates and standard errors as counted from the records."""
    lines = os.path.join(folder, "lines.jsonl")
    with open(os.path.join(SOURCE, "tests", "data", "demo_prompts.jsonl"), encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file]
    for i, prompt in enumerate(prompts):
        prompt["kind"] = ["prose", "code & more", "docs"][i % 3]
    write(lines, "".join(json.dumps(prompt) + "\n" for prompt in prompts))
    out = os.path.join(folder, "out.h5")
    run(QUADRILLE, "generate", "--target", TARGET, "--draft", DRAFT, "--prompts", lines, "--out", out,
        "--max-new-tokens", "16", "--backend", "cpu")
    told = json.loads(run(QUADRILLE, "inspect", "--json", out).stdout)
    records = [json.loads(line)["acceptance"] for line in run(QUADRILLE, "unpack", out).stdout.splitlines()]
    for kind, sums in [(None, told["acceptance"]), *told["kinds"].items()]:
        chosen = [r for i, r in enumerate(records) if kind in (None, prompts[i]["kind"])]
        steps = [r["steps"] for r in chosen]
        for i, position in enumerate(sums["by_position"]):
            counts = [r["by_position"][i] for r in chosen]
            rate = sum(counts) / sum(steps)
            spread = sum((x - rate * s) ** 2 for x, s in zip(counts, steps)) * len(steps) / (len(steps) - 1)
            expect(abs(position["rate"] - rate) < 1e-12, f"{kind}: rate")
            expect(abs(position["error"] - spread ** 0.5 / sum(steps)) < 1e-9, f"{kind}: standard error")
    expect(set(told["kinds"]) == {"prose", "code & more", "docs"}, f"kinds {set(told['kinds'])}")
    text = page(folder, out)
    expect("code &amp; more" in text and f"{told['acceptance']['accept_length']:.3f} ±" in text, "the table of kinds")
    expect(len(plots(text)) == 2, "by position and by kind")
    for svg in plots(text):
        look(svg)


def ladder(folder, ranks):
    """A rung fails, the others are measured; the same command does what is missing alone."""
    out = os.path.join(folder, f"ladder-{ranks}")
    command = [os.path.join(TOOLS, "ladder.sh"), TARGET, DRAFT, "--out", out, "--ranks", str(ranks), "--concurrency", "1,3",
               "--ks", "0,2", "--pack", os.path.join(folder, "no such pack"), "--drafter", DRAFT, "--prompt-tokens", "8",
               "--new-tokens", "6"]
    env = {"QUADRILLE": QUADRILLE, "PATH": os.path.dirname(MPIRUN) + os.pathsep + os.environ["PATH"]}
    done = run(*command, code=1, **env)
    expect("1 runs failed" in done.stderr, done.stderr)
    good = ["concurrency-1", "concurrency-3", "k-0", "eager", "drafter-1-demo-dflash2"]
    bad = "pack-1-no-such-pack"
    found = [line.split("\t")[:2] for line in read(os.path.join(out, "runs.tsv")).splitlines()[1:]]
    expect(sorted(name for name, code in found if code == "0") == sorted(good), f"runs {found}")
    expect([name for name, code in found if code != "0"] == [bad], f"runs {found}")
    fields = read(os.path.join(SOURCE, "io", "FORMAT.md"))
    for name in good:
        bench = json.loads(read(os.path.join(out, name + ".json")))
        expect(bench["ranks"] == ranks, f"{name}: ranks")
        for key in [*bench, *bench["runs"][0], *bench["runs"][0]["step_work"]["all"]]:
            expect(f"`{key}`" in fields, f"{key} is not in FORMAT.md")
        one = bench["runs"][0]
        expect(one["request_count"] == bench["records"] and one["aggregate_tps"] > 0, f"{name}: names of others")
    decode = [line for line in read(os.path.join(out, "results.tsv")).splitlines() if "\tbench decode\t" in line]
    expect(len(decode) == len(good), f"{len(decode)} rows of decode")
    text = read(os.path.join(out, "report.html"))
    expect("<h2>Ladder" in text and bad in text, "the page")
    again = run(*command, code=1, **env)
    expect(again.stdout.count("done before") == len(good), again.stdout)
    expect(len(read(os.path.join(out, "results.tsv")).splitlines()) > len(decode), "rows are there once")
    expect(read(os.path.join(out, "results.tsv")).count("\tbench decode\t") == len(good), "rows are there once")


def bad_files(folder):
    """What is wrong is told with its place."""
    broken = write(os.path.join(folder, "broken.tsv"), COLUMNS + "a\tb\n")
    expect("broken.tsv:2: expected 8 fields, found 2" in report(broken, code=1).stderr, "fields")
    other = write(os.path.join(folder, "other.h5"), "nothing")
    expect("other.h5" in report(other, "--html", os.path.join(folder, "no.html"), code=1).stderr, "not HDF5")
    expect(not os.path.exists(os.path.join(folder, "no.html")), "no page of broken files")


def png_pixels(path):
    """(width, height, part of the pixels that are not white) of an 8-bit RGBA or RGB file."""
    with open(path, "rb") as file:
        data = file.read()
    expect(data[:8] == b"\x89PNG\r\n\x1a\n", "a PNG")
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    expect(depth == 8 and kind in (2, 6), f"depth {depth}, kind {kind}")
    packed, at = b"", 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + length] if name == b"IDAT" else b""
        at += length + 12
    step = 4 if kind == 6 else 3
    raw, before, dark = zlib.decompress(packed), bytes(width * step), 0
    for y in range(height):
        method, line = raw[y * (width * step + 1)], bytearray(raw[y * (width * step + 1) + 1:(y + 1) * (width * step + 1)])
        unfilter(method, line, before, step)
        dark += sum(line[x:x + 3] != b"\xff\xff\xff" for x in range(0, len(line), step))
        before = line
    return width, height, dark / (width * height)


def unfilter(method, line, before, step):
    for i in range(len(line)):
        left, up, corner = (line[i - step] if i >= step else 0), before[i], (before[i - step] if i >= step else 0)
        guess = left + up - corner
        nearest = min((left, up, corner), key=lambda value: abs(guess - value))
        line[i] = (line[i] + (0, left, up, (left + up) // 2, nearest)[method]) & 255


def png(folder):
    """The same plots as PNG; without matplotlib the command says so."""
    tsv = write(os.path.join(folder, "few.tsv"), rows(("d1", 1, 2, "graphs", 100, 10, 6), ("d1", 4, 2, "graphs", 200, 20, 9)))
    out = os.path.join(folder, "png")
    if subprocess.run([sys.executable, "-c", "import matplotlib"], capture_output=True, check=False).returncode != 0:
        expect("matplotlib is not installed" in report(tsv, "--png", out, code=1).stderr, "the message")
        return "SKIP no matplotlib"
    names = [line for line in report(tsv, "--png", out).stdout.splitlines() if line.endswith(".png")]
    expect(len(names) == 2, f"{names}")
    for name in names:
        width, height, part = png_pixels(name)
        expect(width >= 800 and height >= 400 and 0.01 < part < 0.6, f"{name}: {width} x {height}, {100 * part:.1f} %")
    return ""


def main():
    cases = [project_results, known_numbers, acceptance, bad_files, png, lambda folder: ladder(folder, 1),
             lambda folder: ladder(folder, 2)]
    names = [case.__name__.replace("_", " ") for case in cases[:5]] + ["ladder", "ladder on 2 ranks"]
    print(f"1..{len(cases)}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, case in zip(names, cases):
            note = ""
            try:
                note = case(folder) or ""
                problem = None
            except Exception as error:  # whatever it is, the other cases go on
                problem = f"{type(error).__name__}: {error}"
            good = good and problem is None
            if problem:
                print("\n".join("# " + line for line in problem.splitlines()), file=sys.stderr)
            print(f"{'not ok' if problem else 'ok'} - {name}{' # ' + note if note else ''}", flush=True)
    return 0 if good else 1


sys.exit(main())
