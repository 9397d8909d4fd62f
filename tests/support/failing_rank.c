// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD library: lets a rank come to grief at its k-th MPI_Allreduce, which a run calls once a
// step. Environment:
//   FAILING_RANK       which rank; unset: none
//   FAILING_RANK_AT    which call, from 1
//   FAILING_RANK_FILE  instead: the first call once this file is there
//   FAILING_RANK_ACT   error (the call fails), abort (MPI_Abort with code 9), abrt, bus, segv,
//   stop,
//                      kill
//   FAILING_RANK_MS    every call on every rank takes so many milliseconds more
#include <mpi.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long calls;

static long number(const char* name) {
    const char* value = getenv(name);
    return value == NULL ? -1 : atol(value);
}

int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
    const long delay = number("FAILING_RANK_MS");
    if (delay > 0) usleep((useconds_t)delay * 1000);
    const long call = atomic_fetch_add(&calls, 1) + 1;
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* act = getenv("FAILING_RANK_ACT");
    const char* file = getenv("FAILING_RANK_FILE");
    const int now = file == NULL ? call == number("FAILING_RANK_AT") : access(file, F_OK) == 0;
    if (act != NULL && rank == number("FAILING_RANK") && now) {
        if (strcmp(act, "error") == 0) return MPI_ERR_OTHER;
        if (strcmp(act, "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 9);
        if (strcmp(act, "segv") == 0) raise(SIGSEGV);
        if (strcmp(act, "bus") == 0) raise(SIGBUS);
        if (strcmp(act, "abrt") == 0) abort();
        if (strcmp(act, "stop") == 0) raise(SIGSTOP);
        if (strcmp(act, "kill") == 0) raise(SIGKILL);
    }
    return PMPI_Allreduce(in, out, count, type, op, comm);
}
