#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs the main job once: a dozen prompts through the bundled demo model on four
# ranks, then a table of what came out and some of the text.
#   tools/demo.sh [--ranks N] [--out DIR]     default: 4 ranks, a new folder under out/
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=4 out=
while [ $# -gt 0 ]; do
    case "$1" in
        --ranks) ranks=${2:?--ranks needs a number}; shift 2 ;;
        --out) out=${2:?--out needs a folder}; shift 2 ;;
        *) sed -n '3,5s/^# \{0,1\}//p' tools/demo.sh; [ "$1" = --help ] && exit 0; exit 2 ;;
    esac
done

step() { printf '\n== %s\n' "$*"; }

step "set up and build (the first time takes a few minutes)"
tools/setup.sh
. tools/environment.sh
configure_build
ninja -C "$QUADRILLE_BUILD" jobs/quadrille
quadrille=$QUADRILLE_BUILD/jobs/quadrille

if [ -z "$out" ]; then mkdir -p out && out=$(mktemp -d out/demo-XXXXXX); fi
mkdir -p "$out"
target=tests/data/models/demo-full-4bpw draft=tests/data/models/demo-dflash2

step "pack a dozen prompts"
"$quadrille" pack tests/data/demo_prompts.jsonl --out "$out/prompts.h5"

step "generate on $ranks ranks"
mpirun -n "$ranks" "$quadrille" generate --target "$target" --draft "$draft" \
    --prompts "$out/prompts.h5" --out "$out/generations.h5" --max-new-tokens 64

step "what is in $out/generations.h5"
"$quadrille" inspect "$out/generations.h5"

step "some of the text (prompt | continuation)"
"$quadrille" unpack "$out/generations.h5" --out "$out/generations.jsonl"
python3 tools/show_text.py tests/data/demo_prompts.jsonl "$out/generations.jsonl" 6
printf '\nfiles: %s\n' "$out"
