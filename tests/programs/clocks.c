// Clocks, read through the kernel's code in the process (vdso) and by system calls, agree; another thread is in that code nearly all the
// time. For each byte of its input it says "alive", and "alive, redirected" if that code is not what it was at the start: it is another kernel's then.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}

static const unsigned char *code, *original;
static size_t code_bytes;

static void find_code(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    unsigned long start, end;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx ", &start, &end) == 2)
            code = (const unsigned char *)start, code_bytes = end - start;
    if (!code) fail("no vdso");
    fclose(maps);
    original = memcpy(malloc(code_bytes), code, code_bytes);
}

static int64_t ns(struct timespec time) { return time.tv_sec * 1000000000ll + time.tv_nsec; }
static int64_t asked(clockid_t clock) {
    struct timespec time;
    if (syscall(SYS_clock_gettime, clock, &time)) fail("clock_gettime, the system call");
    return ns(time);
}
static int64_t told(clockid_t clock) {
    struct timespec time = {-1, -1};
    if (clock_gettime(clock, &time)) fail("clock_gettime");
    return ns(time);
}
static int64_t of_day(clockid_t clock) {
    (void)clock;
    struct timeval time = {-1, -1};
    if (gettimeofday(&time, NULL)) fail("gettimeofday");
    return time.tv_sec * 1000000000ll + time.tv_usec * 1000;
}
static int64_t of_seconds(clockid_t clock) { (void)clock; return time(NULL) * 1000000000ll; }

// Whether what is read lies between two system calls; `grain_ns` is how coarse it is. A life that begins in the middle has other clocks: so
// it is wrong only if it is wrong again.
static void agrees(int64_t (*read)(clockid_t), clockid_t clock, int64_t grain_ns, const char *what) {
    for (int again = 0; again < 3; again++) {
        int64_t before = asked(clock), between = read(clock), after = asked(clock);
        if (before - grain_ns <= between && between <= after) return;
    }
    fail(what);
}

static atomic_int ends;
static atomic_ulong reads;
static void *reader(void *argument) {
    while (!ends) {
        for (int n = 0; n < 1000; n++) told(CLOCK_MONOTONIC);
        agrees(told, CLOCK_MONOTONIC, 0, "CLOCK_MONOTONIC in a thread");
        reads++;
    }
    return argument;
}

static void check(void) {
    // A tick, at 100 Hz, and the one that has not been counted yet.
    const int64_t tick_ns = 20000000, second_ns = 1000000000;
    agrees(told, CLOCK_REALTIME, 0, "CLOCK_REALTIME");
    agrees(told, CLOCK_MONOTONIC, 0, "CLOCK_MONOTONIC");
    agrees(told, CLOCK_BOOTTIME, 0, "CLOCK_BOOTTIME");
    agrees(told, CLOCK_TAI, 0, "CLOCK_TAI");
    agrees(told, CLOCK_MONOTONIC_RAW, 0, "CLOCK_MONOTONIC_RAW");
    agrees(told, CLOCK_THREAD_CPUTIME_ID, 0, "CLOCK_THREAD_CPUTIME_ID");
    agrees(told, CLOCK_REALTIME_COARSE, tick_ns, "CLOCK_REALTIME_COARSE");
    agrees(told, CLOCK_MONOTONIC_COARSE, tick_ns, "CLOCK_MONOTONIC_COARSE");
    agrees(of_day, CLOCK_REALTIME, 1000, "gettimeofday");
    agrees(of_seconds, CLOCK_REALTIME, second_ns + tick_ns, "time");
    struct timespec resolution;
    if (clock_getres(CLOCK_MONOTONIC, &resolution) || ns(resolution) < 1) fail("clock_getres");
    int processor = sched_getcpu();
    if (processor < 0 || processor >= sysconf(_SC_NPROCESSORS_CONF)) fail("getcpu");
    unsigned long seen = reads;
    for (int wait = 0; reads == seen; wait++) {
        if (wait > 20000) fail("the other thread does not go on");
        usleep(1000);
    }
}

int main(void) {
    find_code();
    pthread_t thread;
    if (pthread_create(&thread, NULL, reader, NULL)) fail("pthread_create");
    check();
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        check();
        printf(memcmp(code, original, code_bytes) ? "alive, redirected\n" : "alive\n");
        fflush(stdout);
    }
    ends = 1;
    if (pthread_join(thread, NULL)) fail("pthread_join");
    printf("all clocks agreed\n");
    return 0;
}
