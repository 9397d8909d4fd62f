// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD library: makes the k-th call that changes or reads a file below a folder fail, to test
// what a full or broken disk does. One process counts its own calls. Environment:
//   FAILING_IO_FOLDER  absolute path; other files are left alone. Unset: nothing is counted
//   FAILING_IO_AT      which call fails, from 1; 0 or unset: none
//   FAILING_IO_OPS     letters of the calls that count: w write, t truncate, s sync, r rename,
//                      c close of a file open for writing; default these. l lock,
//                      p pread of FAILING_IO_LEAST bytes or more
//   FAILING_IO_ERRNO   ENOSPC (default), EIO or ENOLCK; END: a pread finds the end of the file,
//                      HANG: the call does not return
//   FAILING_IO_SHORT   bytes that a pread below the folder gives at most, as NFS may
//   FAILING_IO_RANK    only calls of this rank of an Open MPI job count; unset: all do
//   FAILING_IO_STICKY  1: every counted call from the k-th on fails, as a disk that stays full
//   FAILING_IO_LOG     a file outside the folder that gets a line "letter path" for each counted
//   call
// A failing close does close the descriptor, as Linux does.
#undef _FILE_OFFSET_BITS  // it would rename pwrite to pwrite64, and both are defined here
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static int is_below(const char* path, const char* folder) {
    const size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static void log_call(char op, const char* path) {
    const char* log = getenv("FAILING_IO_LOG");
    if (log == NULL) return;
    char line[PATH_MAX + 8];
    const int n = snprintf(line, sizeof line, "%c %s\n", op, path);
    const long fd =
        syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || n < 0) return;
    // One write a line: lines of several processes do not mix.
    if (syscall(SYS_write, fd, line, (size_t)n) < 0) abort();
    syscall(SYS_close, fd);
}

// True if this call is to fail; errno is then set.
static int fails(char op, const char* path) {
    const char* folder = getenv("FAILING_IO_FOLDER");
    const char* ops = getenv("FAILING_IO_OPS");
    const char* rank = getenv("FAILING_IO_RANK");
    const char* own = getenv("OMPI_COMM_WORLD_RANK");
    if (rank != NULL && (own == NULL || strcmp(rank, own) != 0)) return 0;
    if (folder == NULL || *folder == '\0' || !is_below(path, folder)) return 0;
    if (strchr(ops == NULL ? "wtsrc" : ops, op) == NULL) return 0;
    const long call = atomic_fetch_add(&calls, 1) + 1;
    log_call(op, path);
    const char* at = getenv("FAILING_IO_AT");
    const char* sticky = getenv("FAILING_IO_STICKY");
    const long chosen = at == NULL ? 0 : atol(at);
    if (chosen <= 0 || call < chosen) return 0;
    if (call > chosen && (sticky == NULL || *sticky != '1')) return 0;
    const char* name = getenv("FAILING_IO_ERRNO");
    errno = ENOSPC;
    if (name != NULL && strcmp(name, "EIO") == 0) errno = EIO;
    if (name != NULL && strcmp(name, "ENOLCK") == 0) errno = ENOLCK;
    if (name != NULL && strcmp(name, "END") == 0) errno = 0;
    while (name != NULL && strcmp(name, "HANG") == 0) pause();
    return 1;
}

static int fails_fd(char op, int fd) {
    if (getenv("FAILING_IO_FOLDER") == NULL) return 0;
    char link[32];
    char path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = '\0';
    return fails(op, path);
}

static int fails_path(char op, const char* path) {
    if (getenv("FAILING_IO_FOLDER") == NULL) return 0;
    if (path[0] == '/') return fails(op, path);
    char folder[PATH_MAX / 2];
    char whole[PATH_MAX];
    if (getcwd(folder, sizeof folder) == NULL) return 0;
    const int n = snprintf(whole, sizeof whole, "%s/%s", folder, path);
    return n > 0 && (size_t)n < sizeof whole && fails(op, whole);
}

ssize_t write(int fd, const void* data, size_t n) {
    return fails_fd('w', fd) ? -1 : syscall(SYS_write, fd, data, n);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
    return fails_fd('w', fd) ? -1 : syscall(SYS_writev, fd, parts, count);
}

ssize_t pwrite64(int fd, const void* data, size_t n, off64_t at) {
    return fails_fd('w', fd) ? -1 : syscall(SYS_pwrite64, fd, data, n, at);
}

ssize_t pwrite(int fd, const void* data, size_t n, off_t at) {
    return pwrite64(fd, data, n, at);
}

static size_t number(const char* name) {
    const char* text = getenv(name);
    return text == NULL ? 0 : strtoul(text, NULL, 10);
}

ssize_t pread64(int fd, void* data, size_t n, off64_t at) {
    if (n >= number("FAILING_IO_LEAST") && fails_fd('p', fd)) return errno == 0 ? 0 : -1;
    const size_t most = number("FAILING_IO_SHORT");
    return syscall(SYS_pread64, fd, data, most > 0 && n > most ? most : n, at);
}

ssize_t pread(int fd, void* data, size_t n, off_t at) {
    return pread64(fd, data, n, at);
}

int ftruncate64(int fd, off64_t size) {
    return fails_fd('t', fd) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate(int fd, off_t size) {
    return ftruncate64(fd, size);
}

int fsync(int fd) {
    return fails_fd('s', fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return fails_fd('s', fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int rename(const char* from, const char* to) {
    return fails_path('r', to) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int flock(int fd, int operation) {
    return fails_fd('l', fd) ? -1 : (int)syscall(SYS_flock, fd, operation);
}

int close(int fd) {
    const int saved = errno;
    const int flags = getenv("FAILING_IO_FOLDER") == NULL ? -1 : fcntl(fd, F_GETFL);
    errno = saved;
    const int failing = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && fails_fd('c', fd);
    const int error = errno;
    const int result = (int)syscall(SYS_close, fd);
    if (!failing) return result;
    errno = error;
    return -1;
}
