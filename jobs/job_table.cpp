// SPDX-License-Identifier: Apache-2.0
#include "jobs/job_table.h"

#include "jobs/ab/ab.h"
#include "jobs/ab/compare.h"
#include "jobs/bench/bench.h"
#include "jobs/capture/capture.h"
#include "jobs/eval/eval.h"
#include "jobs/files/inspect.h"
#include "jobs/files/merge.h"
#include "jobs/files/pack.h"
#include "jobs/files/unpack.h"
#include "jobs/plan/plan.h"
#include "jobs/probe/probe.h"
#include "jobs/quantize/quantize.h"
#include "jobs/score/score.h"
#include "jobs/train/train.h"
#include "jobs/verify/verify.h"

namespace quadrille {

std::vector<JobRow> job_table() {
    std::vector<JobRow> rows;
    const auto add = [&](JobRow row, const char* required, const char* example) {
        row.required = required;
        row.example = example;
        rows.push_back(std::move(row));
    };
    add(on_ranks("generate", "Generate text for the prompts of HDF5 files.", run_generate_saving),
        "--target DIR --prompts FILE --out FILE",
        "mpirun -n 4 quadrille generate --target M --prompts p.h5 --out g.h5");
    add(alone("plan", "Say what a run takes and whether it fits, before it is queued.", run_plan),
        "--target DIR", "quadrille plan --target M --draft D --ranks 4");
    add(on_ranks("bench", "Measure speed, next to what the machine could reach.", run_bench),
        "--target DIR", "mpirun -n 4 quadrille bench --target M --draft D --k 0,2");
    add(on_ranks("capture", "Save what the target shows of prompts and its own text.", run_capture),
        "--target DIR --prompts FILE --out FILE",
        "quadrille capture --target M --draft D --prompts p.h5 --out c.h5");
    add(on_ranks("probe", "Say what the rows of a capture tell of the next token.", run_probe),
        "--target DIR --capture FILE", "quadrille probe --target M --capture c.h5");
    add(on_ranks("train", "Train a drafter on a capture of its target.", run_train),
        "--target DIR --draft DIR --capture F --out DIR",
        "quadrille train --target M --draft D --capture c.h5 --out new");
    add(alone("ab", "Compare drafters by the generations they helped to make.", run_ab),
        "FILE FILE...", "quadrille ab base.h5 new.h5");
    add(alone("compare", "Compare what runs made of the same prompts.", run_compare),
        "FILE FILE...", "quadrille compare a.h5 b.h5");
    add(on_ranks("eval", "Say how well a checkpoint predicts given texts.", run_eval),
        "--target DIR --prompts FILE", "mpirun -n 2 quadrille eval --target M --prompts p.h5");
    add(on_ranks("score", "Score tokens that records already have.", run_score),
        "--target DIR --prompts FILE --out FILE",
        "quadrille score --target M --prompts q.jsonl --out s.h5");
    add(on_ranks("verify", "Replay finished records without drafts.", run_verify),
        "FILE --target DIR --prompts FILE", "quadrille verify g.h5 --target M --prompts p.h5");
    add(on_ranks("quantize", "Make an EXL3 pack of a BF16 or FP8 checkpoint.", run_quantize),
        "--in DIR --out DIR", "quadrille quantize --in M --out P --routed-bits 2");
    add(alone("inspect", "Say what is in a file or a checkpoint.", run_inspect), "PATH...",
        "quadrille inspect g.h5");
    add(alone("pack", "Write text or JSON lines as a prompts file.", run_pack),
        "FILE... --out FILE", "quadrille pack lines.jsonl --out p.h5");
    add(alone("unpack", "Write generations as JSON lines.", run_unpack), "FILE...",
        "quadrille unpack g.h5 --out g.jsonl");
    add(alone("merge", "Make one generations file of those of all shards.", run_merge),
        "FILE... --out FILE", "quadrille merge s-0.h5 s-1.h5 --out g.h5");
    return rows;
}

}  // namespace quadrille
