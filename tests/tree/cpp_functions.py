# SPDX-License-Identifier: Apache-2.0
"""Finds the function definitions of a C++ or CUDA source without a compiler: braces are matched, and
what stands before one tells what it opens. Lambdas and local classes count as a part of the function
around them; macros are not looked into."""
import re
from typing import NamedTuple

# Literals and comments keep their line breaks and lose everything that could be taken for code.
HIDDEN = re.compile(r'R"(\w*)\((?:.*?)\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                    r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
NO_FUNCTION = {"alignas", "__align__", "__launch_bounds__", "decltype", "requires", "noexcept", "explicit",
               "__attribute__", "sizeof", "defined", "if", "for", "while", "switch"}
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|extern)\b")


class Function(NamedTuple):
    name: str
    line: int        # of the first word of its definition
    lines: int       # from there to the closing brace
    parameters: int
    is_kernel: bool  # __global__


def blank(match):
    return " " + "\n" * match.group(0).count("\n")


def plain_code(text):
    """`text` without comments, literals and preprocessor lines, line by line where it was."""
    return DIRECTIVE.sub(blank, HIDDEN.sub(blank, text))


def closing(code, at):
    """The position of the bracket that closes the one at `at`; the end where there is none."""
    pairs = {"{": "}", "(": ")", "[": "]"}
    opening, ending, depth = code[at], pairs[code[at]], 0
    for i in range(at, len(code)):
        if code[i] == opening:
            depth += 1
        elif code[i] == ending:
            depth -= 1
            if depth == 0:
                return i
    return len(code) - 1


def count_parameters(inside):
    """Parameters of a list without its parentheses: commas outside all brackets, plus one."""
    inside = inside.strip()
    if inside in ("", "void"):
        return 0
    depth, count = 0, 1
    for i, c in enumerate(inside):
        if c in "([{<":
            depth += 1
        elif c in ")]}" or (c == ">" and inside[i - 1] != "-"):
            depth -= 1
        elif c == "," and depth == 0:
            count += 1
    return count


def signature(head):
    """(name, parameters, what follows the list) where `head` is that of a function, else None."""
    head = re.sub(r"\boperator\s*\(\s*\)", "operator_call", head)
    head = re.sub(r"\boperator\s*(?:[^\w\s(]+)", "operator_sign", head)
    at = 0
    while (at := head.find("(", at)) >= 0:
        before = re.search(r"([\w:~]+)\s*(?:<[^<>()]*>)?\s*$", head[:at])
        end = closing(head, at)
        if before and before.group(1) not in NO_FUNCTION:
            if "=" in head[:before.start()].replace("==", ""):
                return None  # a variable whose value is a call or a lambda
            return before.group(1), count_parameters(head[at + 1:end]), head[end + 1:]
        at = end + 1
    return None


def without_template(head):
    """`head` behind `template <...>`, whose defaults may hold signs that mislead."""
    m = re.match(r"\s*template\s*<", head)
    if not m:
        return head
    depth = 1
    for i in range(m.end(), len(head)):
        depth += {"<": 1, ">": -1}.get(head[i], 0)
        if depth == 0:
            return without_template(head[i + 1:])
    return head


def functions(text):
    """Every function that `text` defines at the level of namespaces and classes."""
    code = plain_code(text)
    start = at = 0  # of the head that is being read
    while at < len(code):
        c = code[at]
        if c == ";" or c == "}":
            start = at + 1
        elif c == "(":
            at = closing(code, at)
        elif c == "{":
            head = without_template(code[start:at])
            found = signature(head)
            rest = found[2] if found else ""
            if found and not SCOPE.match(head.strip()):
                initialises = re.match(r"[^{]*:", rest.replace("::", "")) and re.search(r"[\w>]\s*$", rest)
                end = closing(code, at)
                if not initialises:
                    first = start + len(code[start:at]) - len(code[start:at].lstrip())
                    lines = code.count("\n", first, end) + 1
                    yield Function(found[0].split("::")[-1], code.count("\n", 0, first) + 1, lines, found[1],
                                   "__global__" in head)
                    start = end + 1
                at = end
            elif SCOPE.search(head) and "=" not in head:
                start = at + 1
            else:  # an enum, a list of values, the body of a lambda
                at = closing(code, at)
        at += 1
