#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`quantize`: a pack that loads and tells what its source told; the same files for any number of ranks, killed or
not; hostile sources, a full disk, bad options. TAP; for its arguments see tests/jobs/meson.build."""
import filecmp
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from job_runs import Run, Workshop, adopt_orphans, expect, read_options, run_cases, wait_until
import native_model

EXPERTS = "/model-00007-of-00010.safetensors"  # of layer 2
BITS = ["--routed-bits", "2"]
EVERYTHING = ["--routed-bits", "6", "--dense", "6", "--head-bits", "8", "--codebook", "mul1"]


class Shop(Workshop):
    def source(self, fp8=False):
        def make():
            folder = self.path("source")
            native_model.make(folder, self.model, fp8)
            return folder
        return self.once(("source", fp8), make)

    def changed(self, change):
        """A source whose tensors `change` has changed: {name: (dtype, shape, bytes)}."""
        folder = self.path("changed")
        shutil.copytree(self.source(), folder)
        tensors = native_model.read(folder + "/model.safetensors")
        change(tensors)
        native_model.write(folder + "/model.safetensors", tensors)
        return folder

    def calibration(self, tokens=768):
        def make():
            lines, rng = self.path("calibration.jsonl"), random.Random(tokens)
            with open(lines, "w", encoding="utf-8") as file:
                for length in (200, 1, 65, 130):
                    file.write(json.dumps({"tokens": [rng.randrange(tokens) for _ in range(length)]}) + "\n")
            return lines
        return self.once(("calibration", tokens), make)

    def quantize(self, out, source=None, more=(), bits=BITS, ranks=0, env=None, calibration=True):
        command = [self.options.program, "quantize", "--in", source or self.source(), "--out", out, *bits, *more]
        if calibration:
            command += ["--calibration", self.calibration()]
        if ranks:
            command = [self.options.mpirun, "-n", str(ranks)] + command
        return Run(command, env or {}, out)

    def whole(self):
        def make():
            out = self.path("pack")
            self.quantize(out).expect_code(0)
            return out
        return self.once("whole", make)

    def expect_equal(self, out, other=None):
        other = other or self.whole()
        names = sorted(os.listdir(other))
        expect(sorted(os.listdir(out)) == names, f"{sorted(os.listdir(out))} is not {names}")
        _, differ, errors = filecmp.cmpfiles(out, other, names, shallow=False)
        expect(not differ and not errors, f"files differ: {differ} {errors}")
        expect(not os.path.exists(out + ".parts"), "the folder of parts is left")

    def nll(self, target):
        done = subprocess.run([self.options.program, "eval", "--target", target, "--prompts", self.calibration()],
                              capture_output=True, text=True, check=True)
        return float(re.search(r"^all +\d+ +\d+ +([0-9.]+)", done.stdout, re.M).group(1))


def the_files_are_the_same_for_any_number_of_ranks(shop):
    for ranks in (2, 4):
        out = shop.path("pack")
        shop.quantize(out, ranks=ranks).expect_code(0)
        shop.expect_equal(out)
    other = shop.path("pack")
    shop.quantize(other, more=["--seed", "1"]).expect_code(0)
    expect(not filecmp.cmp(other + EXPERTS, shop.whole() + EXPERTS, shallow=False), "the seed changes nothing")


def a_pack_tells_what_its_source_told(shop):
    """Everything at 6 and 8 bits; what runs on it is as good, on two ranks too."""
    out, report = shop.path("pack"), shop.path("report.json")
    run = shop.quantize(out, bits=EVERYTHING, more=["--report", report, "--layer-bits", "3:8"])
    run.expect_code(0)
    expect(re.search(r"^routed experts +24 +393216 +7\.00 ", run.text(run.stdout), re.M), run.text(run.stdout))
    before, after = shop.nll(shop.source()), shop.nll(out)
    expect(abs(after - before) < 2e-3, f"NLL {before} became {after}")
    coarse = shop.nll(shop.whole())
    expect(abs(coarse - before) > 5 * abs(after - before), f"NLL {coarse} at 2 bits, {after} at 6, {before}")
    with open(report, encoding="utf-8") as file:
        told = json.load(file)
    bits = {record["module"]: record["bits"] for record in told["matrices"]}
    expect({b for m, b in bits.items() if ".3.mlp.experts." in m} == {8}, "--layer-bits")
    expect({b for m, b in bits.items() if ".2.mlp.experts." in m} == {6}, "--routed-bits")
    expect(bits["lm_head"] == 8 and {b for m, b in bits.items() if "self_attn" in m} == {6}, "other bits")
    errors = {record["bits"]: [] for record in told["matrices"]}
    for record in told["matrices"]:
        errors[record["bits"]].append(record["proxy_error"])
        expect(record["rows"] > 0 and record["left_out"] == 0, str(record))
    mean = {count: sum(all_of) / len(all_of) for count, all_of in errors.items()}
    expect(0 < mean[8] < mean[6] / 4 < 1e-3, f"proxy errors {mean}")  # a bit less: a quarter of the error
    result = shop.path("out.h5")
    shop.start(result, 12, 6, ranks=0, model=out).expect_code(0)
    with open(out + "/config.json", encoding="utf-8") as file:
        config = json.load(file)["quantization_config"]
    expect(config["quant_method"] == "exl3" and config["scope"] == "full" and config["head_bits"] == 8, str(config))
    expect(config["layer_bits"] == {"3": 8} and config["calibration"] == {"rows": 4, "cols": 200}, str(config))


def killed_until_complete(shop, out, steps, **asked):
    """Starts, each killed after some more files, until one completes `out`; how many were killed."""
    rng, kills = random.Random(3), 0
    while not os.path.exists(out + "/config.json"):
        ranks = rng.choice([1, 2])
        run = shop.quantize(out, ranks=ranks, **asked)
        wait_until(lambda: os.path.exists(out + ".parts/lock") or run.ended(), "the run begins")
        goal = files_below(out) + rng.randint(*steps)
        wait_until(lambda: files_below(out) >= goal or run.ended(), "some files", pause=0.001)
        time.sleep(rng.uniform(0, 0.05))
        victim = rng.choice(sorted(run.ranks(ranks).values()) or [run.process.pid])
        kills += run.kill(victim)
        expect(kills < 60, "60 kills, and no pack")
    return kills


def a_killed_run_goes_on_to_the_same_files(shop):
    out = shop.path("pack")
    kills = killed_until_complete(shop, out, (1, 3))
    expect(kills >= 3, f"{kills} kills only")
    shop.expect_equal(out)


def bits_go_where_the_output_suffers(shop):
    """--bpw: no more than these, others than the same for all, the same for any ranks, killed while it measures."""
    asked = dict(bits=["--bpw", "2.5"], more=["--shared-bits", "4"])
    whole, report = shop.path("pack"), shop.path("report.json")
    run = shop.quantize(whole, bits=["--bpw", "2.5"], more=["--shared-bits", "4", "--report", report])
    run.expect_code(0)
    with open(report, encoding="utf-8") as file:
        told = json.load(file)
    size = sum(record["n"] * record["k"] for record in told["matrices"])
    mean = sum(record["bits"] * record["n"] * record["k"] for record in told["matrices"]) / size
    expect(2.3 < mean <= 2.5, f"{mean} bits on the mean")
    groups = {(group["layer"], group["class"]): group for group in told["bits"]}
    expect(sorted(groups) == [(layer, kind) for layer in (2, 3) for kind in ("routed experts", "shared experts")],
           str(groups))
    expect(all(group["kl"] > 0 for group in groups.values()), str(groups))
    for record in told["matrices"]:
        layer = int(re.search(r"layers\.(\d+)\.", record["module"]).group(1))
        expect(record["bits"] == groups[layer, record["kind"]]["bits"], str(record))
    out = shop.path("pack")
    kills = killed_until_complete(shop, out, (3, 9), **asked)
    expect(kills >= 2, f"{kills} kills only")
    shop.expect_equal(out, whole)


def files_below(out):
    return sum(len(files) for folder in (out, out + ".parts") for _, _, files in os.walk(folder))


def fp8_sources_are_read(shop):
    out = shop.path("pack")
    shop.quantize(out, source=shop.source(fp8=True)).expect_code(0)
    kept = native_model.read(out + EXPERTS)
    expect(not any(name.endswith("weight_scale_inv") for name in kept), "block scales are left")
    expect(sum(name.endswith(".trellis") for name in kept) == 12, "trellises of layer 2")
    with open(out + "/config.json", encoding="utf-8") as file:
        config = json.load(file)["quantization_config"]
    expect(config["original_quantization_config"]["quant_method"] == "fp8", str(config))
    expect(math.isfinite(shop.nll(out)), "NLL")


def set_values(tensor, values):
    """Puts bf16 values, by index, into (dtype, shape, bytes)."""
    data = bytearray(tensor[2])
    for index, value in values.items():
        data[2 * index:2 * index + 2] = struct.pack("<f", value)[2:]
    return tensor[0], tensor[1], bytes(data)


def hostile_weights_are_named_or_borne(shop):
    expert = "model.language_model.layers.2.mlp.experts.1."
    for value in (math.nan, math.inf, -math.inf):
        def spoil(tensors):
            tensors[expert + "down_proj.weight"] = set_values(tensors[expert + "down_proj.weight"], {77: value})
        out = shop.path("pack")
        run = shop.quantize(out, source=shop.changed(spoil), ranks=2)
        run.expect_code(3)
        expect(expert + "down_proj" in run.errors, run.errors)

    def zeros(tensors):
        """An expert of zeros, an input that is always zero, an output that is, an expert nobody is sent to."""
        name = expert + "up_proj.weight"
        tensors[name] = tensors[name][0], tensors[name][1], bytes(len(tensors[name][2]))
        name = "model.language_model.layers.2.mlp.experts.0.gate_proj.weight"
        dead = [i * 128 + 5 for i in range(128)] + [9 * 128 + i for i in range(128)]
        tensors[name] = set_values(tensors[name], {index: 0.0 for index in dead})
        name = "model.language_model.layers.2.mlp.gate.e_score_correction_bias"
        tensors[name] = "F32", [4], struct.pack("<4f", 0, 0, 0, -100)
    out = shop.path("pack")
    shop.quantize(out, source=shop.changed(zeros), more=["--report", out + ".json"]).expect_code(0)
    expect(math.isfinite(shop.nll(out)), "NLL")
    with open(out + ".json", encoding="utf-8") as file:
        records = {record["module"]: record for record in json.load(file)["matrices"]}
    expect(records[expert + "up_proj"]["relative_error"] == 0, "an expert of zeros")
    unused = records["model.language_model.layers.2.mlp.experts.3.down_proj"]
    expect(unused["rows"] > 0 and 0 < unused["proxy_error"] < 0.3, f"an expert without rows: {unused}")


def activations_that_are_no_numbers_are_named(shop):
    def spoil(tensors):
        name = "model.language_model.embed_tokens.weight"
        tensors[name] = set_values(tensors[name], {i: 3e38 for i in range(128 * 768)})
    out = shop.path("pack")
    run = shop.quantize(out, source=shop.changed(spoil))
    expect(run.wait() in (0, 3), run.errors)  # norms may bear it
    if run.wait() == 3:
        expect(re.search(r"module \S+: expected finite inputs", run.errors), run.errors)


def a_full_disk_loses_nothing(shop):
    for at in (3, 9):
        out = shop.path("pack")
        env = {"LD_PRELOAD": shop.options.io, "FAILING_IO_FOLDER": os.path.dirname(out), "FAILING_IO_OPS": "s",
               "FAILING_IO_AT": str(at), "FAILING_IO_ERRNO": "ENOSPC"}
        run = shop.quantize(out, env=env)
        run.expect_code(4)
        expect(re.search(r"io error: .*" + re.escape(os.path.dirname(out)), run.errors), run.errors)
        shop.quantize(out).expect_code(0)
        shop.expect_equal(out)


def damaged_parts_are_made_again(shop):
    out = shop.path("pack")
    run = shop.quantize(out)
    wait_until(lambda: os.path.exists(out + "/model-00008-of-00010.safetensors") or run.ended(), "some files",
               pause=0.001)
    run.kill(run.process.pid)
    victim = out + EXPERTS
    with open(victim, "r+b") as file:
        file.seek(os.path.getsize(victim) // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    with open(out + "/model-00002-of-00010.safetensors", "r+b") as file:
        file.truncate(1000)
    shop.quantize(out).expect_code(0)
    shop.expect_equal(out)


def bad_requests_are_refused(shop):
    out, pack = shop.path("pack"), shop.model
    cases = [
        (dict(source=pack), 3, r"expected a checkpoint that is not quantized to EXL3, found a trellis"),
        (dict(more=["--layer-bits", "1:3"]), 2, r"--layer-bits: layer 1 of .* has no routed experts"),
        (dict(more=["--layer-bits", "2:9"]), 2, r"--layer-bits: expected LAYER:BITS with 1 to 8 bits, found 2:9"),
        (dict(bits=["--routed-bits", "9"]), 2, r"--routed-bits"),
        (dict(bits=[]), 2, r"--routed-bits"),
        (dict(bits=["--bpw", "9"]), 2, r"--bpw: expected a number from 1 to 8, found 9"),
        (dict(bits=["--bpw", "2"], calibration=False), 2, r"--bpw: expected --calibration"),
        (dict(bits=["--bpw", "2"], more=["--layer-bits", "2:3"]), 2, r"--bpw and --layer-bits: expected one of them"),
        (dict(more=["--head-bits", "12"]), 2, r"--head-bits: expected 1 to 8 or 16, found 12"),
        (dict(calibration=False, more=["--calibration", shop.calibration(tokens=5000)]), 3,
         r"--calibration: expected rows without an error, found .*token"),
        (dict(calibration=False, more=["--calibration", "missing.jsonl"]), 4, r"missing\.jsonl"),
    ]
    for arguments, code, message in cases:
        run = shop.quantize(out, **arguments)
        run.expect_code(code)
        expect(re.search(message, run.errors), f"{arguments}: {run.errors}")
        expect(not os.path.exists(out) or not os.listdir(out), f"{arguments}: something is written")
    run = shop.quantize(shop.whole())
    run.expect_code(2)
    expect("is a complete checkpoint" in run.errors, run.errors)
    begun = shop.path("pack")
    first = shop.quantize(begun)
    wait_until(lambda: os.path.exists(begun + ".parts/run.json") or first.ended(), "the run begins")
    first.kill(first.process.pid)
    other = shop.quantize(begun, more=["--seed", "3"], bits=["--routed-bits", "3"], ranks=2)
    other.expect_code(2)
    expect(re.search(r"routed_bits: was 2, is 3\n  seed: was 0, is 3", other.errors), other.errors)


def main():
    options = read_options()
    cases = [the_files_are_the_same_for_any_number_of_ranks, a_pack_tells_what_its_source_told,
             a_killed_run_goes_on_to_the_same_files, bits_go_where_the_output_suffers, fp8_sources_are_read, hostile_weights_are_named_or_borne,
             activations_that_are_no_numbers_are_named, a_full_disk_loses_nothing, damaged_parts_are_made_again,
             bad_requests_are_refused]
    cases = [case for case in cases if options.only in case.__name__]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="quantize-test-") as folder:
        return run_cases(cases, Shop(options, folder), at_once=2)


if __name__ == "__main__":
    sys.exit(main())
