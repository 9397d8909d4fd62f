#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing need on Debian 12 or Ubuntu 24.04: the distribution's packages
# (as root, or through sudo), and meson from PyPI into .venv/ where none on PATH is new enough.
# Whatever is there already, from any source, is left alone: then it needs no network and no rights.
# --slurm: also Slurm, for the test of the batch scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

slurm=no
if [ "${1-}" = --slurm ]; then slurm=yes; fi

have() { command -v "$1" >/dev/null 2>&1; }
have_pc() { have pkg-config && pkg-config --exists "$@"; }
have_header() { printf '#include <%s>\n' "$1" | c++ -fsyntax-only -x c++ - 2>/dev/null; }
have_formatter() { have clang-format-14 || { have clang-format && clang-format --version | grep -q 'version 14\.'; }; }
have_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

# Prints the packages of what is missing, one a line. $1: needed or wanted.
missing() {
    if [ "$1" = wanted ]; then
        have_pc icu-uc || echo libicu-dev              # without: no tokenizer, token files only
        have_formatter || echo clang-format-14         # without: the format check is skipped
        if [ "$slurm" = yes ] && ! { have slurmctld && have slurmd && have munged && have sbatch; }; then
            echo slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge  # without: their test is skipped
        fi
        return
    fi
    { have c++ && have g++; } || echo g++
    have ninja || echo ninja-build
    have pkg-config || echo pkg-config
    have mpirun || echo openmpi-bin
    have_pc mpi-c || have_pc ompi-c || echo libopenmpi-dev
    have_pc hdf5-serial || have_pc hdf5 || echo libhdf5-dev
    have_pc fmt || echo libfmt-dev
    have_pc nlohmann_json || echo nlohmann-json3-dev
    have_pc CLI11 || have_header CLI/CLI.hpp || echo libcli11-dev
    have_pc gtest || echo libgtest-dev
    have python3 || echo python3
}

# True if meson $1 exists and is at least 1.4.
new_enough() {
    local version
    version=$("$1" --version 2>/dev/null) || return 1
    [ "$(printf '1.4\n%s\n' "$version" | sort -V | head -n 1)" = 1.4 ]
}
have_meson() { new_enough .venv/bin/meson || new_enough meson; }

install_packages() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || { echo "setup: installing needs root or sudo: $*" >&2; return 1; }
        as_root=(sudo)
    fi
    have apt-get || { echo "setup: no apt-get here; install by hand: $*" >&2; return 1; }
    echo "setup: installing $*"
    "${as_root[@]}" apt-get update -q -o Acquire::http::Timeout=30 &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
            --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

needed=$(missing needed)
wanted=$(missing wanted)
if ! have_meson && ! have_venv; then needed="$needed python3-venv"; fi
if [ -n "$needed$wanted" ]; then
    # Word splitting is meant: package names hold no blanks.
    # shellcheck disable=SC2086
    install_packages $needed $wanted || { [ -n "$needed" ] && [ -n "$wanted" ] && install_packages $needed; } || true
    needed=$(missing needed)
    if [ -n "$needed" ]; then
        echo "setup: still missing after installing:" $needed >&2
        exit 1
    fi
    wanted=$(missing wanted)
    if [ -n "$wanted" ]; then echo "setup: going on without" $wanted >&2; fi
fi

if ! have_meson; then
    echo "setup: installing meson into .venv/"
    python3 -m venv .venv
    .venv/bin/pip install --quiet 'meson>=1.4'
    have_meson || { echo "setup: meson >= 1.4 is missing and could not be installed" >&2; exit 1; }
fi
