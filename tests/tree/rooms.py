# SPDX-License-Identifier: Apache-2.0
"""The rooms of the tree, the folders inside the top folders (docs/design.md §2): which may use which,
that no two use each other, that each is described, that tests lie in rooms of the same name."""
import os
import re

CODE = (".h", ".cpp", ".c", ".cu", ".cuh", ".def")
LAYERS = ["kernels", "io", "runtime", "drafter", "jobs"]

# Room -> the rooms of its top folder that it may use beside itself; a room that is not here uses none.
USES = {
    "kernels/cpu": ["kernels"],
    "kernels/cuda": ["kernels"],
    "kernels/cuda/draft": ["kernels", "kernels/cuda"],
    "kernels/cuda/exl3": ["kernels", "kernels/cuda"],
    "kernels/cuda/kda": ["kernels", "kernels/cuda"],
    "kernels/cuda/quantize": ["kernels", "kernels/cuda"],
    "kernels/cuda/native": ["kernels", "kernels/cuda", "kernels/cuda/exl3"],  # the output form of a product
    "kernels/cuda/mla": ["kernels", "kernels/cuda", "kernels/cuda/native"],  # its tiles
    "kernels/cuda/moe": ["kernels", "kernels/cuda", "kernels/cuda/exl3", "kernels/cuda/native"],
    "kernels/check": ["kernels"],
    "kernels/quantize": ["kernels"],
    "io/h5": ["io"],
    "io/capture": ["io", "io/h5"],
    "io/text": ["io"],
    "io/checkpoint": ["io", "io/text"],
    "io/prompts": ["io", "io/text", "io/h5"],
    "io/results": ["io", "io/text", "io/h5", "io/prompts"],
    "runtime/model": ["runtime/ranks"],
    "runtime/sampling": ["runtime/ranks", "runtime/model"],
    "runtime/calibration": ["runtime/ranks", "runtime/model", "runtime"],
    "runtime": ["runtime/ranks", "runtime/model", "runtime/sampling"],
    "jobs/common": ["jobs/options"],
    "jobs/files": ["jobs/options", "jobs/common"],
    "jobs/prompts": ["jobs/options", "jobs/common", "jobs/files"],
    "jobs/roofline": ["jobs/options", "jobs/common"],
    "jobs/generate": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/roofline"],
    "jobs/plan": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/generate"],
    "jobs/bench": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/roofline"],
    "jobs/eval": ["jobs/options", "jobs/common", "jobs/prompts"],
    "jobs/ab": ["jobs/options", "jobs/common"],
    "jobs/probe": ["jobs/options", "jobs/common"],
    "jobs/train": ["jobs/options", "jobs/common"],
    "jobs/capture": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/generate"],
    "jobs/quantize": ["jobs/options", "jobs/common", "jobs/prompts"],
    "jobs/score": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/generate"],
    "jobs/verify": ["jobs/options", "jobs/common", "jobs/prompts", "jobs/generate"],
    "jobs": ["jobs/ab", "jobs/eval", "jobs/probe", "jobs/train", "jobs/capture", "jobs/options", "jobs/common", "jobs/files", "jobs/prompts", "jobs/generate", "jobs/plan", "jobs/bench", "jobs/quantize", "jobs/score", "jobs/verify"],
    "drafter/train": ["drafter/dflash2"],  # the modules of a drafter
    "drafter": ["drafter/dflash2"],
}
# Files that put the rooms beside and below them together; they may use all of them.
ASSEMBLE = [
    r"kernels/backend\.cpp",
    r"kernels/make_train_ops\.h",
    r"kernels/trellis_encoder\.cpp",
    r"kernels/cuda/(cuda_backend|products|machine_rates|workspace|launch)\.\w+",
    r"jobs/common/provenance\.(h|cpp)",  # writes down the options of generate
    r"jobs/options/parser\.cpp",  # prints the version, which is provenance too
]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def room(path):
    return os.path.dirname(path)


def is_source(path):
    return path.endswith(CODE) and path.split("/", 1)[0] in LAYERS


def rooms_in_order(files):
    """Includes inside a top folder follow USES."""
    for path, text in files.items():
        if not is_source(path) or any(re.fullmatch(p, path) for p in ASSEMBLE):
            continue
        for m in INCLUDE.finditer(text):
            name, own = m.group(1), room(path)
            other = room(name)
            if other == own or name.split("/", 1)[0] != own.split("/", 1)[0]:
                continue
            if other not in USES.get(own, []):
                line = text.count("\n", 0, m.start()) + 1
                yield f"{path}:{line}: {own}/ may not use {other}/ ({name}): tests/tree/rooms.py"


def circles(uses):
    """Rooms that use each other by way of any others."""
    def reach(start):
        found, to_do = set(), list(uses.get(start, []))
        while to_do:
            at = to_do.pop()
            if at not in found:
                found.add(at)
                to_do += uses.get(at, [])
        return found
    return [start for start in uses if start in reach(start)]


def no_circles(_):
    for start in circles(USES):
        yield f"tests/tree/rooms.py: {start}/ uses itself by way of others"


def rooms_are_described(files):
    """docs/design.md §2 names every room: a top folder at the start of a line, its rooms below it."""
    text = files.get("docs/design.md")
    if text is None:
        return
    section = text.partition("\n## 2.")[2].partition("\n## 3.")[0]
    described = {top: set() for top in LAYERS}
    at = ""
    for line in section.split("\n"):
        top = re.match(r"(\w+)/", line)
        if top and top.group(1) in LAYERS:
            at = top.group(1)
            described[at].add(at)
        elif at and (names := re.match(r"  ((?:[\w/]+/ +)+)", line)):
            described[at] |= {f"{at}/{name.rstrip('/')}" for name in names.group(1).split()}
    known = set().union(*described.values())
    there = {room(path): path for path in files if is_source(path)}
    for name in sorted(set(there) - known):
        yield f"docs/design.md: section 2 does not describe the room of {there[name]}"
    for name in sorted(known - set(there) - set(LAYERS)):
        yield f"docs/design.md: section 2 describes {name}/, which has no sources"


def tests_mirror_rooms(files):
    there = {room(path) for path in files if is_source(path)} | set(LAYERS)
    for path in files:
        top, _, rest = path.partition("/")
        if top == "tests" and rest.split("/", 1)[0] in LAYERS and room(rest) not in there:
            yield f"{path}: there is no {room(rest)}/ that it could test"


RULES = [rooms_in_order, no_circles, rooms_are_described, tests_mirror_rooms]
