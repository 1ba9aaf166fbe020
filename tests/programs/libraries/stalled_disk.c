// A library that makes a disk stand still for a keeper, loaded into it by LD_PRELOAD. While the file STILLWIRE_TEST_STALL is there, each thread of a keeper
// that reads, writes or opens a file below STILLWIRE_TEST_STALL_BELOW stands still in its first such call, for STILLWIRE_TEST_STALL_S seconds. Each call is
// noted in the file STILLWIRE_TEST_STALL_LOG: whether it was the process's main thread, the call, and the path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static __thread int stood;

static int is_keeper(void) {
    static int known;
    if (known == 0) {
        char words[4096] = "";
        int file = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
        long read = file < 0 ? 0 : syscall(SYS_read, file, words, sizeof words - 1);
        if (file >= 0) syscall(SYS_close, file);
        known = -1;
        for (long at = 0; at < read; at += strlen(words + at) + 1)
            if (strcmp(words + at, "__keeper") == 0) known = 1;
    }
    return known > 0;
}

static void look(const char *call, int folder, const char *name) {
    const char *stall = getenv("STILLWIRE_TEST_STALL"), *below = getenv("STILLWIRE_TEST_STALL_BELOW");
    const char *log = getenv("STILLWIRE_TEST_STALL_LOG"), *seconds = getenv("STILLWIRE_TEST_STALL_S");
    if (!stall || !below || !log || !seconds || !is_keeper() || access(stall, F_OK) != 0) return;
    char path[2 * PATH_MAX] = "";
    if (folder >= 0 && (!name || name[0] != '/')) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        long length = readlink(link, path, PATH_MAX - 1);
        path[length < 0 ? 0 : length] = 0;
    }
    if (name) {
        strcat(path, "/");
        strncat(path, name, PATH_MAX - 1);
    }
    if (!strstr(path, below)) return;
    char line[3 * PATH_MAX];
    int is_main = getpid() == syscall(SYS_gettid);
    int length = snprintf(line, sizeof line, "%s %s %s\n", is_main ? "main" : "other", call, path);
    int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) {
        syscall(SYS_write, file, line, length);
        syscall(SYS_close, file);
    }
    if (!stood) {
        stood = 1;
        struct timespec rest = {atoi(seconds), 0};
        nanosleep(&rest, NULL);
    }
}

#define NEXT(result, name, ...) \
    static result (*next)(__VA_ARGS__); \
    if (!next) next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(int, name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        look("open", folder, path); \
        return next(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define READ(name, offset) \
    ssize_t name(int file, void *to, size_t bytes, offset at) { \
        NEXT(ssize_t, name, int, void *, size_t, offset); \
        look("read", file, NULL); \
        return next(file, to, bytes, at); \
    }
READ(pread, off_t)
READ(pread64, off64_t)

ssize_t write(int file, const void *from, size_t bytes) {
    NEXT(ssize_t, write, int, const void *, size_t);
    look("write", file, NULL);
    return next(file, from, bytes);
}

#define SYNC(name) \
    int name(int file) { \
        NEXT(int, name, int); \
        look("sync", file, NULL); \
        return next(file); \
    }
SYNC(fsync)
SYNC(fdatasync)

int renameat(int from, const char *old, int to, const char *new) {
    NEXT(int, renameat, int, const char *, int, const char *);
    look("rename", from, old);
    return next(from, old, to, new);
}
