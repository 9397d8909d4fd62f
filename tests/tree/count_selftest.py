#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/count_results.py makes of logs as meson writes them; TAP."""
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "count_results.py")
PASS, FAIL, SKIP = "<testcase name='a'/>", "<testcase name='b'><failure/></testcase>", "<testcase name='c'><skipped/></testcase>"


def suite(test, *cases):  # gtest and TAP: suites named after the test
    return f"<testsuite name='p.{test}'>{''.join(cases)}</testsuite>"


CASES = [  # claim, {test: result}, junit suites, closing line, exit code
    ("gtest cases are counted one by one", {"u - p:x": "OK"},
     suite("u - p:x.A", PASS, PASS) + suite("u - p:x.B", PASS, SKIP), "3 passed, 0 failed, 1 skipped", 0),
    ("a failed case is one failure", {"x": "FAIL"}, suite("x.A", PASS, FAIL), "1 passed, 1 failed, 0 skipped", 1),
    ("a crash fails though no case does", {"x": "FAIL", "y": "OK"},
     suite("y", PASS) + "<testsuite name='p'><testcase name='x'><failure/></testcase></testsuite>",
     "1 passed, 1 failed, 0 skipped", 1),
    ("a bad exit code after good cases fails", {"x": "FAIL"}, suite("x.A", PASS), "1 passed, 1 failed, 0 skipped", 1),
    ("a time-out fails", {"x": "TIMEOUT", "y": "OK"}, suite("y", PASS), "1 passed, 1 failed, 0 skipped", 1),
    ("a skipped test stays skipped", {"x": "SKIP", "y": "OK"}, suite("x.A", PASS, PASS) + suite("y", PASS),
     "1 passed, 0 failed, 2 skipped", 0),
    ("names that begin alike are kept apart", {"x": "SKIP", "x.y": "OK"}, suite("x.y.A", PASS),
     "1 passed, 0 failed, 1 skipped", 0),
    ("exit-code tests count as one", {"x": "OK", "y": "SKIP"},
     "<testsuite name='p'><testcase name='x'/><testcase name='y'><skipped/></testcase></testsuite>",
     "1 passed, 0 failed, 1 skipped", 0),
    ("nothing passed is no success", {"x": "SKIP"}, "", "0 passed, 0 failed, 1 skipped", 1),
    ("an empty gtest counts as nothing", {"x": "OK", "y": "OK"}, suite("y", PASS), "1 passed, 0 failed, 0 skipped", 0),
]


def run(results, suites):
    with tempfile.TemporaryDirectory() as build:
        for folder in ("meson-logs", "meson-info"):
            os.mkdir(os.path.join(build, folder))
        with open(os.path.join(build, "meson-info", "intro-projectinfo.json"), "w", encoding="utf-8") as f:
            json.dump({"descriptive_name": "p"}, f)
        if results is not None:
            with open(os.path.join(build, "meson-logs", "testlog.json"), "w", encoding="utf-8") as f:
                f.writelines(json.dumps({"name": n, "result": r}) + "\n" for n, r in results.items())
            with open(os.path.join(build, "meson-logs", "testlog.junit.xml"), "w", encoding="utf-8") as f:
                f.write(f"<testsuites>{suites}</testsuites>")
        done = subprocess.run([sys.executable, SCRIPT, build], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1:], done.returncode


def main():
    print(f"1..{len(CASES) + 1}")
    for number, (claim, results, suites, line, code) in enumerate(CASES, 1):
        found = run(results, suites)
        if found != ([line], code):
            print(f"# expected {line!r}, exit {code}; found {found}")
        print("ok" if found == ([line], code) else "not ok", number, "-", claim)
    missing = run(None, "") == (["0 passed, 1 failed, 0 skipped"], 1)
    print("ok" if missing else "not ok", len(CASES) + 1, "- missing logs are a failure")


if __name__ == "__main__":
    main()
