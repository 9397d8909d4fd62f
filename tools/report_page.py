# SPDX-License-Identifier: Apache-2.0
"""The page of tools/report.py: tables and plots of bench rows, of the runs of a ladder and of acceptance
in generations. Pure: measurements in, HTML and plots out."""
import collections
import html
import re

import report_plot
from report_plot import Plot, Series

SHAPE = re.compile(r"(?P<target>.*), (?P<draft>[^,]*), (?P<backend>[\w-]+), (?P<ranks>\d+) ranks?, (?P<prompts>.*), "
                   r"(?P<new>\d+) new, batch (?P<batch>\d+), K (?P<k>\d+)(?P<rest>.*)")
# What `bench` measured: the fields of a row's shape. mode: how steps ran, and what carried messages.
Shape = collections.namedtuple("Shape", ["target", "draft", "backend", "ranks", "prompts", "new", "batch", "k", "mode"])
Config = collections.namedtuple("Config", ["hardware", "shape", "values", "floors"])
LEVERS = {"target": "pack", "draft": "drafter", "ranks": "ranks", "backend": "backend", "k": "K", "mode": "steps"}

STYLE = """body{font:14px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;background:#fff}
table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{padding:2px 8px;border-bottom:1px solid #ddd;
text-align:left}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}
h2{margin-top:2em}.note{color:#555}"""


def shape_of(text):
    """None for a shape that is not that of a run of bench."""
    found = SHAPE.fullmatch(text)
    if not found:
        return None
    fields = found.groupdict()
    mode = fields.pop("rest").strip(", ") or "no graphs"
    for name in ("ranks", "new", "batch", "k"):
        fields[name] = int(fields[name])
    if fields["k"] == 0:  # the drafter does nothing
        fields["draft"] = "no drafter"
    return Shape(mode=mode, **fields)


def configs_of(rows):
    """Of each hardware and shape the last value of every bench row."""
    found = {}
    for row in sorted(rows, key=lambda r: r.date):
        shape = shape_of(row.shape)
        if shape is None or not row.bench.startswith("bench "):
            continue
        config = found.setdefault((row.hardware, shape), Config(row.hardware, shape, {}, {}))
        config.values[row.bench[6:]] = row.value
        config.floors[row.bench[6:]] = row.floor
    return [c for c in found.values() if "decode" in c.values]


def title(shape, *without):
    """A configuration in words, less the fields that its surroundings tell."""
    words = {"target": shape.target, "draft": shape.draft, "ranks": f"{shape.backend}, {shape.ranks} rank{'' if shape.ranks == 1 else 's'}",
             "prompts": f"{shape.prompts}, {shape.new} new", "batch": f"batch {shape.batch}", "k": f"K {shape.k}",
             "mode": shape.mode}
    return ", ".join(text for name, text in words.items() if name not in without)


def number(value, form="{:.6g}"):
    return "" if value is None else form.format(value)


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def table(head, rows):
    """A column is flush right whose head ends with a blank."""
    right = [name.endswith(" ") for name in head]
    out = ["<table><tr>" + "".join(f'<th{" class=n" if r else ""}>{html.escape(h.strip())}</th>'
                                   for h, r in zip(head, right)) + "</tr>"]
    for row in rows:
        out.append("<tr>" + "".join(f'<td{" class=n" if r else ""}>{html.escape(str(c))}</td>'
                                    for c, r in zip(row, right)) + "</tr>")
    return "\n".join(out) + "</table>\n"


def curves(configs, along):
    """{(hardware, the rest in words): configs that differ in `along` alone}, two or more of them."""
    groups = {}
    for c in configs:
        key = c.shape._replace(**{along: 0})
        if along == "k":  # K = 0 belongs to every drafter
            key = key._replace(draft="")
        groups.setdefault((c.hardware, key), []).append(c)
    return {key: sorted(group, key=lambda c: getattr(c.shape, along)) for key, group in groups.items()
            if len({getattr(c.shape, along) for c in group}) > 1}


def pages_of(groups):
    """Curves that share a picture: of one machine and the same prompts."""
    pages = {}
    for (hardware, key), group in groups.items():
        pages.setdefault((hardware, key.prompts, key.new), []).append(group)
    return pages


def file_name(*words):
    return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(words)).strip("-").lower()


def ladder(configs, plots):
    out = []
    for (hardware, prompts, new), groups in pages_of(curves(configs, "batch")).items():
        series = [Series(title(g[0].shape, "batch", "prompts"), [(c.shape.batch, c.values["decode"]) for c in g])
                  for g in groups]
        plots.append(Plot(file_name("ladder", hardware, prompts, str(new)), f"{hardware}: {prompts}, {new} new",
                          "records at once", "tokens/s, decode", series, log_x=True))
        rows = [[s.label, c.shape.batch, number(c.values["decode"], "{:.1f}"), percent(c.floors.get("decode")),
                 number(c.values.get("prefill"), "{:.1f}"), number(c.values.get("step"), "{:.3f}"),
                 number(c.values.get("accept length"), "{:.3f}")] for s, g in zip(series, groups) for c in g]
        out += [report_plot.svg(plots[-1]), table(["configuration", "batch ", "decode tokens/s ", "of floor ",
                                                   "prefill tokens/s ", "step ms ", "accept length "], rows)]
    return out


def k_sweep(configs, plots):
    out = []
    for (hardware, prompts, new), groups in pages_of(curves(configs, "k")).items():
        series, rows = [], []
        for group in groups:
            draft = next((c.shape.draft for c in group if c.shape.k > 0), "")
            words = title(group[0].shape._replace(draft=draft), "k", "prompts")
            by_k = {c.shape.k: c for c in group}
            series.append(Series(words, [(k, by_k[k].values["decode"]) for k in sorted(by_k)]))
            best = max(by_k, key=lambda k: by_k[k].values["decode"])
            rows += [[words, k, number(by_k[k].values["decode"], "{:.1f}"),
                      number(by_k[k].values.get("accept length"), "{:.3f}"),
                      number(by_k[k].values.get("step"), "{:.3f}"), "best" if k == best else ""] for k in sorted(by_k)]
        plots.append(Plot(file_name("k", hardware, prompts, str(new)), f"{hardware}: {prompts}, {new} new",
                          "K, drafts a step", "tokens/s, decode", series))
        out += [report_plot.svg(plots[-1]), table(["configuration", "K ", "decode tokens/s ", "accept length ",
                                                   "step ms ", ""], rows)]
    return out


def floors(configs, plots):
    """Step beside floor: a picture a machine, a pair of bars a configuration."""
    out, most = [], 12
    machines = {}
    for c in configs:
        if "step" in c.values and "step floor" in c.values:
            machines.setdefault(c.hardware, []).append(c)
    for hardware, group in machines.items():
        group.sort(key=lambda c: (c.shape.batch, c.shape.k))
        shown = group[:most]
        series = [Series(name, [(i, c.values[key]) for i, c in enumerate(shown)])
                  for name, key in (("step", "step"), ("floor", "step floor"))]
        plots.append(Plot(file_name("floor", hardware), f"{hardware}: step against floor",
                          "configurations, numbered as in the table", "ms", series, "bars",
                          tuple(str(i + 1) for i in range(len(shown)))))
        rows = [[i + 1, title(c.shape), number(c.values["step"], "{:.3f}"), number(c.values["step floor"], "{:.3f}"),
                 percent(c.values["step floor"] / c.values["step"] if c.values["step"] else None)]
                for i, c in enumerate(group)]
        out += [report_plot.svg(plots[-1]), table(["", "configuration", "step ms ", "floor ms ", "of floor "], rows)]
    return out


def losses(configs, runs):
    """What changes of one thing lose against the best configuration of the same work, and runs that failed."""
    work = {}
    for c in configs:
        work.setdefault((c.hardware, c.shape.prompts, c.shape.new, c.shape.batch), []).append(c)
    out, rows = [], []
    for (hardware, prompts, new, batch), group in work.items():
        best = max(group, key=lambda c: c.values["decode"])
        for c in sorted(group, key=lambda c: -c.values["decode"]):
            differs = [name for name in LEVERS if getattr(c.shape, name) != getattr(best.shape, name)]
            if differs and (len(differs) == 1 or differs == ["draft", "k"]):  # K = 0 has no drafter
                change = c.values["decode"] / best.values["decode"] - 1
                changed = ", ".join(f"{LEVERS[d]} {getattr(best.shape, d)} → {getattr(c.shape, d)}" for d in differs)
                rows.append([f"{hardware}: {title(best.shape)}", number(best.values["decode"], "{:.1f}"), changed,
                             number(c.values["decode"], "{:.1f}"), f"{100 * change:+.1f} %"])
    if rows:
        out.append(table(["best", "tokens/s ", "changed", "tokens/s ", "change "], rows))
    last = {run.run: run for run in runs}  # a run that failed may have been started again
    failed = [[run.run, run.exit, run.seconds, run.command] for run in last.values() if run.exit != "0"]
    if failed:
        out += ["<p>Runs that failed:</p>", table(["run", "exit code ", "seconds ", "command"], failed)]
    return out


def rate(part, error):
    return "" if part is None else f"{part:.3f}" + ("" if error is None else f" ± {error:.3f}")


def acceptance(files, plots):
    """Of each generations file, as `quadrille inspect --json` tells it."""
    with_drafts = [f for f in files if f["acceptance"]["by_position"]]
    if not with_drafts:
        return []
    out = []
    deepest = max(len(f["acceptance"]["by_position"]) for f in with_drafts)
    series = [Series(f["file"], [(i + 1, p["rate"] or 0) for i, p in enumerate(f["acceptance"]["by_position"])],
                     [p["error"] or 0 for p in f["acceptance"]["by_position"]]) for f in with_drafts]
    plots.append(Plot("acceptance-by-position", "drafts accepted by position", "position in the block",
                      "part of the steps", series))
    rows = [[f["file"], kind, a["records"], rate(a["accept_length"], a["accept_length_error"])]
            + [rate(p["rate"], p["error"]) for p in a["by_position"]] + [""] * (deepest - len(a["by_position"]))
            for f in with_drafts for kind, a in [("all", f["acceptance"]), *f["kinds"].items()]]
    head = ["file", "kind", "records ", "accept length "] + [f"{i + 1} " for i in range(deepest)]
    out += [report_plot.svg(plots[-1]), "<p class=note>± one standard error, records being independent.</p>",
            table(head, rows)]
    kinds = sorted({kind for f in with_drafts for kind in f["kinds"]})
    if kinds:
        series = [Series(f["file"], [(i, f["kinds"][kind]["accept_length"]) for i, kind in enumerate(kinds) if knows(f, kind)],
                         [f["kinds"][kind]["accept_length_error"] or 0 for kind in kinds if knows(f, kind)])
                  for f in with_drafts]
        plots.append(Plot("acceptance-by-kind", "accept length by kind", "kind", "accept length", series, "bars",
                          tuple(kinds)))
        out.append(report_plot.svg(plots[-1]))
    return out


def knows(file, kind):
    return kind in file["kinds"] and file["kinds"][kind]["accept_length"] is not None


def others(rows, series):
    """Every measurement of other programs and jobs: the last value of each."""
    groups = series([row for row in rows if shape_of(row.shape) is None or not row.bench.startswith("bench ")])
    lines = [[hardware, bench, shape, f"{group[-1].value:.6g}", unit, percent(group[-1].floor), group[-1].date[:10],
              group[-1].commit] for (hardware, bench, shape, unit), group in groups.items()]
    if not lines:
        return []
    return [f"<details><summary>{len(lines)} measurements</summary>",
            table(["machine", "bench", "shape", "value ", "unit", "of floor ", "date", "commit"], lines), "</details>"]


def page(rows, runs, files, series):
    """(HTML, plots). A section without measurements is left out."""
    configs, plots = configs_of(rows), []
    sections = [("Ladder: records at once", ladder(configs, plots)), ("Drafts a step", k_sweep(configs, plots)),
                ("Step against floor", floors(configs, plots)), ("Acceptance", acceptance(files, plots)),
                ("Negative results", losses(configs, runs)), ("Other measurements", others(rows, series))]
    body = "".join(f"<h2>{name}</h2>\n" + "\n".join(parts) + "\n" for name, parts in sections if parts)
    dates = sorted(row.date for row in rows)
    when = f"<p class=note>Measured {dates[0][:10]} to {dates[-1][:10]}.</p>" if dates else ""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Quadrille: measurements</title>'
            f"<style>{STYLE}</style></head><body><h1>Measurements</h1>{when}\n{body}</body></html>\n"), plots
