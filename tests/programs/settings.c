// What a program has set for its threads and for itself, and signals that wait: all of it is as it was after a restore. Each line on
// standard input asks once more.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static pthread_barrier_t ask, answered;
static cpu_set_t all, one;
static volatile int done;
static int nice_here, nicer;

// Bound to one processor, of a class of its own, nicer than the others.
static void *apart(void *x) {
    struct sched_param none = {0};
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0);
    CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    CHECK(setpriority(PRIO_PROCESS, gettid(), nicer) == 0);
    for (;;) {
        pthread_barrier_wait(&ask);
        if (done) return x;
        cpu_set_t now;
        CHECK(pthread_getaffinity_np(pthread_self(), sizeof now, &now) == 0 && CPU_EQUAL(&now, &one));
        CHECK(sched_getscheduler(0) == SCHED_BATCH);
        errno = 0;
        CHECK(getpriority(PRIO_PROCESS, gettid()) == nicer && errno == 0);
        pthread_barrier_wait(&answered);
    }
}

static void queue(int signal, int value) {
    union sigval with = {.sival_int = value};
    CHECK(sigqueue(getpid(), signal, with) == 0);
}

static void one_signal(sigset_t *set, int signal, int code, int value) {
    siginfo_t info;
    struct timespec now = {0, 0};
    CHECK(sigtimedwait(set, &info, &now) == signal);
    CHECK(info.si_signo == signal && info.si_code == code && info.si_pid == getpid());
    CHECK(code == SI_USER || info.si_value.sival_int == value);
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGRTMIN + 4);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    nice_here = getpriority(PRIO_PROCESS, gettid());
    nicer = nice_here < 12 ? nice_here + 7 : 19;
    int processor = 0;
    while (!CPU_ISSET(processor, &all)) processor++;
    CPU_SET(processor, &one);
    CHECK(pthread_barrier_init(&ask, NULL, 2) == 0 && pthread_barrier_init(&answered, NULL, 2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, apart, NULL) == 0);
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0);
    queue(SIGRTMIN + 4, 1);
    queue(SIGRTMIN + 4, 2);
    queue(SIGRTMIN + 4, 3);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        pthread_barrier_wait(&ask);
        pthread_barrier_wait(&answered);
        cpu_set_t now;
        CHECK(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &all));
        CHECK(sched_getscheduler(0) == SCHED_OTHER && getpriority(PRIO_PROCESS, gettid()) == nice_here);
        CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
        printf("alive\n");
        fflush(stdout);
    }
    done = 1;
    pthread_barrier_wait(&ask);
    pthread_join(thread, NULL);
    one_signal(&set, SIGUSR1, SI_USER, 0);
    one_signal(&set, SIGUSR2, SI_USER, 0);
    for (int n = 1; n <= 3; n++) one_signal(&set, SIGRTMIN + 4, SI_QUEUE, n);
    struct timespec now = {0, 0};
    CHECK(sigtimedwait(&set, NULL, &now) == -1 && errno == EAGAIN);
    printf("all as it was set\n");
    return 0;
}
