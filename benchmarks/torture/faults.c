/* Put before the C library (LD_PRELOAD): the n-th write below a folder is the last that succeeds, in whatever language
   it is made. On a full disk that one is cut in half, as the kernel does, and nothing takes room any more; a disk that
   turned read-only takes no change at all. Nobody is told but the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char below[4096];
static long left, failed;
static int kind; /* 0: nothing fails, 1: full, 2: read-only */

void faults_begin(const char *folder, long writes, int which) {
    snprintf(below, sizeof below, "%s", folder);
    left = writes;
    failed = 0;
    kind = which;
}

long faults_failed(void) { return failed; }

static int ours(const char *path) { return kind && path && !strncmp(path, below, strlen(below)); }

static int ours_open(int fd) {
    char link[64], path[4096];
    if (!kind) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return ours(path);
}

/* 0: goes on; 1: the last one; -1: fails */
static int turn(void) {
    if (left > 0) return --left == 0;
    failed++;
    errno = kind == 1 ? ENOSPC : EROFS;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) {
    int now = ours_open(fd) ? turn() : 0;
    if (now < 0) return -1;
    return REAL(write)(fd, data, now && kind == 1 && n > 1 ? n / 2 : n);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    int now = ours_open(fd) ? turn() : 0;
    if (now < 0) return -1;
    return REAL(pwrite64)(fd, data, now && kind == 1 && n > 1 ? n / 2 : n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }

ssize_t writev(int fd, const struct iovec *parts, int n) {
    return ours_open(fd) && turn() < 0 ? -1 : REAL(writev)(fd, parts, n);
}

int posix_fallocate64(int fd, off64_t at, off64_t n) {
    return ours_open(fd) && turn() < 0 ? errno : REAL(posix_fallocate64)(fd, at, n);
}

int posix_fallocate(int fd, off_t at, off_t n) { return posix_fallocate64(fd, at, n); }

static int ours_at(int at, const char *path) {
    return at != AT_FDCWD && path && path[0] != '/' ? ours_open(at) : ours(path);
}

static int opens(int at, const char *path, int flags) {
    struct stat found;
    if (!ours_at(at, path)) return 0;
    if (kind == 1) return flags & O_CREAT && fstatat(at, path, &found, 0) ? turn() : 0;
    return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? turn() : 0;
}

#define OPEN(name, at, ...)                                 \
    {                                                           \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                           \
        if (opens(at, path, flags) < 0) return -1;              \
        return REAL(name)(__VA_ARGS__, flags, mode);            \
    }

int open(const char *path, int flags, ...) OPEN(open, AT_FDCWD, path)
int open64(const char *path, int flags, ...) OPEN(open64, AT_FDCWD, path)
int openat(int at, const char *path, int flags, ...) OPEN(openat, at, at, path)
int openat64(int at, const char *path, int flags, ...) OPEN(openat64, at, at, path)

FILE *fopen64(const char *path, const char *mode) {
    int flags = mode[0] == 'r' ? (strchr(mode, '+') ? O_RDWR : O_RDONLY) : O_WRONLY | O_CREAT;
    return opens(AT_FDCWD, path, flags) < 0 ? NULL : REAL(fopen64)(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

int mkdir(const char *path, mode_t mode) { return ours(path) && turn() < 0 ? -1 : REAL(mkdir)(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) {
    return ours_at(at, path) && turn() < 0 ? -1 : REAL(mkdirat)(at, path, mode);
}

/* what takes no room, and so fails on a read-only disk alone */
#define CHANGES(path) (kind == 2 && ours(path) && turn() < 0)
int rename(const char *from, const char *to) { return CHANGES(to) ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) { return CHANGES(to) ? -1 : REAL(renameat)(a, from, b, to); }
int unlink(const char *path) { return CHANGES(path) ? -1 : REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) {
    return kind == 2 && ours_at(at, path) && turn() < 0 ? -1 : REAL(unlinkat)(at, path, flags);
}
int rmdir(const char *path) { return CHANGES(path) ? -1 : REAL(rmdir)(path); }
int chmod(const char *path, mode_t mode) { return CHANGES(path) ? -1 : REAL(chmod)(path, mode); }
int symlink(const char *to, const char *path) { return CHANGES(path) ? -1 : REAL(symlink)(to, path); }
int link(const char *from, const char *to) { return CHANGES(to) ? -1 : REAL(link)(from, to); }
int truncate64(const char *path, off64_t n) { return CHANGES(path) ? -1 : REAL(truncate64)(path, n); }
int truncate(const char *path, off_t n) { return truncate64(path, n); }
int ftruncate64(int fd, off64_t n) {
    return kind == 2 && ours_open(fd) && turn() < 0 ? -1 : REAL(ftruncate64)(fd, n);
}
int ftruncate(int fd, off_t n) { return ftruncate64(fd, n); }
