#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a pack and a drafter rung by rung with `quadrille bench`: records at once, drafts a step (K), eager
# and graphs, other packs, other drafters. Each run has its bench JSON (io/FORMAT.md), its log and a line of
# runs.tsv; rows go to results.tsv; report.html shows them. A run that fails is noted and the next one starts.
# The same command goes on behind the runs that succeeded.
#   tools/ladder.sh TARGET DRAFT [--out DIR] [--ranks N] [--pack DIR]... [--drafter DIR]... [--k N] [--ks N,N...]
#                   [--concurrency N,N...] [--prompts FILE] [--prompt-tokens N] [--new-tokens N] [-- FLAGS OF BENCH]
# Defaults: --out ladder, --ranks 1, --k 2, --ks 0,1,2,3,4,5,7, --concurrency 1,2,4,8,16,32,64
# DRAFT may be none. MPIRUN ("mpirun -n N") and QUADRILLE (the program) are taken from the environment.
set -euo pipefail

usage() { sed -n '7,11s/^# \{0,1\}//p' "$0"; }
tools=$(cd "$(dirname "$0")" && pwd)
out=ladder ranks=1 k=2 ks=0,1,2,3,4,5,7 concurrency=1,2,4,8,16,32,64
packs=() drafters=() bench=()
if [ "${1-}" = --help ] || [ "${1-}" = -h ]; then usage; exit 0; fi
if [ $# -lt 2 ]; then usage >&2; exit 2; fi
target=$1 draft=$2
shift 2
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then shift; bench+=("$@"); break; fi
    if [ $# -lt 2 ]; then echo "ladder: $1: expected a value" >&2; exit 2; fi
    case "$1" in
        --out) out=$2 ;;
        --ranks) ranks=$2 ;;
        --pack) packs+=("$2") ;;
        --drafter) drafters+=("$2") ;;
        --k) k=$2 ;;
        --ks) ks=$2 ;;
        --concurrency) concurrency=$2 ;;
        --prompts | --prompt-tokens | --new-tokens) bench+=("$1" "$2") ;;
        *) echo "ladder: $1: no such option" >&2; usage >&2; exit 2 ;;
    esac
    shift 2
done

program=${QUADRILLE:-$(command -v quadrille || echo "$tools/../${QUADRILLE_BUILD:-build}/jobs/quadrille")}
[ -x "$program" ] || { echo "ladder: $program: no program; set QUADRILLE or build it" >&2; exit 2; }
read -r -a launch <<<"${MPIRUN-}"
if [ ${#launch[@]} -eq 0 ] && [ "$ranks" != 1 ]; then launch=(mpirun -n "$ranks"); fi
if [ "$draft" = none ]; then k=0 ks=0; fi
mkdir -p "$out"
runs=$out/runs.tsv rows=$out/results.tsv
[ -s "$runs" ] || printf 'run\texit\tseconds\tcommand\n' >"$runs"
failed=0

# run NAME TARGET DRAFT ARGUMENTS...: two records for each slot, four at least. Rows are appended once the run is good.
run() {
    local name=$1 pack=$2 drafter=$3 code=0 begin=$SECONDS note='' command
    shift 3
    if [ -s "$out/$name.json" ]; then echo "ladder: $name: done before"; return; fi
    command=(${launch[@]+"${launch[@]}"} "$program" bench --target "$pack" --draft "$drafter" "$@"
        ${bench[@]+"${bench[@]}"} --json "$out/$name.json.new" --append-tsv "$out/$name.tsv.new")
    rm -f "$out/$name.json.new" "$out/$name.tsv.new"
    "${command[@]}" >"$out/$name.log" 2>&1 || code=$?
    if [ "$code" = 0 ]; then
        if [ -s "$rows" ]; then tail -n +2 "$out/$name.tsv.new" >>"$rows"; else cat "$out/$name.tsv.new" >>"$rows"; fi
        rm "$out/$name.tsv.new"
        mv "$out/$name.json.new" "$out/$name.json"
    else
        failed=$((failed + 1))
    fi
    printf '%s\t%s\t%s\t%s\n' "$name" "$code" $((SECONDS - begin)) "$(echo "${command[*]}" | tr '\t\n' '  ')" >>"$runs"
    if [ "$code" != 0 ]; then note=": $(tail -n 1 "$out/$name.log")"; fi
    echo "ladder: $name: exit $code, $((SECONDS - begin)) s$note"
}
limit() { echo $(($1 < 2 ? 4 : 2 * $1)); }
name_of() { basename "$1" | tr -c 'A-Za-z0-9._\n-' '-'; }

for c in ${concurrency//,/ }; do
    run "concurrency-$c" "$target" "$draft" --k "$k" --concurrency "$c" --limit "$(limit "$c")"
done
for n in ${ks//,/ }; do
    if [ "$n" != "$k" ]; then run "k-$n" "$target" "$draft" --k "$n" --concurrency 1 --limit 4; fi
done
run eager "$target" "$draft" --k "$k" --concurrency 1 --limit 4 --eager
for i in ${packs[@]+"${!packs[@]}"}; do
    run "pack-$((i + 1))-$(name_of "${packs[i]}")" "${packs[i]}" "$draft" --k "$k" --concurrency 1 --limit 4
done
for i in ${drafters[@]+"${!drafters[@]}"}; do
    run "drafter-$((i + 1))-$(name_of "${drafters[i]}")" "$target" "${drafters[i]}" --k "$k" --concurrency 1 --limit 4
done

files=("$runs")
[ -s "$rows" ] && files+=("$rows")
python3 "$tools/report.py" "${files[@]}" --html "$out/report.html"
[ "$failed" = 0 ] || { echo "ladder: $failed runs failed: see $runs" >&2; exit 1; }
