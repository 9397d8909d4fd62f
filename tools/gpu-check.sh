#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: configures, builds, runs the GPU tests, the goldens, the whole program (with
# several GPUs: on ranks in NCCL too), the benches, and the memory and race checkers. Ends with a
# summary and the rows for docs/results.tsv. --only PATTERN: the build, and the steps whose names match.
# --minutes N stops starting new work when N minutes are over (default 20). --build DIR: an existing
# build folder. 77 (SKIP) without a GPU. Logs lie in the build folder under gpu-check/.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh

minutes=20
only=.
build=build-gpu
while [ $# -gt 0 ]; do
    case "$1" in
        --minutes) minutes=${2?}; shift 2 ;;
        --only) only=${2?}; shift 2 ;;
        --build) build=${2?}; shift 2 ;;
        *) echo "usage: tools/gpu-check.sh [--minutes N] [--only PATTERN] [--build DIR]" >&2; exit 2 ;;
    esac
done

command -v nvidia-smi >/dev/null && gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p) ||
    { echo "gpu-check: no GPU" >&2; exit 77; }
[ -n "$gpu" ] || { echo "gpu-check: no GPU" >&2; exit 77; }
# 9.0 -> 90a, 12.1 -> 121a: the instructions of that chip; older ones have none of their own.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n 1p | tr -d .)
if [ "$capability" -ge 90 ]; then arch=${capability}a; else arch=$capability; fi

start=$SECONDS
left() { echo $((minutes * 60 - (SECONDS - start))); }
summary=()
failed=0
logs=
# step NAME LIMIT COMMAND...: runs with a time limit, output to a log.
step() {
    local name=$1 limit=$2 began=$SECONDS result
    shift 2
    [ "$name" = build ] || [[ $name =~ $only ]] || return 1
    if [ "$(left)" -lt 15 ]; then summary+=("SKIP  $name (time)"); return 0; fi
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    if timeout "$limit" "$@" >"$logs/$name.log" 2>&1; then
        result=ok
    else
        case $? in
            77) result=SKIP ;;
            124) result="SKIP (stopped after $limit s)" ;;
            *) result=FAIL; failed=1; tail -n 15 "$logs/$name.log" ;;
        esac
    fi
    summary+=("$result  $name ($((SECONDS - began)) s)")
    [ "$result" = ok ]
}

if [ ! -f "$build/build.ninja" ]; then
    meson setup "$build" -Dcuda=enabled -Dgpu_arch="$arch" -Dwerror=false >/dev/null || exit 1
fi
logs=$build/gpu-check
mkdir -p "$logs"
tests=(rows sample products moe kda mla indexer draft)
targets=(tests/bench/cuda_bench tests/kernels/kernels_exl3_plan_test jobs/quadrille
    tests/runtime/runtime_gpu_golden_test tests/support/golden_files tests/support/same_results
    tests/kernels/kernels_block_ops_test tests/runtime/runtime_comm_test tests/bench/comm_bench
    tests/drafter/drafter_device_step_test tests/support/libfailing_rank.so)
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
for t in "${tests[@]}"; do targets+=("tests/kernels/kernels_cuda_${t}_test"); done
step build 600 ninja -C "$build" "${targets[@]}" || { printf '%s\n' "${summary[@]}"; exit 1; }

step test-plan 60 "$build/tests/kernels/kernels_exl3_plan_test"
for t in "${tests[@]}"; do step "test-$t" 240 "$build/tests/kernels/kernels_cuda_${t}_test"; done

step test-step 60 "$build/tests/kernels/kernels_block_ops_test"
# On NCCL where each rank has a GPU; else these cases skip.
step test-comm 120 mpirun -n 2 "$build/tests/runtime/runtime_comm_test" --gtest_filter='*nccl*'

# Goldens: QUADRILLE_TEST_MODELS may name a folder with the packs that are not part of the project.
golden=$build/tests/runtime/runtime_gpu_golden_test
step golden 400 "$golden" && grep -E ' on cuda: ' "$logs/golden.log"
step golden-check 300 env QUADRILLE_TEST_BACKEND=check "$golden" \
    --gtest_filter='Bundled*TeacherForced*:Bundled*DraftPaths*'

# The whole program: a file from the CPU, one from the GPU, one from ranks that share it.
files=$logs/files
rm -rf "$files" && mkdir -p "$files"
generate() {  # generate RANKS BACKEND NAME [FLAG...]
    local ranks=$1 backend=$2 name=$3 launch=()
    shift 3
    if [ "$ranks" -gt 1 ]; then launch=(mpirun -n "$ranks"); fi
    "${launch[@]}" "$build/jobs/quadrille" generate --target tests/data/models/demo-full-4bpw \
        --draft tests/data/models/demo-dflash2 --prompts "$files/${prompts:-prompts}.h5" \
        --max-new-tokens "${new_tokens:-64}" \
        --backend "$backend" --out "$files/$name.h5" "$@"
}
golden_files=$build/tests/support/golden_files
compare() { "$golden_files" compare full-4bpw "$@"; }
export -f generate compare
export build files golden_files
step files-prompts 60 bash -c '"$golden_files" prompts $files/prompts.h5 && "$golden_files" reversed $files/reversed.h5'
step files-cpu 240 bash -c 'generate 1 cpu cpu --k 7 && compare "$files/cpu.h5"'
step files-cuda 120 bash -c 'generate 1 cuda cuda --k 7 && compare "$files/cuda.h5"'
for ranks in 2 4; do
    step "files-cuda-$ranks" 120 bash -c "generate $ranks cuda cuda-$ranks --k 7 --comm mpi &&
        $build/tests/support/same_results $files/cuda.h5 $files/cuda-$ranks.h5"
done
# Graphs change nothing, greedy or drawn, on one rank and on several in NCCL: a GPU each, and four
# that share one, each on a host of its own as far as NCCL knows (right, but slow).
same() { "$build/tests/support/same_results" "$files/$1.h5" "$files/$2.h5"; }
# on_one_gpu RANKS NAME [FLAG...]
on_one_gpu() {
    local ranks=$1 name=$2 launch=(mpirun) rank
    shift 2
    for ((rank = 0; rank < ranks; ++rank)); do
        [ "$rank" -eq 0 ] || launch+=(:)
        launch+=(-n 1 env NCCL_HOSTID="node$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
            NCCL_NVLS_ENABLE=0 "$build/jobs/quadrille" generate --target tests/data/models/demo-full-4bpw
            --draft tests/data/models/demo-dflash2 --prompts "$files/prompts.h5" --backend cuda --comm nccl
            --max-new-tokens "${new_tokens:-64}" --out "$files/$name.h5" "$@")
    done
    "${launch[@]}"
}
export -f same on_one_gpu
step graph-steps 120 "$build/tests/drafter/drafter_device_step_test" --gtest_filter='GpuSteps*:CheckedSteps*'
for k in 0 2 7; do
    step "graph-k$k" 120 bash -c "generate 1 cuda eager-k$k --k $k --eager && generate 1 cuda graph-k$k --k $k &&
        same eager-k$k graph-k$k"
    for ranks in 2 4; do
        step "mpi-$ranks-k$k" 120 bash -c "generate $ranks cuda mpi-$ranks-k$k --k $k --comm mpi &&
            same eager-k$k mpi-$ranks-k$k"
        [ "$gpus" -ge "$ranks" ] || continue
        step "nccl-$ranks-k$k" 120 bash -c "generate $ranks cuda nccl-$ranks-k$k --k $k --comm nccl &&
            same eager-k$k nccl-$ranks-k$k"
        step "nccl-eager-$ranks-k$k" 120 bash -c "generate $ranks cuda nccl-$ranks-e$k --k $k --comm nccl --eager &&
            same eager-k$k nccl-$ranks-e$k"
    done
done
step graph-drawn 120 bash -c 'generate 1 cuda drawn-eager --k 3 --temperature 0.9 --eager &&
    generate 1 cuda drawn --k 3 --temperature 0.9 --max-seqs 5 && same drawn-eager drawn'
step nccl-on-one-gpu 200 bash -c 'export new_tokens=6; generate 1 cuda few --k 2 --limit 4 --eager &&
    on_one_gpu 4 few-nccl --k 2 --limit 4 && same few few-nccl'
# expect CODE TEXT COMMAND...
expect() {
    local code=$1 text=$2 found
    shift 2
    found=$("$@" 2>&1)
    local got=$?
    echo "$found"
    [ $got -eq "$code" ] && grep -q "$text" <<<"$found"
}
export -f expect
step nccl-shared-gpu 60 env CUDA_VISIBLE_DEVICES=0 bash -c \
    'expect 5 "found ranks 0 and 1 on GPU" generate 2 cuda refused --comm nccl'
step nccl-no-gpu 60 env CUDA_VISIBLE_DEVICES=77 bash -c \
    'expect 5 "no usable GPU" generate 2 cuda refused --comm nccl'
# Two ranks on NCCL, a GPU each where there are two. Rank 1 is stopped, killed, or fails at a step:
# the other ends within the watchdog's limit, and who it was is said.
two_ranks() {  # two_ranks NAME [FLAG...]
    if [ "$gpus" -ge 2 ]; then generate 2 cuda "$@" --comm nccl; else on_one_gpu 2 "$@"; fi
}
# lost_rank SIGNAL CODE TEXT
lost_rank() {
    local name=lost$1 job pid code began
    local beat=$files/$name.json output=$files/$name.txt
    new_tokens=200 two_ranks "$name" --k 2 --n 200 --ignore-eos --temperature 0.5 --watchdog 8 --heartbeat "$beat" \
        >"$output" 2>&1 &
    job=$!
    until grep -qs '"state":"running"' "$beat"; do
        kill -0 $job || { cat "$output"; return 1; }
        sleep 0.2
    done
    sleep 2
    for pid in $(pgrep -f "$files/$name.h5"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 && kill "$1" "$pid"
    done
    began=$SECONDS
    wait $job
    code=$?
    cat "$output"
    echo "ended with $code after $((SECONDS - began)) s"
    [ $code -eq "$2" ] && [ $((SECONDS - began)) -le 12 ] && grep -q "$3" "$output"
}
export -f two_ranks lost_rank
export gpus
step nccl-stopped-rank 90 bash -c 'lost_rank -STOP 6 "comm error: rank 1 .* has been silent"'
step nccl-killed-rank 90 bash -c 'lost_rank -KILL 137 "process rank 1 .* exited on signal 9"'
step nccl-failing-rank 90 env FAILING_RANK=1 FAILING_RANK_AT=40 FAILING_RANK_ACT=error bash -c \
    'expect 6 "^\[rank 1/2 .*comm error: MPI_Allreduce" env LD_PRELOAD="$build/tests/support/libfailing_rank.so" \
        bash -c "two_ranks failing --k 2"'

# Nor does the order of the prompts (the goldens above: no K, batch or order changes a token).
step files-reversed 120 bash -c 'prompts=reversed generate 1 cuda cuda-reversed --k 2 --max-seqs 5 &&
    "$golden_files" same $files/cuda.h5 $files/cuda-reversed.h5'
# Sampled, with penalties and log-probabilities.
sampled="--temperature 0.9 --top-p 0.95 --repetition-penalty 1.1 --logprobs 2"
step sampled 120 bash -c "generate 1 cuda sampled --k 0 $sampled && generate 1 cuda sampled-k4 --k 4 --max-seqs 3 $sampled &&
    prompts=reversed generate 2 cuda sampled-reversed --k 7 --comm mpi $sampled &&
    $golden_files same $files/sampled.h5 $files/sampled-k4.h5 $files/sampled-reversed.h5"

# Filters alone are part of the recorded step.
step filtered 120 bash -c 'flags="--k 3 --temperature 1.2 --top-p 0.9 --min-p 0.01" &&
    generate 1 cuda filtered-eager $flags --eager && generate 1 cuda filtered $flags --max-seqs 5 && same filtered-eager filtered &&
    flags="--k 2 --temperature 1 --top-k 300 --top-p 0.95" &&
    generate 1 cuda top-k-eager $flags --eager && generate 1 cuda top-k $flags && same top-k-eager top-k'

step bench 240 "$build/tests/bench/cuda_bench"
step bench-comm 120 mpirun -n 2 "$build/tests/bench/comm_bench"
bench=("$build/jobs/quadrille" bench --target tests/data/models/demo-full-4bpw --draft tests/data/models/demo-dflash2
    --k 0,2,7 --concurrency 1,8 --prompt-tokens 64 --new-tokens 96 --repeat 3 --backend cuda)
rm -f "$logs"/demo*.tsv
for way in "" --eager; do
    step "bench-demo$way" 120 "${bench[@]}" $way --append-tsv "$logs/demo$way.tsv"
    [ "$gpus" -lt 2 ] ||
        step "bench-demo-nccl$way" 120 mpirun -n 2 "${bench[@]}" --comm nccl $way --append-tsv "$logs/demo-nccl$way.tsv"
done
if command -v compute-sanitizer >/dev/null; then
    step memcheck-generate 240 compute-sanitizer --tool memcheck --error-exitcode 1 \
        --target-processes all "$build/jobs/quadrille" generate --backend cuda --limit 2 --k 4 \
        --target tests/data/models/demo-full-4bpw --draft tests/data/models/demo-dflash2 \
        --prompts "$files/prompts.h5" --max-new-tokens 6 --out "$files/memcheck.h5"
    # sanitize TOOL TEST: side by side, for most of the time goes by on the host.
    sanitize() {
        local shards=8 pids=() options=() result=0 i
        # A test asks for too much memory on purpose: failed API calls are no finding.
        [ "$1" != memcheck ] || options=(--report-api-errors no)
        for ((i = 0; i < shards; ++i)); do
            GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$1" "${options[@]}" \
                --error-exitcode 1 "$build/tests/kernels/kernels_cuda_$2_test" &
            pids+=($!)
        done
        for i in "${pids[@]}"; do wait "$i" || result=1; done
        return $result
    }
    export -f sanitize
    for t in rows kda mla indexer draft moe products; do
        for tool in memcheck racecheck; do
            step "$tool-$t" 400 bash -c "sanitize $tool $t"
        done
    done
else
    summary+=("SKIP  compute-sanitizer (not installed)")
fi

echo "--- rows for docs/results.tsv: date commit hardware bench shape value unit floor"
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
for rows in "$logs/bench.log" "$logs/bench-comm.log"; do
    [ ! -f "$rows" ] || awk -v date="$(date -u +%F)" -v commit="$commit" -v gpu="$gpu" \
        'BEGIN { FS = OFS = "\t" } NF == 5 { print date, commit, gpu, $0 }' "$rows"
done
for rows in "$logs"/demo*.tsv; do [ ! -f "$rows" ] || tail -n +2 "$rows"; done
echo "--- $gpu, sm_$arch, $commit"
printf '%s\n' "${summary[@]}"
exit $failed
