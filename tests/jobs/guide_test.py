# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/guide.md, run as they stand and in its order on the bundled models; TAP.
Usage: guide_test.py MPIRUN QUADRILLE SOURCE_FOLDER"""
import os
import re
import subprocess
import sys
import tempfile

MPIRUN, QUADRILLE, SOURCE = map(os.path.abspath, sys.argv[1:4])
WRITTEN = ["prompts.h5", "generations.h5", "generations.jsonl", "shard-0.h5", "shard-1.h5", "all.h5", "a.h5", "b.h5", "plain.h5",
           "scores.jsonl", "pack", "capture.h5", "probe.json", "drafter", "after.h5"]


def main():
    with open(os.path.join(SOURCE, "docs", "guide.md"), encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    data = os.path.join(SOURCE, "tests", "data")
    path = os.pathsep.join([os.path.dirname(QUADRILLE), os.path.dirname(MPIRUN), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "D": data, "M": os.path.join(data, "models")}
    print(f"1..{len(commands) + 1}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            done = subprocess.run(["sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True,
                                  timeout=120, check=False)
            good = good and done.returncode == 0
            if done.returncode != 0:
                print(f"# exit {done.returncode}\n{done.stdout}{done.stderr}", file=sys.stderr)
            print(f"{'not ok' if done.returncode else 'ok'} - {command}", flush=True)
        missing = sorted(set(WRITTEN) - set(os.listdir(folder)))
        print(f"{'not ok' if missing else 'ok'} - every file is there{': no ' if missing else ''}{' '.join(missing)}")
        return 0 if good and not missing else 1


sys.exit(main())
