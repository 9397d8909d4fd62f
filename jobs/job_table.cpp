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
    return {
        on_ranks("generate", "Generate text for the prompts of HDF5 files.", run_generate_saving),
        alone("plan", "Say what a run takes and whether it fits, before it is queued.", run_plan),
        on_ranks("bench", "Measure speed, next to what the machine could reach.", run_bench),
        on_ranks("capture", "Save what the target shows of prompts and its own text.", run_capture),
        on_ranks("probe", "Say what the rows of a capture tell of the next token.", run_probe),
        on_ranks("train", "Train a drafter on a capture of its target.", run_train),
        alone("ab", "Compare drafters by the generations they helped to make.", run_ab),
        alone("compare", "Compare what runs made of the same prompts.", run_compare),
        on_ranks("eval", "Say how well a checkpoint predicts given texts.", run_eval),
        on_ranks("score", "Score tokens that records already have.", run_score),
        on_ranks("verify", "Replay finished records without drafts.", run_verify),
        on_ranks("quantize", "Make an EXL3 pack of a BF16 or FP8 checkpoint.", run_quantize),
        alone("inspect", "Say what is in a file or a checkpoint.", run_inspect),
        alone("pack", "Write text or JSON lines as a prompts file.", run_pack),
        alone("unpack", "Write generations as JSON lines.", run_unpack),
        alone("merge", "Make one generations file of those of all shards.", run_merge),
    };
}

}  // namespace quadrille
