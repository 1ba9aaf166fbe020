// Mutexes of every kind are held by the main thread, with a thread that waits for each, while the process is saved. For
// each byte of its input the program checks that it still owns them, gives them up, lets the others have them, and
// takes them again.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TYPES = 4, KINDS = TYPES * 2 * 2, DEPTH = 3 };
static const int types[TYPES] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP};
static const char *const names[TYPES] = {"normal", "recursive", "error-checking", "adaptive"};

static struct kind {
    pthread_mutex_t mutex;
    int type, robust, inherit;
    sem_t go;
} kinds[KINDS];
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t done;
static volatile int over;

static void check(int error, int expected, const char *what, const struct kind *kind) {
    if (error == expected) return;
    printf("FAULT %s of a mutex (%s%s%s): %s, expected %s\n", what, kind ? names[kind->type] : "for readers and writers",
        kind && kind->robust ? ", robust" : "", kind && kind->inherit ? ", inheriting" : "", strerror(error), strerror(expected));
    fflush(stdout);
    _exit(3);
}

static int depth(const struct kind *kind) {
    return types[kind->type] == PTHREAD_MUTEX_RECURSIVE ? DEPTH : 1;
}

static void take(struct kind *kind) {
    for (int n = 0; n < depth(kind); n++) check(pthread_mutex_lock(&kind->mutex), 0, "lock", kind);
}

static void give(struct kind *kind) {
    if (types[kind->type] == PTHREAD_MUTEX_ERRORCHECK) check(pthread_mutex_lock(&kind->mutex), EDEADLK, "lock of an owned", kind);
    for (int n = 0; n < depth(kind); n++) check(pthread_mutex_unlock(&kind->mutex), 0, "unlock", kind);
    if (types[kind->type] == PTHREAD_MUTEX_ERRORCHECK) check(pthread_mutex_unlock(&kind->mutex), EPERM, "unlock of another's", kind);
}

static void *waits(void *argument) {
    struct kind *kind = argument;
    for (;;) {
        take(kind);
        give(kind);
        sem_post(&done);
        sem_wait(&kind->go);
        if (over) return NULL;
    }
}

int main(void) {
    pthread_t threads[KINDS];
    sem_init(&done, 0, 0);
    for (int n = 0; n < KINDS; n++) {
        struct kind *kind = &kinds[n];
        kind->type = n % TYPES;
        kind->robust = n / TYPES % 2;
        kind->inherit = n / TYPES / 2;
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, types[kind->type]);
        pthread_mutexattr_setrobust(&attributes, kind->robust ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
        pthread_mutexattr_setprotocol(&attributes, kind->inherit ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
        check(pthread_mutex_init(&kind->mutex, &attributes), 0, "init", kind);
        sem_init(&kind->go, 0, 0);
        take(kind);
    }
    check(pthread_rwlock_wrlock(&lock), 0, "lock", NULL);
    for (int n = 0; n < KINDS; n++) pthread_create(&threads[n], NULL, waits, &kinds[n]);
    usleep(50000);
    printf("ready\n");
    fflush(stdout);
    char byte;
    for (int more = 1; more;) {
        more = read(0, &byte, 1) == 1;
        over = !more;
        check(pthread_rwlock_wrlock(&lock), EDEADLK, "lock of an owned", NULL);
        check(pthread_rwlock_unlock(&lock), 0, "unlock", NULL);
        check(pthread_rwlock_wrlock(&lock), 0, "lock", NULL);
        for (int n = 0; n < KINDS; n++) give(&kinds[n]);
        for (int n = 0; n < KINDS; n++) sem_wait(&done);
        if (more) for (int n = 0; n < KINDS; n++) take(&kinds[n]);
        for (int n = 0; n < KINDS; n++) sem_post(&kinds[n].go);
        if (!more) break;
        // So that the others wait when the process is saved.
        usleep(50000);
        printf("alive\n");
        fflush(stdout);
    }
    for (int n = 0; n < KINDS; n++) pthread_join(threads[n], NULL);
    printf("all were owned\n");
    return 0;
}
