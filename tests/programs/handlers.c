// Signals all the time: timers, alternate stacks, handlers within handlers, masks, and thread-local storage that they count
// in. The sums must fit at the end.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static atomic_int done;
static atomic_long alarms, outer, inner, sent, taken;
static pthread_t target;
static __thread volatile long own;
static __thread char *low, *high;

static void fail(const char *what) {
    printf("FAULT %s\n", what);
    fflush(stdout);
    _exit(3);
}

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

static void on_sent(int signal) {
    (void)signal;
    taken++;
}

static void on_inner(int signal) {
    (void)signal;
    inner++;
    own++;
}

static void on_outer(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    char here;
    int error = errno;
    if (&here < low || &here > high) fail("not on the alternate stack");
    volatile long before = own;
    raise(SIGUSR2);
    if (own != before + 1) fail("the inner handler did not run");
    outer++;
    errno = error;
}

static void *with_stack(void *x) {
    size_t bytes = 64 << 10;
    low = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    high = low + bytes;
    stack_t stack = {.ss_sp = low, .ss_size = bytes};
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    while (!done) {
        errno = 77;
        raise(SIGUSR1);
        if (errno != 77) fail("errno");
        stack_t now;
        sigaltstack(NULL, &now);
        if (now.ss_sp != low || now.ss_size != bytes) fail("the alternate stack is another");
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, NULL, &mask);
        if (!sigismember(&mask, SIGALRM) || sigismember(&mask, SIGUSR1)) fail("the mask is another");
    }
    return x;
}

static void *jumping(void *x) {
    // Long jumps out of a handler's frame leave no trace.
    static __thread sigjmp_buf back;
    while (!done)
        if (sigsetjmp(back, 1) == 0) siglongjmp(back, 1);
    return x;
}

static void *sending(void *x) {
    while (!done) {
        long before = taken;
        int error = pthread_kill(target, SIGURG);
        if (error) fail("a signal to another thread");
        sent++;
        while (taken == before && !done) usleep(100);
    }
    return x;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    action.sa_handler = on_inner;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_handler = on_sent;
    sigaction(SIGURG, &action, NULL);
    action.sa_sigaction = on_outer;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t threads[4];
    pthread_create(&threads[0], NULL, with_stack, NULL);
    pthread_create(&threads[1], NULL, with_stack, NULL);
    pthread_create(&threads[2], NULL, jumping, NULL);
    target = threads[2];
    pthread_create(&threads[3], NULL, sending, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        long before = alarms;
        while (alarms < before + 10) usleep(500);
        printf("alive\n");
        fflush(stdout);
    }
    done = 1;
    for (int n = 3; n >= 0; n--) pthread_join(threads[n], NULL);
    if (inner != outer || !outer || !alarms || sent < taken || sent > taken + 1) fail("the sums do not fit");
    printf("all signals counted\n");
    return 0;
}
