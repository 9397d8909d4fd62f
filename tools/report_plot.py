# SPDX-License-Identifier: Apache-2.0
"""Plots of tools/report.py and tools/train_plot.py: what is plotted as data, drawn as SVG for a page without
network, or as a PNG by matplotlib where that is installed.

A picture is 720 x 400 points. An SVG consists of line, polyline, rect, circle and text alone.
"""
import collections
import html
import math

# label: of the legend; points: (x, y); errors: a standard error a point, or nothing.
Series = collections.namedtuple("Series", ["label", "points", "errors"], defaults=[None])
# kind: "line" or "bars" (points then stand at 0, 1, ... and `names` are below them); log_x: base 2.
Plot = collections.namedtuple("Plot", ["name", "title", "x", "y", "series", "kind", "names", "log_x"],
                              defaults=["line", (), False])

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 48
LEGEND_LINE = 16
MOST_LABELS = 10  # series that the legend names
LONGEST_LABEL = 96  # letters
MOST_PLACES = 12  # of points that the x axis names one by one
# Okabe and Ito's colours, told apart by most people.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f00", "#000000"]


def colour(i):
    return COLOURS[i % len(COLOURS)]


def ticks(most):
    """Round numbers from 0 to at least `most`, five or so of them."""
    if most <= 0:
        return [0, 1]
    step = 10 ** math.floor(math.log10(most / 5))
    step = next(step * m for m in (1, 2, 5, 10) if step * m * 5.0001 >= most)
    return [step * i for i in range(int(math.ceil(most / step - 1e-9)) + 1)]


def largest(plot):
    """The top of the highest point or error bar."""
    return max((y + (s.errors[i] if s.errors else 0) for s in plot.series for i, (_, y) in enumerate(s.points)),
               default=1)


def element(name, text=None, **attributes):
    inner = "".join(f' {key.replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items())
    return f"<{name}{inner}/>" if text is None else f"<{name}{inner}>{html.escape(text)}</{name}>"


class Picture:
    """One plot as SVG: places numbers, keeps what is drawn."""

    def __init__(self, plot):
        self.plot, self.out = plot, []
        self.legend = min(len(plot.series), MOST_LABELS) * LEGEND_LINE
        self.bottom = HEIGHT - BOTTOM
        self.height = HEIGHT + self.legend
        self.ticks = ticks(largest(plot))
        xs = [x for s in plot.series for x, _ in s.points] or [0, 1]
        self.xs = sorted(set(xs))
        low, high = self.scale(min(xs)), self.scale(max(xs))
        room = 0.6 if plot.kind == "bars" else max(0.03 * (high - low), 0.1)
        self.low, self.high = low - room, high + room

    def scale(self, x):
        return math.log2(x) if self.plot.log_x else x

    def x(self, value):
        part = (self.scale(value) - self.low) / (self.high - self.low)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value):
        return round(self.bottom - value / self.ticks[-1] * (self.bottom - TOP), 1)

    def add(self, name, text=None, **attributes):
        self.out.append(element(name, text, **attributes))

    def text(self, x, y, text, anchor="middle", size=11, **more):
        self.add("text", text, x=x, y=y, text_anchor=anchor, font_size=size, **more)

    def axes(self):
        self.text(WIDTH / 2, 18, self.plot.title, size=14, font_weight="bold")
        for tick in self.ticks:
            self.add("line", x1=LEFT, x2=WIDTH - RIGHT, y1=self.y(tick), y2=self.y(tick), stroke="#dddddd")
            self.text(LEFT - 6, self.y(tick) + 4, f"{tick:g}", "end")
        places = self.xs if len(self.xs) <= MOST_PLACES else [x for x in ticks(self.xs[-1]) if x <= self.xs[-1]]
        names = dict(enumerate(self.plot.names)) if self.plot.kind == "bars" else {x: f"{x:g}" for x in places}
        room = (WIDTH - LEFT - RIGHT) / max(1, len(names)) / 6.2  # letters that find room below a place
        for x, name in names.items():
            self.text(self.x(x), self.bottom + 16, name if len(name) <= room else name[:max(1, int(room) - 1)] + "…")
        self.add("line", x1=LEFT, x2=WIDTH - RIGHT, y1=self.bottom, y2=self.bottom, stroke="#000000")
        self.add("line", x1=LEFT, x2=LEFT, y1=TOP, y2=self.bottom, stroke="#000000")
        self.text((LEFT + WIDTH - RIGHT) / 2, self.bottom + 36, self.plot.x)
        middle = (TOP + self.bottom) / 2
        self.text(14, middle, self.plot.y, transform=f"rotate(-90 14 {middle:g})")

    def error(self, x, value, size):
        low, high = self.y(max(0, value - size)), self.y(value + size)
        self.add("line", x1=x, x2=x, y1=low, y2=high, stroke="#444444")

    def line(self, i, series):
        places = [(self.x(x), self.y(y)) for x, y in series.points]
        self.add("polyline", points=" ".join(f"{x},{y}" for x, y in places), fill="none", stroke=colour(i),
                 stroke_width=2)
        for n, (place, (x, y)) in enumerate(zip(places, series.points)):
            if series.errors:
                self.error(place[0], y, series.errors[n])
            self.out.append(f'<circle cx="{place[0]}" cy="{place[1]}" r="3.5" fill="{colour(i)}">'
                            + element("title", f"{series.label}: {x:g}, {y:.6g}") + "</circle>")

    def bars(self, i, series):
        unit = (WIDTH - LEFT - RIGHT) / (self.high - self.low)
        width = 0.8 * unit / len(self.plot.series)
        for n, (x, y) in enumerate(series.points):
            left = self.x(x) - 0.4 * unit + i * width
            self.out.append(f'<rect x="{left:.1f}" y="{self.y(y)}" width="{max(1.0, 0.94 * width):.1f}" '
                            f'height="{self.bottom - self.y(y):.1f}" fill="{colour(i)}">'
                            + element("title", f"{series.label}: {y:.6g}") + "</rect>")
            if series.errors:
                self.error(round(left + 0.47 * width, 1), y, series.errors[n])

    def svg(self):
        self.add("rect", x=0, y=0, width=WIDTH, height=self.height, fill="#ffffff")
        self.axes()
        for i, series in enumerate(self.plot.series):
            (self.bars if self.plot.kind == "bars" else self.line)(i, series)
        for i, series in enumerate(self.plot.series[:MOST_LABELS]):
            y = HEIGHT + i * LEGEND_LINE
            more = len(self.plot.series) - MOST_LABELS
            label = f"and {more + 1} more" if i == MOST_LABELS - 1 and more > 0 else series.label
            self.add("rect", x=LEFT, y=y - 1, width=10, height=10, fill=colour(i))
            if len(label) > LONGEST_LABEL:
                label = label[:LONGEST_LABEL // 2] + "…" + label[1 - LONGEST_LABEL // 2:]
            self.text(LEFT + 16, y + 8, label, "start")
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
                f'height="{self.height}" font-family="sans-serif">\n' + "\n".join(self.out) + "\n</svg>\n")


def svg(plot):
    return Picture(plot).svg()


def column(plots):
    """One SVG of several plots, each below the one before."""
    pictures = [Picture(plot) for plot in plots]
    height, parts = 0, []
    for picture in pictures:
        parts.append(picture.svg().replace("<svg ", f'<svg y="{height}" ', 1))
        height += picture.height
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}">\n' + "".join(parts) + "</svg>\n")


def png(plot, path):
    """ImportError where there is no matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for i, series in enumerate(plot.series):
        xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
        if plot.kind == "bars":
            width = 0.8 / len(plot.series)
            axes.bar([x - 0.4 + (i + 0.5) * width for x in xs], ys, 0.94 * width, yerr=series.errors, label=series.label,
                     color=colour(i))
        else:
            axes.errorbar(xs, ys, yerr=series.errors, marker="o", label=series.label, color=colour(i))
    if plot.kind == "bars":
        axes.set_xticks(range(len(plot.names)), plot.names)
    else:
        places = sorted({x for s in plot.series for x, _ in s.points})
        if plot.log_x:
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{x:g}" for x in places])
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(0, -0.12))
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
