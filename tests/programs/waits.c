// Threads in every kind of wait. None may see EINTR, an early end of its wait, or a changed register; each says at the
// end how often it came around.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <time.h>
#include <unistd.h>

static atomic_int done, word;
static int pipes[2], quiet[2], poller;
static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static __thread long own = 7;

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}

// Each wait is unbounded, or so long that it ends only through what `main` does at the end.
static void *in_futex(void *x) {
    while (!done)
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) != 0 && errno != EAGAIN) fail("futex");
    return x;
}
static void *in_timed_futex(void *x) {
    struct timespec long_time = {600, 0};
    while (!done)
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &long_time, NULL, 0) != 0 && errno != EAGAIN)
            fail("futex with a timeout");
    return x;
}
static void *in_nanosleep(void *x) {
    while (!done) {
        struct timespec rest = {0, 0}, time = {0, 30000000};
        if (nanosleep(&time, &rest) != 0) fail("nanosleep");
    }
    return x;
}
static void *in_poll(void *x) {
    struct pollfd fd = {quiet[0], POLLIN, 0};
    while (!done)
        if (poll(&fd, 1, 600000) < 0) fail("poll");
    return x;
}
static void *in_select(void *x) {
    while (!done) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(quiet[0], &set);
        struct timeval time = {600, 0};
        if (select(quiet[0] + 1, &set, NULL, NULL, &time) < 0) fail("select");
    }
    return x;
}
static void *in_epoll(void *x) {
    struct epoll_event event;
    while (!done)
        if (epoll_wait(poller, &event, 1, 600000) < 0) fail("epoll_wait");
    return x;
}
static void *in_read(void *x) {
    char byte;
    if (read(pipes[0], &byte, 1) != 1) fail("read");
    return x;
}
static void *in_semaphore(void *x) {
    if (sem_wait(&semaphore) != 0) fail("sem_wait");
    return x;
}
static void *in_condition(void *x) {
    pthread_mutex_lock(&mutex);
    while (!done) pthread_cond_wait(&cond, &mutex);
    pthread_mutex_unlock(&mutex);
    return x;
}
static void *in_mutex(void *x) {
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return x;
}
static void *in_sigwait(void *x) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    int got;
    int error = sigwait(&set, &got);
    if (error || got != SIGUSR2) { errno = error; fail("sigwait"); }
    return x;
}
static void *in_sigtimedwait(void *x) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    struct timespec long_time = {600, 0};
    if (sigtimedwait(&set, NULL, &long_time) != SIGRTMIN + 3) fail("sigtimedwait");
    return x;
}
static void *spinning(void *x) {
    volatile unsigned long sum = 1;
    unsigned long mirror = 1;
    while (!done) {
        for (int n = 0; n < 1000; n++) { sum = sum * 6364136223846793005ul + 1442695040888963407ul; mirror = mirror * 6364136223846793005ul + 1442695040888963407ul; }
        if (sum != mirror) fail("arithmetic");
        own++;
    }
    if (own <= 7) fail("thread-local storage");
    return x;
}

int main(void) {
    void *(*kinds[])(void *) = {in_futex, in_timed_futex, in_nanosleep, in_poll, in_select, in_epoll, in_read,
        in_semaphore, in_condition, in_mutex, in_sigwait, in_sigtimedwait, spinning};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    pthread_t threads[KINDS];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGRTMIN + 3);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pipe(pipes) || pipe(quiet)) fail("pipe");
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(poller, EPOLL_CTL_ADD, quiet[0], &event);
    sem_init(&semaphore, 0, 0);
    pthread_mutex_lock(&held);
    for (int n = 0; n < KINDS; n++) pthread_create(&threads[n], NULL, kinds[n], NULL);
    printf("ready\n");
    fflush(stdout);
    // The main thread waits too: for the end of its input.
    char byte;
    while (read(0, &byte, 1) == 1) {
        printf("alive\n");
        fflush(stdout);
    }
    done = 1;
    atomic_store(&word, 1);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 100, NULL, NULL, 0);
    if (write(quiet[1], "x", 1) != 1 || write(pipes[1], "x", 1) != 1) fail("write");
    sem_post(&semaphore);
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
    pthread_mutex_unlock(&held);
    kill(getpid(), SIGUSR2);
    pthread_kill(threads[11], SIGRTMIN + 3);
    for (int n = 0; n < KINDS; n++) pthread_join(threads[n], NULL);
    printf("all came back\n");
    return 0;
}
