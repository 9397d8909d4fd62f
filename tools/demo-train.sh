#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a drafter on a capture of its target and compares it with the one it started from: capture,
# stage a, stage b, generate at K = 2 and K = 7 with both, ab. The program must be built.
#   tools/demo-train.sh --prompts H5 --evaluation H5 [--target DIR] [--draft DIR] [--out DIR]
#       [--limit N] [--evaluate N] [--tokens N] [--epochs N] [--ranks N]
# Default: the bundled demo models, all prompts, 96 tokens, 4 epochs, 1 rank. Started again with the
# same --out it goes on: what is complete is not made twice.
set -euo pipefail
cd "$(dirname "$0")/.."

prompts='' evaluation='' out='' tokens=96 epochs=4 ranks=1 limit=() evaluate=()
target=tests/data/models/demo-full-4bpw draft=tests/data/models/demo-dflash2
while [ $# -gt 0 ]; do
    case "$1" in
        --prompts | --evaluation | --target | --draft | --out | --tokens | --epochs | --ranks)
            declare "${1#--}=${2:?$1 needs a value}"; shift 2 ;;
        --limit) limit=(--limit "${2:?--limit needs a number}"); shift 2 ;;
        --evaluate) evaluate=(--limit "${2:?--evaluate needs a number}"); shift 2 ;;
        *) sed -n '3,8s/^# \{0,1\}//p' tools/demo-train.sh; [ "$1" = --help ] && exit 0; exit 2 ;;
    esac
done
if [ -z "$prompts" ] || [ -z "$evaluation" ]; then echo "expected --prompts and --evaluation" >&2; exit 2; fi

. tools/environment.sh
quadrille=${QUADRILLE:-$QUADRILLE_BUILD/jobs/quadrille}
if [ -z "$out" ]; then mkdir -p out && out=$(mktemp -d out/demo-train-XXXXXX); fi
mkdir -p "$out"

job() { mpirun -n "$ranks" "$quadrille" "$@"; }
step() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

step "capture"
job capture --target "$target" --draft "$draft" --k 0 --prompts "$prompts" "${limit[@]}" --max-new-tokens "$tokens" \
    --ignore-eos --max-seqs 32 --output-exists skip --out "$out/capture.h5"

train() {  # stage, drafter to start from
    [ -e "$out/stage-$1/model.safetensors" ] && return
    job train --target "$target" --draft "$2" --capture "$out/capture.h5" --stage "$1" --epochs "$epochs" \
        --out "$out/stage-$1"
}
step "stage a"
train a "$draft"
step "stage b"
train b "$out/stage-a"

for k in 2 7; do
    files=()
    for drafter in "$draft" "$out/stage-a" "$out/stage-b"; do
        files+=("$out/$(basename "$drafter")-k$k.h5")
        step "generate with $drafter, K = $k"
        job generate --target "$target" --draft "$drafter" --k "$k" --prompts "$evaluation" "${evaluate[@]}" \
            --max-new-tokens "$tokens" --ignore-eos --max-seqs 32 --output-exists skip --out "${files[-1]}"
    done
    step "compare, K = $k"
    "$quadrille" ab "${files[@]}" --prompts "$evaluation" --json "$out/ab-k$k.json"
done
printf '\nfiles: %s\n' "$out"
