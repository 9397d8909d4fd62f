# SPDX-License-Identifier: Apache-2.0
"""The table of bad input: what is run, how it must end, what it must say. See cli_cases.py.

A case is (name, arguments, exit code, part of the message). Arguments may name
  {target} {native} {demo}   good checkpoints: toy-vocab768, toy-native, demo-full-4bpw (tokenizer)
  {ckpt:NAME}                toy-vocab768 with the defect NAME (broken_checkpoints.py)
  {h5:NAME}                  a prompts file of make_bad_inputs.cpp
  {out}                      a new output path     {complete} an output that is finished
  {tmp}                      a new empty folder    {parts} an output with leftover parts
"""
RUN = "--max-new-tokens 4"


def generate(target="{target}", prompts="{h5:good}", out="{out}", more=""):
    return f"generate --target {target} --prompts {prompts} --out {out} {RUN} {more}".strip()


def checkpoint(name, message, code=3):
    return (f"checkpoint {name}", generate(target=f"{{ckpt:{name}}}"), code, message)


def prompts(name, message, code=3, more=""):
    return (f"prompts {name} {more}".strip(), generate(prompts=f"{{h5:{name}}}", more=more), code, message)


USAGE = [
    ("unknown flag", generate(more="--colour red"), 2, "--colour"),
    ("unknown subcommand", "generat {target}", 2, "unknown subcommand 'generat'"),
    ("no target", "generate --prompts {h5:good} --out {out}", 2, "--target: expected a checkpoint folder"),
    ("no prompts", "generate --target {target} --out {out}", 2, "--prompts: expected at least one"),
    ("no out", "generate --target {target} --prompts {h5:good}", 2, "--out: expected an output file"),
    ("a number that is none", generate(more="--max-seqs many"), 2, "found 'many'"),
    ("a limit out of range", generate(more="--max-context 0"), 2, "found '0'"),
    ("k without a drafter", generate(more="--k 2"), 2, "--k: expected 0 without a drafter"),
    ("unknown backend", generate(more="--backend tpu"), 2, "found 'tpu'"),
]

CHECKPOINTS = [
    ("tokenizer-not-json", generate(target="{ckpt:tokenizer-not-json}"), 3, "tokenizer.json: expected JSON"),
    ("tokenizer-empty", generate(target="{ckpt:tokenizer-empty}"), 3, "tokenizer.json"),
    ("tokenizer-folder", generate(target="{ckpt:tokenizer-folder}"), 3, "tokenizer.json: not a regular file"),
    ("target missing", generate(target="{tmp}/none"), 3, "{tmp}/none"),
    ("target is a file", generate(target="{h5:good}"), 3, "good.h5"),
    checkpoint("empty-folder", "config.json"),
    checkpoint("config-not-json", "config.json: expected JSON"),
    checkpoint("config-list", "expected an object"),
    checkpoint("config-no-hidden", "hidden_size"),
    checkpoint("config-negative", "num_experts_per_tok: expected"),
    checkpoint("config-huge", "hidden_size: expected"),
    checkpoint("config-float", "num_hidden_layers: expected"),
    checkpoint("config-text", "vocab_size: expected"),
    checkpoint("config-short-list", "layer_types: expected 4 entries"),
    checkpoint("config-unknown-layer", "layer_types[1]: expected"),
    checkpoint("config-more-experts", "num_experts_per_tok: expected"),
    checkpoint("config-other-model", "model_type: expected"),
    checkpoint("no-weights", "found neither"),
    checkpoint("zero-bytes", "expected at least 8 bytes"),
    checkpoint("seven-bytes", "expected at least 8 bytes"),
    checkpoint("header-too-large", "header: expected at most"),
    checkpoint("header-past-end", "(truncated?)"),
    checkpoint("header-not-json", "header: expected JSON"),
    checkpoint("header-list", "expected an object"),
    checkpoint("header-twice", "appears twice"),
    checkpoint("truncated", "an end within the file's"),
    checkpoint("trailing", "bytes after the last"),
    checkpoint("overlap", "overlaps tensor"),
    checkpoint("offsets-past-end", "an end within the file's"),
    checkpoint("offsets-reversed", "begin <= end"),
    checkpoint("offsets-negative", "data_offsets"),
    checkpoint("shape-overflows", "fits 63 bits"),
    checkpoint("shape-and-bytes", "expected 128 bytes, found data_offsets of 256 bytes"),
    checkpoint("unknown-dtype", "a supported element type"),
    checkpoint("shard-missing", "found no such file"),
    checkpoint("shard-elsewhere", "the name of a file in this folder"),
    checkpoint("shard-lacks-tensor", "tensor ghost: expected in"),
    checkpoint("index-empty", "weight_map: expected tensors"),
    checkpoint("tensor-missing", "model.language_model.norm.weight is missing"),
    checkpoint("expert-missing", "experts.3.up_proj"),
    checkpoint("norm-shape", "tensor model.language_model.norm.weight: expected"),
    checkpoint("norm-dtype", "tensor model.language_model.norm.weight: expected"),
    checkpoint("embedding-shape", "tensor model.language_model.embed_tokens.weight: expected"),
    checkpoint("both-markers", "mul1"),
    checkpoint("marker-value", "mcg"),
    checkpoint("marker-shape", "mcg"),
    checkpoint("marker-dtype", "mcg"),
    checkpoint("trellis-bits-0", "trellis: expected"),
    checkpoint("trellis-bits-9", "trellis: expected"),
    checkpoint("trellis-width", "trellis: expected"),
    checkpoint("trellis-rank", "trellis: expected"),
    checkpoint("trellis-dtype", "trellis: expected"),
    checkpoint("trellis-other-size", "trellis: expected"),
    checkpoint("suh-length", "suh: expected"),
    checkpoint("svh-dtype", "svh: expected"),
]

PROMPTS = [
    ("prompts missing", generate(prompts="{tmp}/none.h5"), 4, "none.h5: cannot open"),
    ("prompts lines missing", generate(prompts="{tmp}/none.jsonl"), 4, "none.jsonl: cannot open"),
    ("prompts are text", generate(prompts="{demo}/config.json"), 3, "config.json"),
    ("prompts truncated", generate(prompts="{h5:truncated}"), 3, "truncated or damaged HDF5 file"),
    prompts("newer-format", "use a newer version"),
    prompts("format-text", "quadrille_format must be an integer"),
    prompts("other-kind", "expected a file of kind 'prompts', found 'generations'"),
    prompts("both", "holds both tokens and text"),
    prompts("neither", "holds neither tokens (with offsets) nor text"),
    prompts("no-offsets", "/prompts/offsets: no such dataset"),
    prompts("no-tokens", "holds neither tokens"),
    prompts("offsets-start", "/prompts/offsets[0]: expected 0, found 1"),
    prompts("offsets-fall", "/prompts/offsets[2]: falls from 5 to 2"),
    prompts("offsets-end", "/prompts/offsets: ends at 8, but there are 9"),
    prompts("offsets-huge", "/prompts/offsets[3]: falls from 9223372036854775807"),
    prompts("offsets-empty", "/prompts/offsets: is empty"),
    prompts("offsets-float", "/prompts/offsets: expected integers"),
    prompts("tokens-float", "/prompts/tokens: expected integers"),
    prompts("tokens-2d", "/prompts/tokens: expected integers"),
    prompts("text-numbers", "/prompts/text: expected strings"),
    prompts("text", "tokenizer.json"),
    prompts("column-length", "/prompts/max_new_tokens: has length 2, but there are 3 records"),
    prompts("column-type", "/prompts/max_new_tokens: expected integers, found float64"),
    prompts("id-twice", "records 0 and 2 have the same id 7"),
    prompts("id-length", "/prompts/id: has length 2, but there are 3 records"),
    prompts("id-float", "/prompts/id: expected integers or strings"),
    prompts("temperature-type", "/prompts/temperature: expected floating point, found int64"),
    prompts("temperature-attribute", "attribute temperature: expected at least 0 and finite, found -0.5"),
    prompts("top-p-attribute", "attribute top_p: expected above 0 to 1, found 1.5"),
    prompts("seed-attribute", "attribute seed: expected an integer"),
    prompts("logprobs-type", "/prompts/logprobs: expected integers, found float64"),
    prompts("stop-text", "the prompts have stop_text and"),
    prompts("stop-offsets", "/prompts/stop_tokens_offsets: has length 3, expected 4"),
    prompts("stop-alone", "/prompts/stop_tokens_offsets: no such dataset"),
    prompts("attribute-type", "attribute max_new_tokens: expected an integer"),
]

# Record level: the job goes on; --strict stops it before it starts, --fail-on-error ends with 1.
RECORD_NAMES = ["record-empty", "record-token-high", "record-token-negative", "record-token-huge",
                "record-too-long", "record-limit", "record-temperature", "record-top-p", "record-logprobs"]
RECORDS = [prompts(name, "2 ok, 1 with an error", code=0) for name in RECORD_NAMES]
RECORDS += [prompts(name, "record 1", more="--strict") for name in RECORD_NAMES]
RECORDS += [prompts("record-empty", "2 ok, 1 with an error", code=1, more="--fail-on-error"),
            ("bad UTF-8", generate(target="{demo}", prompts="{h5:record-utf8}"), 0, "2 ok, 1 with an error")]

OUTPUTS = [
    ("complete output", generate(out="{complete}"), 2, "--output-exists overwrite"),
    ("output folder missing", generate(out="{tmp}/none/out.h5"), 4, "the folder {tmp}/none: No such"),
    ("output below a file", generate(out="{h5:good}/out.h5"), 4, "good.h5: Not a directory"),
    ("output below /proc", generate(out="/proc/none/out.h5"), 4, "the folder /proc/none: "),
    ("leftover parts", generate(out="{parts}"), 2, "{parts}.parts"),
    ("output is a folder", generate(out="{tmp}"), 2, "--out {tmp} is a folder"),
]

# Fine input: exit 0 and the words of the notice.
FINE = [
    prompts("no-stamp", "read as format 1", code=0),
    prompts("unknown-column", "not known and ignored: /prompts/colour", code=0),
    ("two prompts files", generate(prompts="{h5:good} {h5:good}"), 0, "6 ok"),
]

# One process by nature.
ALONE = [
    ("inspect nothing", "inspect {tmp}/none", 4, "none: cannot open"),
    ("inspect text", "inspect {demo}/config.json", 3, "not an HDF5 file"),
    ("inspect a broken checkpoint", "inspect {ckpt:truncated}", 3, "an end within the file's"),
    ("unpack prompts", "unpack {h5:good}", 3, "expected a file of kind 'generations'"),
    ("unpack text", "unpack {demo}/config.json", 3, "not an HDF5 file"),
    ("pack nothing", "pack {tmp}/none.txt --out {out}", 4, "none.txt"),
    ("pack what is no JSON", "pack {demo}/config.json --format jsonl --out {out}", 3, "config.json"),
    ("no arguments", "", 2, "Usage: quadrille"),
]

# Rank counts: (name, ranks, arguments, exit code, part).
RANKS = [
    ("three ranks", 3, generate(), 2, "--tp: expected 1 with 3 ranks"),
    ("two ranks of a model for one", 2, generate(target="{native}"), 2, "cannot be split over 2 ranks (legal: 1)"),
    ("tp beyond the ranks", 2, generate(more="--tp 4"), 2, "tp"),
]

ON_RANKS = USAGE + CHECKPOINTS + PROMPTS + RECORDS + OUTPUTS + FINE
