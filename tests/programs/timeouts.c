// Waits with an end, of every kind: none ends before its time, none is interrupted, and all end, however often the program is
// stopped meanwhile. The argument is the time of each, ms. With a second one, those are left out that the kernel itself interrupts
// when a stopped process is continued (signal(7)), and the one whose call cannot be known by its code then.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long limit_ms;
static int quiet[2], poller;

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}

static struct timespec limit(void) {
    return (struct timespec){limit_ms / 1000, limit_ms % 1000 * 1000000};
}

static int in_poll(void) {
    struct pollfd fd = {quiet[0], POLLIN, 0};
    return poll(&fd, 1, limit_ms) == 0;
}
static int in_ppoll(void) {
    struct pollfd fd = {quiet[0], POLLIN, 0};
    struct timespec time = limit();
    return ppoll(&fd, 1, &time, NULL) == 0;
}
static int in_select(void) {
    struct timeval time = {limit_ms / 1000, limit_ms % 1000 * 1000};
    return select(0, NULL, NULL, NULL, &time) == 0;
}
static int in_epoll_wait(void) {
    struct epoll_event event;
    return epoll_wait(poller, &event, 1, limit_ms) == 0;
}
static int in_epoll_pwait(void) {
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    return epoll_pwait(poller, &event, 1, limit_ms, &none) == 0;
}
static int in_epoll_pwait2(void) {
    struct epoll_event event;
    struct timespec time = limit();
    int got = syscall(SYS_epoll_pwait2, poller, &event, 1, &time, NULL, 8);
    return got == 0 && time.tv_sec == limit_ms / 1000;
}
static int in_usleep(void) {
    return usleep(limit_ms * 1000) == 0;
}
static int in_nanosleep(void) {
    struct timespec time = limit(), rest;
    return nanosleep(&time, &rest) == 0;
}
static int in_own_rest(void) {
    struct timespec time = limit();
    return nanosleep(&time, &time) == 0;
}
static int in_clock_nanosleep(void) {
    struct timespec time = limit();
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL) == 0;
}
static int in_futex(void) {
    static uint32_t word;
    struct timespec time = limit();
    // Its callers have to expect EINTR at any time.
    while (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0) == 0 || errno == EINTR) {
    }
    return errno == ETIMEDOUT;
}
static int in_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    struct timespec time = limit();
    return sigtimedwait(&set, NULL, &time) == -1 && errno == EAGAIN;
}
static int in_timedlock(void) {
    static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += limit_ms / 1000 + 1;
    pthread_mutex_lock(&held);
    int error = pthread_cond_timedwait(&cond, &held, &time);
    pthread_mutex_unlock(&held);
    return error == ETIMEDOUT;
}

static struct { const char *name; int (*wait)(void); } kinds[] = {
    {"poll", in_poll}, {"ppoll", in_ppoll}, {"select", in_select}, {"usleep", in_usleep}, {"nanosleep", in_nanosleep},
    {"nanosleep into itself", in_own_rest}, {"clock_nanosleep", in_clock_nanosleep},
    {"timed lock", in_timedlock}, {"futex", in_futex},
    {"epoll_wait", in_epoll_wait}, {"epoll_pwait", in_epoll_pwait}, {"epoll_pwait2", in_epoll_pwait2},
    {"sigtimedwait", in_sigtimedwait},
};
enum { CONTINUED = 8, KINDS = sizeof kinds / sizeof *kinds };

static void *run(void *kind) {
    size_t n = (size_t)kind;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (!kinds[n].wait()) fail(kinds[n].name);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long passed_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    if (passed_ms < limit_ms - 1) { errno = 0; fail(kinds[n].name); }
    return NULL;
}

int main(int argc, char **argv) {
    limit_ms = argc > 1 ? atol(argv[1]) : 0;
    size_t count = argc > 2 ? CONTINUED : KINDS;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pipe(quiet)) fail("pipe");
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(poller, EPOLL_CTL_ADD, quiet[0], &event);
    pthread_t threads[KINDS];
    printf("ready\n");
    fflush(stdout);
    for (size_t n = 0; n < count; n++) pthread_create(&threads[n], NULL, run, (void *)n);
    for (size_t n = 0; n < count; n++) pthread_join(threads[n], NULL);
    printf("all ended in time\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
    }
    return 0;
}
