# SPDX-License-Identifier: Apache-2.0
"""The README's Python and its batch example, run as they stand: the results can be read with the h5py
lines that it shows, the batch output is the one that it shows. TAP; skipped where there is no h5py.
Usage: readme_test.py QUADRILLE SOURCE_FOLDER PYTHON..."""

import json
import os
import re
import subprocess
import sys
import tempfile

QUADRILLE, SOURCE = (os.path.abspath(path) for path in sys.argv[1:3])
MODELS = os.path.join(SOURCE, "tests", "data", "models")


def python_with_h5py():
    for python in sys.argv[3:]:
        try:
            if subprocess.run([python, "-c", "import h5py"], capture_output=True).returncode == 0:
                return python
        except OSError:
            pass
    return None


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def generate(folder, prompts, out, *more):
    run(folder, QUADRILLE, "generate", "--target", os.path.join(MODELS, "demo-full-4bpw"),
        "--draft", os.path.join(MODELS, "demo-dflash2"), "--prompts", prompts, "--out", out, "--backend", "cpu", *more)


def read_results(folder, python, snippet):
    with open(os.path.join(folder, "lines.txt"), "w", encoding="utf-8") as file:
        file.write("The sea is\nOnce upon a time\n")
    generate(folder, "lines.txt", "generations.h5", "--max-new-tokens", "8")
    records = [json.loads(line) for line in run(folder, QUADRILLE, "unpack", "generations.h5").splitlines()]
    shown = run(folder, python, "-c", snippet)
    expected = [f"{record['index']} {record['finish_reason']} [" for record in records]
    good = all(start in shown for start in expected) and all(record["text"] in shown for record in records)
    return good and "\n0 errors, accept length " in shown, shown


def answer_batch(folder, readme):
    request = re.search(r'^\{"custom_id".*\}$', readme, re.MULTILINE).group()
    answer = json.loads(re.search(r'^\{"id":"batch_req.*\}$', readme, re.MULTILINE).group())
    with open(os.path.join(folder, "batch.jsonl"), "w", encoding="utf-8") as file:
        file.write(request + "\n")
    generate(folder, "batch.jsonl", "answers.h5")
    found = json.loads(run(folder, QUADRILLE, "unpack", "answers.h5", "--format", "openai"))
    for line in (answer, found):
        line["response"]["body"].pop("created")
    return found == answer, json.dumps(found)


def main():
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    snippet = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    python = python_with_h5py()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        name = "ten lines of h5py read the results"
        if python is None:
            results.append((True, name + " # SKIP no Python with h5py", ""))
        else:
            good, notes = read_results(folder, python, snippet)
            results.append((good and len(snippet.strip().splitlines()) <= 10, name, notes))
        good, notes = answer_batch(folder, readme)
        results.append((good, "the batch example's answer", notes))
    print(f"1..{len(results)}")
    for good, name, notes in results:
        if not good:
            print("\n".join("# " + line for line in notes.splitlines()), file=sys.stderr)
        print(f"{'ok' if good else 'not ok'} - {name}")
    return 0 if all(good for good, _, _ in results) else 1


sys.exit(main())
