// Threads that begin to wait all the time, by syscall(2), each woken by its pair: a stop finds some just as they begin. None may see EINTR.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 2 };
static atomic_int done, turns[PAIRS];

// Waits while it is the other's turn; each gives the turn to the other.
static void *takes_turns(void *x) {
    int me = (int)(long)x % 2;
    atomic_int *turn = &turns[(long)x / 2];
    struct timespec long_time = {600, 0};
    while (!done) {
        int now = atomic_load(turn);
        if (now % 2 != me) {
            if (syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, now, &long_time, NULL, 0) != 0 && errno != EAGAIN) {
                printf("FAULT futex with a timeout: %s\n", strerror(errno));
                fflush(stdout);
                _exit(3);
            }
            continue;
        }
        for (volatile int n = 0; n < 2000; n++) { }
        atomic_store(turn, now + 1);
        syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    atomic_fetch_add(turn, 1);
    syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return x;
}

int main(void) {
    pthread_t threads[2 * PAIRS];
    for (long n = 0; n < 2 * PAIRS; n++) pthread_create(&threads[n], NULL, takes_turns, (void *)n);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) { }
    done = 1;
    for (int n = 0; n < 2 * PAIRS; n++) pthread_join(threads[n], NULL);
    printf("none was interrupted\n");
    return 0;
}
