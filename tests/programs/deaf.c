// A thread that keeps every signal from itself by a system call of its own, until it is told to listen: no one can stop it
// meanwhile. Another one counts, and must go on whatever comes of the attempt.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int listens, done;
static atomic_long counted;

static void *deaf(void *x) {
    uint64_t all = -1, before;
    prctl(PR_SET_NAME, "deaf");
    syscall(SYS_rt_sigprocmask, 2, &all, &before, 8);
    printf("ready\n");
    fflush(stdout);
    while (!listens) {}
    syscall(SYS_rt_sigprocmask, 2, &before, NULL, 8);
    while (!done) usleep(1000);
    return x;
}

static void *counting(void *x) {
    while (!done) counted++;
    return x;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, deaf, NULL);
    pthread_create(&threads[1], NULL, counting, NULL);
    char byte;
    while (read(0, &byte, 1) == 1) {
        listens = byte == 'l';
        long before = counted;
        while (counted < before + 1000) usleep(100);
        printf("alive\n");
        fflush(stdout);
    }
    done = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("went on\n");
    return 0;
}
