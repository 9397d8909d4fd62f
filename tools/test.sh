#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs all tests; the last line is "N passed, N failed, N skipped".
#   --slow      also the suite `slow` (long failure and stress tests)
#   --data DIR  folder of further checkpoints; without it the tests that need them are skipped
#   --slurm     also the batch scripts, on a Slurm of one node (as root; installs Slurm's packages)
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '3,6s/^# \{0,1\}//p' tools/test.sh; echo "usage: tools/test.sh [--slow] [--data DIR] [--slurm]"; }
select=(--no-suite slow)
setup=
while [ $# -gt 0 ]; do
    case "$1" in
        --slurm) setup=--slurm; shift ;;
        --slow) select=(); export QUADRILLE_TEST_SLOW=1; shift ;;
        --data)
            [ -d "${2-}" ] || { echo "test: --data: no such folder: ${2-}" >&2; exit 2; }
            QUADRILLE_TEST_MODELS=$(cd "$2" && pwd)
            export QUADRILLE_TEST_MODELS
            shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

tools/setup.sh $setup
. tools/environment.sh
configure_build
ninja -C "$QUADRILLE_BUILD"

# Results of an earlier run must not stand in for those of a test that dies before it writes its own.
find "$QUADRILLE_BUILD" -maxdepth 1 -name '*.xml' -delete
rm -f "$QUADRILLE_BUILD"/meson-logs/testlog*
meson test -C "$QUADRILLE_BUILD" --no-rebuild --print-errorlogs --timeout-multiplier 4 \
    ${select[@]+"${select[@]}"} || true
exec python3 tools/count_results.py "$QUADRILLE_BUILD"
