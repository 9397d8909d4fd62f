#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ and CUDA source of the tree with clang-format 14 (other versions break lines
# elsewhere). --check changes nothing and lists what differs; 77 (SKIP) where there is no formatter.
set -euo pipefail
cd "$(dirname "$0")/.."

check=0
case "${1-}" in
    '') ;;
    --check) check=1 ;;
    *) echo "usage: tools/format.sh [--check]" >&2; exit 2 ;;
esac

if command -v clang-format-14 >/dev/null; then
    formatter=clang-format-14
elif command -v clang-format >/dev/null && clang-format --version | grep -q 'version 14\.'; then
    formatter=clang-format
else
    echo "format: clang-format 14 is not installed" >&2
    exit 77
fi

sources() {
    git ls-files -z --cached --others --exclude-standard -- \
        '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' 2>/dev/null ||
        find . \( -name 'build*' -o -name '.venv' \) -prune -o -type f -regex '.*\.\(h\|c\|cpp\|cu\|cuh\)' -print0
}
# A file that git lists may have been removed from the tree.
files=()
while IFS= read -r -d '' file; do
    if [ -f "$file" ]; then files+=("$file"); fi
done < <(sources)
[ ${#files[@]} -gt 0 ] || { echo "format: found no source" >&2; exit 1; }

if [ $check = 1 ]; then
    "$formatter" --dry-run -Werror "${files[@]}" || { echo "format: run tools/format.sh" >&2; exit 1; }
else
    "$formatter" -i "${files[@]}"
fi
