#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the results of `meson test` in BUILD and prints "N passed, N failed, N skipped".

Single cases (gtest, TAP) are taken from testlog.junit.xml. A test that meson calls failed counts as
one failure more if none of its cases does (a crash, a time-out, a bad exit code), a gtest without cases
as nothing. Exit code 1 on failures and where nothing passed.
"""
import json
import os
import sys
import xml.etree.ElementTree as ElementTree

FAILED = {"FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"}


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return "passed"


def cases_by_test(root, names, project):
    """{test name: [outcomes]}; meson prefixes the suites of one test with `project.test.`."""
    found = {name: [] for name in names}
    for suite in root.iter("testsuite"):
        title = suite.get("name", "")
        owner = None
        if title != project:
            inner = title[len(project) + 1:]
            fitting = [n for n in names if inner == n or inner.startswith(n + ".")]
            owner = max(fitting, key=len, default=None)
        for case in suite.findall("testcase"):
            name = owner if title != project else case.get("name")
            found.setdefault(name, []).append(outcome(case))
    return found


def count(build):
    logs = os.path.join(build, "meson-logs")
    with open(os.path.join(build, "meson-info", "intro-projectinfo.json")) as f:
        project = json.load(f)["descriptive_name"]
    with open(os.path.join(logs, "testlog.json")) as f:
        tests = [json.loads(line) for line in f if line.strip()]
    results = {t["name"]: t["result"] for t in tests}
    root = ElementTree.parse(os.path.join(logs, "testlog.junit.xml")).getroot()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    broken = []
    for name, outcomes in cases_by_test(root, list(results), project).items():
        result = results.get(name)
        if result in FAILED:
            broken.append(f"{name}: {result}")
            if "failed" not in outcomes:
                outcomes = outcomes + ["failed"]
        elif result == "SKIP":  # the whole test: its cases may still call themselves passed
            outcomes = ["skipped"] * max(1, len(outcomes))
        for o in outcomes:
            total[o] += 1
    return total, broken


def main():
    try:
        total, broken = count(sys.argv[1])
    except (OSError, ValueError, ElementTree.ParseError) as error:
        print(f"count_results: no readable results: {error}")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    if broken:
        print("failed tests:", *broken, sep="\n  ")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
