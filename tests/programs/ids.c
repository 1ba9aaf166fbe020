// A program that keeps the ids of its process and of its threads, in its memory and in a file, and owns mutexes that name their owner. For each
// byte of its input every thread compares what it is now with what it was at the begin. Threads come and go, too: ids of new ones are new.
// usage: ids FILE [UNTIL]    with UNTIL again and again until there is a file of that name; then each rank has a FILE of its own
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 6, KINDS = 3 };

static struct member {
    pid_t tid;
    pthread_mutex_t mutexes[KINDS];
    sem_t ask, told;
} members[THREADS];
static pid_t process;
static char file[4096];
static volatile int over;

static void fault(const char *what, long found, long expected) {
    printf("FAULT %s is %ld, and was %ld\n", what, found, expected);
    fflush(stdout);
    _exit(3);
}

static void same(const char *what, long found, long expected) {
    if (found != expected) fault(what, found, expected);
}

static pid_t tid(void) { return (pid_t)syscall(SYS_gettid); }

static void own(struct member *member) {
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
        if (kind == 1) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (kind == 2) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        same("pthread_mutex_init", pthread_mutex_init(&member->mutexes[kind], &attributes), 0);
        same("pthread_mutex_lock", pthread_mutex_lock(&member->mutexes[kind]), 0);
    }
}

static void check(struct member *member) {
    same("gettid()", tid(), member->tid);
    same("getpid()", getpid(), process);
    same("tgkill()", syscall(SYS_tgkill, process, member->tid, 0), 0);
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_mutex_t *mutex = &member->mutexes[kind];
        same("the owner of a mutex", mutex->__data.__owner, member->tid);
        if (kind > 0) same("the lock of a mutex", mutex->__data.__lock & 0x3fffffff, member->tid);
        same("a lock of an owned mutex", pthread_mutex_lock(mutex), EDEADLK);
        same("pthread_mutex_unlock", pthread_mutex_unlock(mutex), 0);
        same("pthread_mutex_lock", pthread_mutex_lock(mutex), 0);
    }
}

static void *run(void *argument) {
    struct member *member = argument;
    member->tid = tid();
    own(member);
    sem_post(&member->told);
    for (;;) {
        sem_wait(&member->ask);
        if (over) break;
        check(member);
        sem_post(&member->told);
    }
    return NULL;
}

static void *passes(void *argument) {
    *(pid_t *)argument = tid();
    return NULL;
}

static void write_file(void) {
    FILE *out = fopen(file, "w");
    if (!out) fault("fopen", errno, 0);
    fprintf(out, "%d", process);
    for (int n = 0; n < THREADS; n++) fprintf(out, " %d", members[n].tid);
    fclose(out);
}

static void check_file(void) {
    FILE *in = fopen(file, "r");
    if (!in) fault("fopen", errno, 0);
    int found = 0;
    if (fscanf(in, "%d", &found) != 1) found = -1;
    same("the process in the file", getpid(), found);
    for (int n = 0; n < THREADS; n++) {
        if (fscanf(in, "%d", &found) != 1) found = -1;
        same("a thread in the file", syscall(SYS_tgkill, getpid(), found, 0), 0);
    }
    fclose(in);
}

// New threads and children get ids that nobody has.
static void begin_and_end(void) {
    pid_t found = 0;
    pthread_t thread;
    same("pthread_create", pthread_create(&thread, NULL, passes, &found), 0);
    pthread_join(thread, NULL);
    for (int n = 0; n < THREADS; n++)
        if (found == members[n].tid) fault("a new thread", found, 0);
    pid_t child = fork();
    if (child == 0) _exit(getppid() == process ? 0 : 1);
    int status = -1;
    same("waitpid()", waitpid(child, &status, 0), child);
    same("the parent of a child", status, 0);
}

// /proc is that of the ids.
static void check_proc(void) {
    char text[64] = "", name[64];
    same("readlink", readlink("/proc/self", text, sizeof text - 1) > 0, 1);
    same("/proc/self", atoi(text), process);
    for (int n = 0; n < THREADS; n++) {
        snprintf(name, sizeof name, "/proc/%d/task/%d", process, members[n].tid);
        same(name, access(name, F_OK), 0);
    }
}

static void check_all(void) {
    check(&members[0]);
    for (int n = 1; n < THREADS; n++) {
        sem_post(&members[n].ask);
        sem_wait(&members[n].told);
    }
    check_file();
    check_proc();
}

int main(int count, char **arguments) {
    if (count != 2 && count != 3) return 2;
    const char *rank = getenv("STILLWIRE_RANK");
    snprintf(file, sizeof file, "%s%s", arguments[1], count == 3 && rank ? rank : "");
    process = getpid();
    pthread_t threads[THREADS];
    members[0].tid = tid();
    own(&members[0]);
    for (int n = 1; n < THREADS; n++) {
        sem_init(&members[n].ask, 0, 0);
        sem_init(&members[n].told, 0, 0);
        pthread_create(&threads[n], NULL, run, &members[n]);
        sem_wait(&members[n].told);
    }
    write_file();
    printf("ready\n");
    fflush(stdout);
    // No image is made while a child runs.
    for (int round = 0; count == 3 && access(arguments[2], F_OK) != 0; round++) {
        check_all();
        if (round % 50 == 0) begin_and_end();
        usleep(10000);
    }
    char byte;
    while (count == 2 && read(0, &byte, 1) == 1) {
        check_all();
        begin_and_end();
        printf("alive\n");
        fflush(stdout);
    }
    over = 1;
    for (int n = 1; n < THREADS; n++) sem_post(&members[n].ask);
    for (int n = 1; n < THREADS; n++) pthread_join(threads[n], NULL);
    printf("all ids kept\n");
    return 0;
}
