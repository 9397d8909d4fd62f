#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/design.md §1 and CONTRIBUTING.md that need no compiler, as TAP, one point a rule.

rules.py [ROOT]: each rule, those of rooms.py too, is a function (files) -> list of complaints, files being {path: text} of
the sources below ROOT. rules_selftest.py plants violations to see that every rule notices its own.
"""
import os
import re
import subprocess
import sys

import cpp_functions
import rooms
from rooms import CODE, LAYERS

SOURCES = CODE + (".py", ".sh", ".sbatch", ".build", ".md", ".txt")

# Foreign header -> where it may be included (full-match patterns of paths).
FOREIGN = {
    "mpi.h": [r"runtime/ranks/mpi\.(h|cpp)", r"runtime/ranks/comm_mpi\.cpp", r"tests/support/\w*main\w*\.cpp",
              r"tests/support/failing_rank\.c"],
    "nccl.h": [r"runtime/ranks/comm_nccl\.cpp"],
    "hdf5.h": [r"io/h5/h5\w*\.(h|cpp)", r"tests/support/golden\.cpp"],
    "cuda_runtime.h": [r"kernels/cuda/.*", r"runtime/ranks/comm_nccl\.cpp"],
}
LONGEST = 400  # lines
LONGER = {  # files that are not split, and how long they may be
    "tools/reference/exl3_ref.py": 570,
}
LONGEST_FUNCTION = 60  # lines
MOST_PARAMETERS = 8
# Device functions that are always inlined; a struct would be built for each call.
MORE_PARAMETERS = {
    "kernels/cuda/exl3/exl3_product_inputs.cuh": ["rotate_expert_rows"],
    "kernels/cuda/mla/index_score.cuh": ["score_tile"],
}
LONGEST_PARAGRAPH = 900  # characters
# Kernels that do something else before they wait for those launched before them.
WAIT_LATER = {
    "kernels/cuda/exl3/exl3_large.cuh": ["exl3_large_kernel"],
    "kernels/cuda/exl3/exl3_large_end.cu": ["exl3_large_end_kernel"],
    "kernels/cuda/exl3/exl3_product.cuh": ["exl3_product_kernel"],
    "kernels/cuda/hyper.cu": ["gates_kernel"],
    "kernels/cuda/mla/mla_project.cu": ["project_kernel"],
    "kernels/cuda/mla/mla_project_plain.cu": ["absorb_kernel", "expand_kernel"],
    "kernels/cuda/moe/moe.cu": ["combine_kernel"],
    "kernels/cuda/native/native_stream.cuh": ["native_stream_kernel"],
    "kernels/cuda/native/native_tiled.cu": ["native_tiled_kernel"],
    "kernels/cuda/exl3/exl3_rotate.cu": ["rotate_few_kernel", "rotate_kernel"],
    "kernels/cuda/rows.cu": ["rms_norm_kernel"],
    "kernels/cuda/moe/router.cu": ["route_few_kernel"],
}
NEVER_WAIT = ["kernels/cuda/machine_rates.cu",  # plain launches
              "kernels/cuda/quantize/feed_back.cu", "kernels/cuda/quantize/viterbi.cu"]
WAIT = "wait_for_earlier_kernels()"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def top(path):
    return path.split("/", 1)[0]


def included(text):
    """(line number, quote, name) of every include."""
    for m in INCLUDE.finditer(text):
        yield text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)


def foreign_headers(files):
    for path, text in files.items():
        if not path.endswith(CODE):
            continue
        for line, quote, name in included(text):
            if quote == '"' and name in files:  # runtime/ranks/mpi.h is ours
                continue
            allowed = FOREIGN.get(os.path.basename(name) if "/" in name else name)
            if allowed and not any(re.fullmatch(p, path) for p in allowed):
                yield f"{path}:{line}: {name} may not be included here"


def no_upward_include(files):
    for path, text in files.items():
        folder = top(path)
        if folder not in LAYERS or not path.endswith(CODE):
            continue
        allowed = LAYERS[:LAYERS.index(folder) + 1]
        for line, quote, name in included(text):
            if quote == '"' and top(name) not in allowed:
                yield f"{path}:{line}: {folder}/ may not include {name}"


def includes_from_root(files):
    for path, text in files.items():
        if not path.endswith(CODE):
            continue
        for line, quote, name in included(text):
            if quote == '"' and name not in files:
                yield f"{path}:{line}: {name} is no path from the root"


def backends_are_private(files):
    """Above kernels/ compute is reached through kernels/backend.h only."""
    for path, text in files.items():
        if top(path) in ("kernels", "tests") or path == "runtime/ranks/comm_nccl.cpp":
            continue
        for line, _, name in included(text):
            if name.startswith(("kernels/cpu/", "kernels/cuda/", "kernels/check/")):
                yield f"{path}:{line}: {name} is private to kernels/"


def length(files):
    for path, text in files.items():
        if path.endswith(CODE + (".py", ".sh")):
            limit = LONGER.get(path, LONGEST)
            lines = text.count("\n")
            if lines > limit:
                yield f"{path}: {lines} lines, at most {limit}"


def functions_are_short(files):
    for path, text in files.items():
        if not path.endswith(CODE):
            continue
        more = set(MORE_PARAMETERS.get(path, []))
        for f in cpp_functions.functions(text):
            if f.lines > LONGEST_FUNCTION:
                yield f"{path}:{f.line}: {f.name} has {f.lines} lines, at most {LONGEST_FUNCTION}"
            if f.parameters > MOST_PARAMETERS and f.name not in more:
                yield f"{path}:{f.line}: {f.name} has {f.parameters} parameters, at most {MOST_PARAMETERS}"


def paragraphs(text):
    """(line number, text) of every paragraph and list item of a page; tables and code are none."""
    code, lines, start = False, [], 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        skipped = fence or code or not line.strip() or line.lstrip().startswith(("|", "#"))
        if lines and (skipped or re.match(r"\s*([*-]|\d+\.) ", line)):
            yield start, " ".join(lines)
            lines = []
        if not skipped:
            start = start if lines else number
            lines.append(line.strip())


def paragraphs_are_short(files):
    for path, text in files.items():
        if path.endswith(".md"):
            for line, paragraph in paragraphs(text):
                if len(paragraph) > LONGEST_PARAGRAPH:
                    yield f"{path}:{line}: a paragraph of {len(paragraph)} characters, at most {LONGEST_PARAGRAPH}"


def comments_begin_with_a_subject(files):
    for path, text in files.items():
        if path.endswith(CODE):
            before = ""
            for number, line in enumerate(text.split("\n"), 1):
                begins = not before.startswith("//") or before.endswith("License-Identifier: Apache-2.0")
                before = line.strip()
                found = re.match(r"// (Of|For|With|Where|Whether)\b", before)
                if begins and found:
                    yield f"{path}:{number}: a comment begins with '{found.group(1)}': name the subject first"


def licence_line(files):
    for path, text in files.items():
        if path.endswith(CODE + (".py", ".sh", ".sbatch")):
            head = text.split("\n", 2)
            line = head[1] if head[0].startswith("#!") and len(head) > 1 else head[0]
            if not line.endswith("SPDX-License-Identifier: Apache-2.0"):
                yield f"{path}: no SPDX line at the top"


def pragma_once(files):
    for path, text in files.items():
        if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.M):
            yield f"{path}: no #pragma once"


# Written in pieces, so that this file passes its own rules.
PLACES = re.compile(r"(?<![\w./$}-])/(?:" + "|".join(["work", "root", "home", "farm"]) + r")\b/?")
WORDS = re.compile("|".join([
    r"\bFIX" r"ME\b", r"\bXX" r"X\b", r"\bTO" r"DO\b(?!\s*\(#\d+\))", r"(?i:" + "|".join([
        r"\.libra" r"ry/", r"\bthis ses" r"sion\b", r"\bthe device to" r"ol\b", r"\bwork" r"place\b", r"\bas an A" r"I\b",
        r"\bchat" r"gpt\b", r"\bcla" r"ude\b", r"\bpy" r"pi\.org", r"pythonho" r"sted\.org", r"\bdeb\.deb" r"ian\.org",
        r"archive\.ub" r"untu\.com", r"\bissue #?\d+\b"]) + ")"]))


def no_machine_paths(files):
    for path, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            if PLACES.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()[:80]}"


def no_stray_words(files):
    for path, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            found = WORDS.search(line)
            if found:
                yield f"{path}:{number}: '{found.group(0)}' does not belong here"


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def kernels_of(text):
    """(line number, name, text from its body on) of every kernel that is defined."""
    for m in re.finditer(r"\b__global__\b([^;{]*)\{", text):
        name = re.findall(r"(\w+)\s*\(", m.group(1))[-1]  # behind launch bounds
        yield text.count("\n", 0, m.start()) + 1, name, text[m.end():]


def kernels_wait(files):
    """A kernel that can end before those ahead of it lets a later one overtake them."""
    for path, text in files.items():
        if top(path) != "kernels" or not path.endswith((".cu", ".cuh")) or path in NEVER_WAIT:
            continue
        text = without_comments(text)
        later = set(WAIT_LATER.get(path, []))
        found = set()
        for line, name, body in kernels_of(text):
            found.add(name)
            if name in later:
                if WAIT not in text:
                    yield f"{path}:{line}: {name} calls {WAIT} nowhere"
            elif not body.lstrip().startswith(WAIT):
                yield f"{path}:{line}: {name} must begin with {WAIT}: see dependent_launch.h"
        for name in sorted(later - found):
            yield f"{path}: {name}, which may wait later, is not there"


RULES = [foreign_headers, no_upward_include, includes_from_root, backends_are_private, length,
         functions_are_short, licence_line, pragma_once, no_machine_paths, no_stray_words, kernels_wait,
         paragraphs_are_short, comments_begin_with_a_subject] + rooms.RULES


def list_files(root):
    try:
        git = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=True)
        if git.stdout:
            return sorted(set(git.stdout.decode().split("\0")) - {""})
    except (OSError, subprocess.CalledProcessError):
        pass  # a source archive, or no git
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [d for d in inner if not d.startswith(("build", ".")) and d != "out"]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def read_tree(root):
    files = {}
    for path in list_files(root):
        if path.endswith(SOURCES) and os.path.isfile(os.path.join(root, path)):
            if top(path) == "tests" and path.startswith("tests/data/"):
                continue
            with open(os.path.join(root, path), encoding="utf-8") as f:
                files[path] = f.read()
    return files


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..")
    files = read_tree(root)
    print(f"1..{len(RULES) + 1}")
    print("ok 1 - found sources" if len(files) > 10 else "not ok 1 - found sources")
    for number, rule in enumerate(RULES, 2):
        complaints = list(rule(files))
        for c in complaints:
            print("#", c)
        print("not ok" if complaints else "ok", number, "-", rule.__name__)


if __name__ == "__main__":
    main()
