#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm of one node on the loopback interface, as root, without systemd or cgroups; all its files in DIR.
# It may claim 8 CPUs and 4 GPUs, whatever the machine has; a requeued job starts after 10 s (cred_expire)
# instead of two minutes. Usage: single-node-slurm.sh start|stop DIR
set -euo pipefail
D=${2:-${TMPDIR:-/tmp}/slurm1}; H=$(hostname -s)
export SLURM_CONF=$D/slurm.conf
start() {
  mkdir -p $D/state $D/spool $D/log $D/munge; chmod 755 $D
  # munge: own key, socket and pid in $D, run as root with --force (avoids /run/munge ownership)
  dd if=/dev/urandom of=$D/munge/key bs=128 count=1 status=none; chmod 600 $D/munge/key
  chmod 755 $D/munge
  munged --force --key-file=$D/munge/key --socket=$D/munge/socket --pid-file=$D/munge/pid --log-file=$D/munge/log --seed-file=$D/munge/seed
  cat > $SLURM_CONF <<CONF
ClusterName=one
SlurmctldHost=$H(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket,cred_expire=10
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=$H NodeAddr=127.0.0.1 CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=20000 Gres=gpu:4 State=UNKNOWN
PartitionName=batch Nodes=$H Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
  for i in 0 1 2 3; do echo "NodeName=$H Name=gpu File=/dev/tty$i"; done > $D/gres.conf   # stand-in device nodes: nothing opens them
  slurmctld -f $SLURM_CONF
  slurmd -f $SLURM_CONF
  for i in $(seq 50); do sinfo -h -o %t 2>/dev/null | grep -q idle && break; sleep 0.2; done
  sinfo -N -l
}
stop() { for p in slurmd slurmctld munge/pid; do f=$D/$p; [ "$p" = munge/pid ] || f=$D/$p.pid; [ -f $f ] && kill $(cat $f) || true; done; }
"$1"
