# SPDX-License-Identifier: Apache-2.0
"""What the program reads and writes beside tokens: outputs look before they replace, links are
followed, limits and broken streams are ordinary, damaged files are named by every job that reads
them. TAP. Usage: outputs_test.py MPIRUN QUADRILLE TESTDATA"""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MPIRUN, QUADRILLE, DATA = sys.argv[1:4]
TARGET = f"{DATA}/models/toy-native"
DEMO = f"{DATA}/models/demo-full-4bpw"  # of which several ranks can hold a shard


def run(*arguments, ranks=0, env=None, **popen):
    command = ([MPIRUN, "-n", str(ranks)] if ranks else []) + [QUADRILLE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, errors="replace",
                          env={**os.environ, **(env or {})}, **popen)


def generate(prompts, out, *more, target=TARGET, **options):
    prompts = prompts if isinstance(prompts, list) else [prompts]
    return run("generate", "--target", target, "--prompts", *prompts, "--out", out,
               "--max-new-tokens", 2, *more, **options)


def expect(done, code, *parts):
    assert done.returncode == code, f"expected exit {code}, found {done.returncode}: {done.stderr}"
    for part in parts:
        assert part in done.stderr, f"expected '{part}' in: {done.stderr}"


def write_prompts(path, records=2, tokens=2):
    path.write_text("".join(f'{{"tokens": [5, {i % 9 + 1}], "max_new_tokens": {tokens}}}\n' for i in range(records)))
    return path


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def heartbeat_replaces_only_heartbeats(folder):
    prompts = write_prompts(folder / "p.jsonl")
    before = prompts.read_bytes()
    out, beat = folder / "o.h5", folder / "beat.json"
    device = folder / "null"
    device.symlink_to("/dev/null")
    other = folder / "notes.json"
    other.write_text('{"a": 1}')
    for name, part in [(out, "o.h5"), (prompts, "p.jsonl"), (device, "device"), (folder, "folder"),
                       (other, "heartbeat"), (folder / "o.h5.tmp", None)]:
        done = generate(prompts, out, "--heartbeat", name)
        if part:
            expect(done, 2, "--heartbeat", part)
            assert not out.exists(), f"{name}: computed all the same"
    assert prompts.read_bytes() == before and other.read_text() == '{"a": 1}'
    out.unlink(missing_ok=True)
    expect(generate(prompts, out, "--heartbeat", beat), 0)
    assert json.loads(beat.read_text())["state"] == "done"
    out.unlink()
    expect(generate(prompts, out, "--heartbeat", beat), 0)


def outputs_replace_only_their_kind(folder):
    prompts = write_prompts(folder / "p.jsonl")
    generations, packed, lines = folder / "g.h5", folder / "q.h5", folder / "g.jsonl"
    expect(generate(prompts, generations), 0)
    expect(run("pack", prompts, "--out", packed), 0)
    expect(run("unpack", generations, "--out", lines), 0)
    again = ["--output-exists", "overwrite"]
    contents = {path: path.read_bytes() for path in (generations, packed, lines, prompts)}
    expect(run("pack", prompts, "--out", generations, *again), 2, "g.h5", "'generations'")
    expect(run("pack", prompts, "--out", prompts, *again), 2, "p.jsonl")
    expect(run("pack", prompts, "--out", "/dev/null", *again), 2, "device")
    expect(generate(prompts, packed, *again), 2, "q.h5", "'prompts'")
    expect(generate(packed, packed, *again), 2, "q.h5")
    expect(run("unpack", generations, "--out", packed, *again), 2, "q.h5", "JSON lines")
    expect(run("unpack", generations, "--out", generations, *again), 2, "g.h5")
    for path, content in contents.items():
        assert path.read_bytes() == content, f"{path} was changed"
    expect(generate(prompts, generations, *again), 0)
    expect(run("pack", prompts, "--out", packed, *again), 0)
    expect(run("unpack", generations, "--out", lines, *again), 0)


def links_are_followed(folder):
    prompts = write_prompts(folder / "p.jsonl")
    (folder / "scratch").mkdir()
    for command, name in [("generate", "o.h5"), ("pack", "p.h5"), ("unpack", "o.jsonl")]:
        link, target = folder / name, folder / "scratch" / name
        link.symlink_to(target)
        inputs = {"generate": ["--target", TARGET, "--max-new-tokens", "2", "--prompts", prompts],
                  "pack": [prompts], "unpack": [folder / "o.h5"]}[command]
        expect(run(command, *inputs, "--out", link), 0)
        assert link.is_symlink() and target.is_file(), f"{command}: the link was replaced"
    assert sorted(path.name for path in (folder / "scratch").iterdir()) == ["o.h5", "o.jsonl", "p.h5"]


def scratch_is_gone_once_open(folder):
    prompts = write_prompts(folder / "p.jsonl", records=3000, tokens=200)
    scratch = folder / "tmp"
    scratch.mkdir()
    process = subprocess.Popen([QUADRILLE, "generate", "--target", TARGET, "--prompts", str(prompts), "--out",
                                str(folder / "o.h5"), "--ignore-eos"], env={**os.environ, "TMPDIR": str(scratch)},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(folder / "o.h5.parts" / "run.h5")
    process.send_signal(signal.SIGKILL)
    process.wait()
    # os.walk passes over what goes away meanwhile: MPI removes files of its own.
    left = [os.path.join(place, name) for place, folders, names in os.walk(scratch) for name in folders + names
            if "quadrille" in name or name.endswith(".h5")]
    assert not left, f"left: {left}"


def a_limit_on_file_sizes_is_an_error_of_the_write(folder):
    prompts = write_prompts(folder / "p.jsonl", records=600, tokens=200)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    expect(run("pack", prompts, "--out", folder / "q.h5", preexec_fn=limit), 4, "q.h5.partial", "File too large")
    assert not list(folder.glob("q.h5*"))
    out = folder / "o.h5"
    command = [QUADRILLE, "generate", "--target", TARGET, "--prompts", str(prompts), "--out", str(out), "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(folder / "o.h5.parts" / "run.h5")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))  # MPI itself needs larger ones to start
    text = process.communicate(timeout=100)[1]
    assert process.returncode == 4 and "File too large" in text, f"exit {process.returncode}: {text}"
    assert not out.exists()


def broken_streams_end_no_run(folder):
    prompts = write_prompts(folder / "p.jsonl")
    with open("/dev/full", "w", encoding="ascii") as full:
        for i, streams in enumerate([{"stderr": full}, {"stdout": full}, {"stdout": full, "stderr": full}]):
            out = folder / f"full{i}.h5"
            done = subprocess.run([QUADRILLE, "generate", "--target", TARGET, "--prompts", prompts, "--out", out,
                                   "--max-new-tokens", "2"], timeout=60, **{"stdout": subprocess.DEVNULL,
                                                                            "stderr": subprocess.DEVNULL, **streams})
            assert done.returncode == 0 and out.exists(), f"{streams}: {done.returncode}"
    for i, closed in enumerate(["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&1 | true"]):
        out = folder / f"closed{i}.h5"
        done = subprocess.run(["bash", "-c", f'set -o pipefail; "$@" {closed}', "-", QUADRILLE, "generate", "--target",
                               TARGET, "--prompts", prompts, "--out", out, "--max-new-tokens", "2"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        assert done.returncode == 0 and out.exists(), f"{closed}: {done.returncode}"
        expect(run("inspect", out), 0)


def damaged_files_are_named(folder):
    done = run("inspect", f"{DATA}/hdf5_crash.h5")
    expect(done, 3, "hdf5_crash.h5", "/provenance", "crashes the HDF5 library", "no seal")
    expect(run("unpack", f"{DATA}/hdf5_crash.h5"), 3, "hdf5_crash.h5", "crashes")
    for ranks in (1, 2):
        done = generate(f"{DATA}/hdf5_crash.h5", folder / "o.h5", target=DEMO, ranks=ranks)
        expect(done, 3, "hdf5_crash.h5", "crashes")
    start = time.monotonic()
    done = generate(f"{DATA}/hdf5_loop.h5", folder / "o.h5", target=DEMO, ranks=2)
    expect(done, 3, "hdf5_loop.h5", "does not come to an end")
    assert time.monotonic() - start < 120
    assert not list(folder.glob("o.h5*"))


def a_flipped_bit_in_our_own_files_is_found(folder):
    prompts = write_prompts(folder / "p.jsonl")
    packed, out = folder / "p.h5", folder / "o.h5"
    expect(run("pack", prompts, "--out", packed), 0)
    expect(generate(packed, out), 0)
    for path, jobs in [(packed, [lambda p: run("inspect", p), lambda p: generate(p, folder / "x.h5")]),
                       (out, [lambda p: run("inspect", p), lambda p: run("unpack", p)])]:
        assert "holds" in run("inspect", path).stdout
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
        for job in jobs:
            expect(job(path), 3, path.name, "damaged")
        path.write_bytes(data[:-32])  # what HDF5 leaves of a file that it changes
        assert "none" in run("inspect", path).stdout


def thousands_of_prompt_files(folder):
    (folder / "f").mkdir()
    files = [folder / "f" / f"{i}.jsonl" for i in range(4200)]
    for path in files:
        path.write_text('{"tokens":[5]}\n')
    out = folder / "o.h5"
    expect(generate(files, out, "--limit", 4200), 0)
    lines = run("unpack", out, "--limit", 4200).stdout.splitlines()
    assert len(lines) == 4200 and json.loads(lines[-1])["source"] == 4199
    assert "f/4199.jsonl" in run("inspect", out).stdout


CASES = [heartbeat_replaces_only_heartbeats, outputs_replace_only_their_kind, links_are_followed,
         scratch_is_gone_once_open, a_limit_on_file_sizes_is_an_error_of_the_write, broken_streams_end_no_run,
         damaged_files_are_named, a_flipped_bit_in_our_own_files_is_found, thousands_of_prompt_files]


def main():
    print(f"1..{len(CASES)}")
    failed = 0
    for number, case in enumerate(CASES, 1):
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            case(folder)
            print(f"ok {number} - {case.__name__}", flush=True)
        except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as problem:
            failed += 1
            print(f"not ok {number} - {case.__name__}", flush=True)
            print("# " + str(problem).replace("\n", "\n# "), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


sys.exit(main())
