#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts generate over several hosts, a rank each, without a queue: mpirun with the variables that matter.
#   tools/launch-sparks.sh worker N            on host N (1, 2, …): says whether it is ready, changes nothing
#   tools/launch-sparks.sh head [FLAGS…]       on the first host: runs `quadrille generate FLAGS…` on all
#   tools/launch-sparks.sh show [FLAGS…]       prints head's command instead
# HOSTS="spark-1 spark-2 spark-3 spark-4" names them, the first being this one; ssh must reach the others
# without a password, and the program and the models lie under the same paths everywhere.
# EXL3_MODEL, DFLASH_DRAFT, DFLASH_K and CUDA_GRAPHS are the program's own variables. QUADRILLE names the
# program, MPIRUN the launcher, RANKS_PER_HOST how many ranks a host has (1), MPI_IFNAME the interface for
# MPI's messages. NCCL_*, UCX_* and OMPI_* variables that are set here are set on every host.
set -euo pipefail

usage() { sed -n '3,11s/^# \{0,1\}//p' "$0"; }
program=$(realpath -m "${QUADRILLE:-$(dirname "$0")/../build/jobs/quadrille}")

# Lines of "ok" and "??"; fails where the host cannot take part.
check_host() {
    local bad=0 model device mtu
    say() { printf '%-3s %s\n' "$1" "$2"; [ "$1" != '??' ] || bad=1; }
    if [ -x "$program" ]; then say ok "program: $("$program" --version 2>/dev/null | head -n 1)"; else say '??' "no program at $program"; fi
    for model in "${EXL3_MODEL:-}" "${DFLASH_DRAFT:-}"; do
        case $model in '' | none) continue ;; esac
        if [ -f "$model/config.json" ]; then say ok "model: $model"; else say '??' "no config.json in $model"; fi
    done
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then say ok "$(nvidia-smi -L | head -n 1)"; else say '??' "no GPU"; fi
    say ok "memory available: $(awk '/MemAvailable/ {printf "%.1f GB", $2 / 1e6}' /proc/meminfo)"
    # A device name of an HCA may carry = or ^ before the list and :port behind.
    for device in $(printf '%s' "${NCCL_IB_HCA:-}" | tr -d '=^' | tr ',' ' '); do
        device=${device%%:*}
        [ -d "/sys/class/infiniband/$device" ] || { say '??' "no InfiniBand or RoCE device $device (NCCL_IB_HCA)"; continue; }
        for interface in /sys/class/infiniband/"$device"/device/net/*; do
            [ -e "$interface/mtu" ] || continue
            mtu=$(cat "$interface/mtu")
            if [ "$mtu" -ge 9000 ]; then say ok "$device: $(basename "$interface"), MTU $mtu"; else say '??' "$device: $(basename "$interface") has MTU $mtu, expected 9000"; fi
        done
    done
    [ ! -e /etc/nccl.conf ] || say '--' "/etc/nccl.conf is there: it sets NCCL variables for every program"
    return $bad
}

command_line() {
    local hosts=() ranks=${RANKS_PER_HOST:-1} host name
    for host in ${HOSTS:?the hosts, this one first}; do hosts+=("$host:$ranks"); done
    line=("${MPIRUN:-mpirun}" -n "$((${#hosts[@]} * ranks))" --host "$(IFS=,; echo "${hosts[*]}")" --map-by "ppr:$ranks:node")
    if [ -n "${MPI_IFNAME:-}" ]; then
        line+=(--mca btl_tcp_if_include "$MPI_IFNAME" --mca oob_tcp_if_include "$MPI_IFNAME")
    fi
    # mpirun hands on OMPI_MCA_ variables by itself.
    for name in $(compgen -e | grep -E '^(NCCL|UCX)_' || true); do line+=(-x "$name"); done
    line+=("$program" generate "$@")
}

case "${1-}" in
    head) shift; command_line "$@"; exec "${line[@]}" ;;
    show) shift; command_line "$@"; printf '%q ' "${line[@]}"; echo ;;
    worker)
        [[ ${2-} =~ ^[1-9][0-9]*$ ]] || { echo "launch-sparks: worker: expected the number of the host, found '${2-}'" >&2; exit 2; }
        if check_host; then echo "host $2 is ready: head starts its rank"; else echo "host $2 is not ready" >&2; exit 1; fi ;;
    *) usage; [ "${1-}" = --help ] || exit 2 ;;
esac
