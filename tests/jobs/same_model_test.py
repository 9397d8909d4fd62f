# SPDX-License-Identifier: Apache-2.0
"""Files that decide a token are the same on all ranks and in all starts of a run, or the run is refused.
Usage: same_model_test.py MPIRUN QUADRILLE DATA_FOLDER"""
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from job_runs import expect, run_cases

MPIRUN, QUADRILLE, DATA = map(os.path.abspath, sys.argv[1:4])
MODELS = os.path.join(DATA, "models")
LIMIT = 10  # seconds within which other files are refused


def edit_json(*edits):
    def change(path):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        for edit in edits:
            edit(document)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
    return change


def set_text(name, value):
    return lambda document: document["text_config"].update({name: value})


def write(text):
    def change(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return change


def change_a_tensor(path):
    """A byte at the start of the tensor in the middle of the file."""
    with open(path, "r+b") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        places = sorted(v["data_offsets"][0] for k, v in header.items() if k != "__metadata__")
        at = 8 + length + places[len(places) // 2]
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 1]))


# name of the field, file, change
CHANGES = [
    ("config_digest", "target/config.json", edit_json(set_text("routed_scaling_factor", 2.0))),
    ("generation_config_digest", "target/generation_config.json", write('{"eos_token_id": [11]}')),
    ("tokenizer_digest", "target/tokenizer.json", edit_json(lambda d: d.update(comment="other"))),
    ("template_digest", "target/chat_template.jinja", write("{{ messages }}")),
    ("checkpoint_digest", "target/model.safetensors", change_a_tensor),
    ("draft_config_digest", "draft/config.json", edit_json(lambda d: d.update(comment="other"))),
    ("drafter_digest", "draft/model.safetensors", change_a_tensor),
]


def make_models(folder):
    """A folder with copies of both models."""
    os.makedirs(folder)
    for link, model in (("target", "demo-full-4bpw"), ("draft", "demo-dflash2")):
        shutil.copytree(os.path.join(MODELS, model), os.path.join(folder, link))
    return folder


class Places:
    """Folders with a model of the same name, of which each rank sees one, as hosts have disks of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.good = make_models(os.path.join(folder, "good"))
        self.count = 0
        self.wrapper = os.path.join(folder, "in_its_place.sh")
        with open(self.wrapper, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\ncase " $ODD " in *" $OMPI_COMM_WORLD_RANK "*) cd "$OTHER";; *) cd "$GOOD";; esac\n'
                       'exec "$@"\n')
        os.chmod(self.wrapper, 0o755)

    def path(self, name):
        self.count += 1
        return os.path.join(self.folder, f"{self.count}-{name}")

    def changed(self, file, change):
        other = make_models(self.path("other"))
        change(os.path.join(other, file))
        return other

    def start_and_stop(self):
        """OUT.parts of a run that was told to end when it had its first part."""
        self.started = self.path("started.h5")
        self.prompts = self.path("prompts.jsonl")
        with open(self.prompts, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": f"The river {i}"}) + "\n" for i in range(600))
        command = [QUADRILLE, "generate", *self.run_of(self.started)]
        with subprocess.Popen(command, cwd=self.good, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None and not glob.glob(self.started + ".parts/part-*.h5"):
                time.sleep(0.02)
            run.send_signal(signal.SIGTERM)
            expect(run.wait(timeout=60) == 75, f"the first start ended with {run.returncode}")

    def run_of(self, out):
        return ["--target", "target", "--draft", "draft", "--prompts", self.prompts, "--out", out,
                "--max-new-tokens", "12", "--grace", "0"]

    def go_on(self, out, models):
        return subprocess.run([QUADRILLE, "generate", *self.run_of(out)], capture_output=True, text=True, timeout=120,
                              check=False, cwd=models)

    def generate(self, out, ranks, odd, other, more=()):
        command = [QUADRILLE, "generate", "--target", "target", "--draft", "draft", "--prompt", "The river",
                   "--out", out, "--max-new-tokens", "4", *more]
        command = [MPIRUN, "-n", str(ranks), self.wrapper, *command]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "ODD": odd, "OTHER": other, "GOOD": self.good})
        return done, time.monotonic() - start


def other_settings_are_told_by_rank(places):
    """Not refused: results do not depend on them."""
    for ranks in (2, 4):
        out = places.path("out.h5")
        run = [QUADRILLE, "generate", "--target", "target", "--prompt", "The river", "--out", out, "--max-new-tokens", "2"]
        done = subprocess.run([MPIRUN, "-n", str(ranks - 1), "-x", "NCCL_BUFFSIZE=4096", *run, ":", "-n", "1", *run],
                              capture_output=True, text=True, timeout=120, check=False, cwd=places.good)
        expect(done.returncode == 0, done.stderr)
        expect(done.stderr.count("different software or settings") == 1, done.stderr)
        there = ", ".join(map(str, range(ranks - 1)))
        lines = [line.split(None, 2) for line in done.stderr.splitlines() if line.split()[:1] == ["NCCL_BUFFSIZE"]]
        expect(len(lines) == 1 and lines[0][1] == "4096" and lines[0][2].endswith(f"({there})"), done.stderr)


def refused(done, seconds, field, ranks_there, out):
    expect(done.returncode == 3, f"exit code {done.returncode}, expected 3:\n{done.stderr}")
    expect(done.stderr.count("input error: ranks do not have the same model") == 1, done.stderr)
    table = done.stderr.split("do not have the same model", 1)[1].split("\n---", 1)[0]
    lines = [line.split() for line in table.splitlines() if line.startswith("  ")]
    found = {tuple(line[3:]) for line in lines if line[0] == field}
    # "config_digest  0123456789abcdef  host (1, 3)"
    expect({"".join(ranks) for ranks in found} == ranks_there, f"{found}, expected {ranks_there}:\n{done.stderr}")
    expect({line[0] for line in lines} == {"field", field}, f"other fields than {field}:\n{done.stderr}")
    expect(seconds < LIMIT, f"took {seconds:.1f} s")
    expect(not os.path.exists(out) and not os.path.exists(out + ".parts"), "files were written")


def equal_models_are_one(places):
    """Other folders, the same files."""
    out = places.path("out.h5")
    done, _ = places.generate(out, ranks=2, odd="1", other=make_models(places.path("other")))
    expect(done.returncode == 0, done.stderr)


def on_ranks(field, file, change, ranks, odd, there, more=()):
    def case(places):
        out = places.path("out.h5")
        done, seconds = places.generate(out, ranks, odd, places.changed(file, change), more)
        refused(done, seconds, field, there, out)
    case.__name__ = f"{field} on rank {odd} of {ranks}{' in groups' if more else ''}"
    return case


def between_starts(field, file, change):
    def case(places):
        out = places.path("out.h5")
        shutil.copytree(places.started + ".parts", out + ".parts")
        done = places.go_on(out, places.changed(file, change))
        expect(done.returncode == 2, f"exit code {done.returncode}, expected 2:\n{done.stderr}")
        expect(f"({field} was " in done.stderr and ";" not in done.stderr, done.stderr)
    case.__name__ = f"{field} between starts"
    return case


def an_unchanged_run_goes_on(places):
    done = places.go_on(places.started, make_models(places.path("copy")))
    expect(done.returncode == 0 and done.stderr.count("going on with") == 1, done.stderr)


def main():
    cases = [equal_models_are_one]
    for entry in CHANGES:
        cases.append(on_ranks(*entry, 2, "1", {"(0)", "(1)"}))
    for entry in (CHANGES[0], CHANGES[4]):
        cases.append(on_ranks(*entry, 4, "1 3", {"(0,2)", "(1,3)"}))
    cases.append(on_ranks(*CHANGES[0], 4, "2", {"(0,1,3)", "(2)"}, ["--tp", "2"]))
    cases += [between_starts(*entry) for entry in CHANGES]
    cases += [an_unchanged_run_goes_on, other_settings_are_told_by_rank]
    with tempfile.TemporaryDirectory() as folder:
        places = Places(folder)
        places.start_and_stop()
        return run_cases(cases, places, 1)


sys.exit(main())
