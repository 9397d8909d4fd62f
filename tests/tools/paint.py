# SPDX-License-Identifier: Apache-2.0
"""Paints the SVG of tools/report_plot.py into pixels: lines, polylines, rectangles and circles; texts as boxes of
their size. Enough to see whether a picture has its size, is not blank and has nothing outside of it."""
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.55  # of the font size: the mean width of a letter


class Painting:
    def __init__(self, svg):
        root = ElementTree.fromstring(svg)
        _, _, width, height = (float(part) for part in root.get("viewBox").split())
        self.width, self.height = int(width), int(height)
        self.pixels = {}  # (x, y) -> colour; white where there is none
        self.outside = []  # elements that leave the picture
        self.texts = []
        for element in root.iter():
            name = element.tag.removeprefix(SVG)
            draw = getattr(self, "draw_" + name, None)
            if draw:
                draw(element)
            elif name not in ("svg", "title"):
                raise ValueError(f"an element that is not painted: {name}")

    def numbers(self, element, *names):
        return [float(element.get(name)) for name in names]

    def put(self, element, x, y, colour):
        x, y = round(x), round(y)
        if not (0 <= x <= self.width and 0 <= y <= self.height):
            self.outside.append(ElementTree.tostring(element, encoding="unicode"))
        elif colour != "#ffffff":
            self.pixels[x, y] = colour

    def stroke(self, element, x1, y1, x2, y2, colour):
        steps = max(1, round(max(abs(x2 - x1), abs(y2 - y1))))
        for i in range(steps + 1):
            self.put(element, x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps, colour)

    def draw_line(self, element):
        self.stroke(element, *self.numbers(element, "x1", "y1", "x2", "y2"), element.get("stroke"))

    def draw_polyline(self, element):
        places = [tuple(map(float, place.split(","))) for place in element.get("points").split()]
        for a, b in zip(places, places[1:]):
            self.stroke(element, *a, *b, element.get("stroke"))

    def draw_rect(self, element):
        x, y, width, height = self.numbers(element, "x", "y", "width", "height")
        for row in range(round(height) + 1):
            self.stroke(element, x, y + row, x + width, y + row, element.get("fill"))

    def draw_circle(self, element):
        x, y, radius = self.numbers(element, "cx", "cy", "r")
        for row in range(-int(radius), int(radius) + 1):
            half = (radius * radius - row * row) ** 0.5
            self.stroke(element, x - half, y + row, x + half, y + row, element.get("fill"))

    def draw_text(self, element):
        x, y, size = self.numbers(element, "x", "y", "font-size")
        self.texts.append(element.text)
        length = LETTER * size * len(element.text)
        if element.get("transform"):  # turned by a quarter around its middle
            self.stroke(element, x, y - length / 2, x, y + length / 2, "#111111")
            return
        left = x - {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")] * length
        self.stroke(element, left, y - size / 2, left + length, y - size / 2, "#111111")

    def part_painted(self):
        return len(self.pixels) / (self.width * self.height)

    def colours(self):
        return set(self.pixels.values())
