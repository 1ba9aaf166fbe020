// Memory of every kind, filled with what its address says, is checked for each byte of the program's input, and grows.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { PAGE = 4096 };
static const size_t huge = 2 << 20, sparse_bytes = 64ul << 30;
static int has_guards;
static char *plain, *advised, *guarded, *never, *locked, *grows, *sparse, *shared, *view_a, *view_b, *file_private, *file_shared, *read_only, *no_fork;
static char *heap[16];
static sigjmp_buf back;

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}

static uint64_t value(const char *at) { return (uintptr_t)at * 0x9e3779b97f4a7c15ul; }
static void fill(char *from, size_t bytes) {
    for (char *at = from; at < from + bytes; at += 8) *(uint64_t *)at = value(at);
}
static void expect(const char *from, size_t bytes, const char *what) {
    for (const char *at = from; at < from + bytes; at += 8)
        if (*(const uint64_t *)at != value(at)) fail(what);
}
static void zero(const char *from, size_t bytes, const char *what) {
    for (size_t n = 0; n < bytes; n++) if (from[n]) fail(what);
}

static volatile sig_atomic_t expects_fault;
static void caught(int signal) {
    (void)signal;
    if (!expects_fault) fail("a fault where none was to be");
    siglongjmp(back, 1);
}
// Whether touching it ends in a fault.
static int faults(volatile char *at, int writes) {
    int faulted = sigsetjmp(back, 1);
    expects_fault = !faulted;
    if (!faulted) { if (writes) *at = *at; else (void)*at; }
    expects_fault = 0;
    return faulted;
}

static char *map(size_t bytes, int protection, int flags, int fd, off_t offset) {
    char *at = mmap(NULL, bytes, protection, flags, fd, offset);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

// What /proc/self/smaps says about the mapping at an address.
static int has_flag(const char *at, const char *flag) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[1024];
    int found = 0, inside = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        if (inside && !strncmp(line, "VmFlags:", 8)) found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}

static int deep(int depth) {
    volatile char frame[8 * PAGE];
    frame[0] = (char)depth;
    int below = depth ? deep(depth - 1) : 0;
    return below + (frame[0] == (char)depth);
}

static void check(int round) {
    expect(plain, 40 * PAGE, "plain memory");
    zero(plain + 40 * PAGE, 24 * PAGE, "memory that was never touched");
    expect(advised, 2 * huge, "huge pages");
    if (!has_flag(advised, " hg")) fail("the advice to use huge pages");
    expect(never, 8 * PAGE, "small pages");
    if (!has_flag(never, " nh")) fail("the advice not to use huge pages");
    expect(no_fork, 4 * PAGE, "memory that children do not get");
    if (!has_flag(no_fork, " dc")) fail("the advice not to give it to children");
    expect(guarded, 4 * PAGE, "memory before a guard");
    expect(guarded + 6 * PAGE, 2 * PAGE, "memory after a guard");
    if (has_guards && !(faults(guarded + 4 * PAGE, 0) && faults(guarded + 5 * PAGE, 1))) fail("a guard");
    expect(locked, 4 * PAGE, "locked memory");
    if (!has_flag(locked, " lo")) fail("the lock");
    if (!has_flag(grows, " gd")) fail("what grows downwards");
    // A page further in each round.
    for (int n = 0; n <= round; n++) grows[-n * PAGE] = 1;
    for (size_t at = 0; at < sparse_bytes; at += sparse_bytes / 8) expect(sparse + at, PAGE, "sparse memory");
    zero(sparse + 3 * PAGE, PAGE, "a hole");
    expect(shared, 8 * PAGE, "shared memory");
    if (memcmp(view_a + 2 * PAGE, view_b, 2 * PAGE)) fail("two views of one memory");
    view_a[2 * PAGE]++;
    if (view_a[2 * PAGE] != view_b[0]) fail("two views of one memory are two");
    expect(file_private, PAGE, "a changed page of a file");
    if (memcmp(file_private + PAGE, "file", 4)) fail("a page of a file");
    if (memcmp(file_shared + PAGE, "file", 4)) fail("a page of a shared file");
    file_shared[100]++;
    expect(read_only, PAGE, "read-only memory");
    if (!faults(read_only, 1) || faults(read_only, 0)) fail("a protection");
    for (int n = 0; n < round; n++) if (heap[n][0] != n || heap[n][PAGE - 1] != n) fail("the heap");
    heap[round] = sbrk(PAGE);
    if (sbrk(0) != heap[round] + PAGE) fail("sbrk");
    memset(heap[round], round, PAGE);
    // The stack grows to most of its limit of 8 MiB.
    if (deep(150) != 151) fail("the stack");
    for (int n = 0; n < 50; n++) {
        char *more = malloc(300000);
        memset(more, n, 300000);
        free(more);
    }
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    int both = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    plain = map(64 * PAGE, both, own, -1, 0);
    fill(plain, 40 * PAGE);
    advised = map(3 * huge, both, own, -1, 0);
    advised = (char *)(((uintptr_t)advised + huge - 1) & -huge);
    if (madvise(advised, 2 * huge, MADV_HUGEPAGE)) fail("MADV_HUGEPAGE");
    fill(advised, 2 * huge);
    never = map(8 * PAGE, both, own, -1, 0);
    if (madvise(never, 8 * PAGE, MADV_NOHUGEPAGE)) fail("MADV_NOHUGEPAGE");
    fill(never, 8 * PAGE);
    no_fork = map(4 * PAGE, both, own, -1, 0);
    if (madvise(no_fork, 4 * PAGE, MADV_DONTFORK)) fail("MADV_DONTFORK");
    fill(no_fork, 4 * PAGE);
    guarded = map(8 * PAGE, both, own, -1, 0);
    fill(guarded, 8 * PAGE);
    has_guards = !madvise(guarded + 4 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL);
    locked = map(4 * PAGE, both, own, -1, 0);
    fill(locked, 4 * PAGE);
    if (mlock(locked, 4 * PAGE)) fail("mlock");
    // Room to grow into, and below it what nobody can touch: no mapping that comes later is too near then (the kernel keeps 1 MB from others).
    grows = map(400 * PAGE, PROT_NONE, own | MAP_NORESERVE, -1, 0);
    munmap(grows + 380 * PAGE, 20 * PAGE);
    grows = mmap(grows + 399 * PAGE, PAGE, both, own | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    if (grows == MAP_FAILED) fail("MAP_GROWSDOWN");
    grows[0] = 1;
    sparse = map(sparse_bytes, both, own | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; at < sparse_bytes; at += sparse_bytes / 8) fill(sparse + at, PAGE);
    shared = map(8 * PAGE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(shared, 8 * PAGE);
    int memory = memfd_create("views", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, 16 * PAGE)) fail("memfd_create");
    view_a = map(16 * PAGE, both, MAP_SHARED, memory, 0);
    view_b = map(2 * PAGE, PROT_READ, MAP_SHARED, memory, 2 * PAGE);
    memset(view_a, 5, 16 * PAGE);
    close(memory);
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) fail(arguments[1]);
    for (int n = 0; n < 4; n++) if (pwrite(file, "file", 4, n * PAGE) != 4) fail("pwrite");
    if (ftruncate(file, 4 * PAGE)) fail("ftruncate");
    file_private = map(4 * PAGE, both, MAP_PRIVATE, file, 0);
    fill(file_private, PAGE);
    file_shared = map(4 * PAGE, both, MAP_SHARED, file, 0);
    close(file);
    read_only = map(PAGE, both, own, -1, 0);
    fill(read_only, PAGE);
    if (mprotect(read_only, PAGE, PROT_READ)) fail("mprotect");
    check(0);
    printf("ready\n");
    fflush(stdout);
    char byte;
    int round = 0;
    while (round < 15 && read(0, &byte, 1) == 1) {
        check(++round);
        printf("alive\n");
        fflush(stdout);
    }
    printf("all was there\n");
    return 0;
}
