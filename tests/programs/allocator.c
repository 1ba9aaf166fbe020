// An allocator behind one lock that is nearly always held, and that ends the program when it is entered while all threads
// stand still, or in the child that writes an image.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Of the preloaded library.
extern int stillwire_threads_are_stopped(void) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int done;
static char *next, *end;

static void check(void) {
    if (stillwire_threads_are_stopped && stillwire_threads_are_stopped()) {
        static const char text[] = "FAULT: memory was allocated while all threads stood still\n";
        if (write(1, text, sizeof text - 1)) {}
        abort();
    }
}

static void *take(size_t bytes, size_t alignment) {
    check();
    pthread_mutex_lock(&lock);
    if (alignment < 16) alignment = 16;
    size_t *start = (size_t *)(((size_t)next + 16 + alignment - 1) & -alignment);
    if (!next || (char *)start + bytes > end) {
        size_t piece = (bytes + alignment + (64 << 20)) & -4096ul;
        next = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = next + piece;
        start = (size_t *)(((size_t)next + 16 + alignment - 1) & -alignment);
    }
    start[-1] = bytes;
    next = (char *)start + bytes;
    pthread_mutex_unlock(&lock);
    return start;
}

void *malloc(size_t bytes) { return take(bytes, 16); }
void *aligned_alloc(size_t alignment, size_t bytes) { return take(bytes, alignment); }
void *memalign(size_t alignment, size_t bytes) { return take(bytes, alignment); }
int posix_memalign(void **at, size_t alignment, size_t bytes) {
    *at = take(bytes, alignment);
    return 0;
}
void *calloc(size_t count, size_t bytes) {
    void *at = take(count * bytes, 16);
    return memset(at, 0, count * bytes);
}
void free(void *at) {
    (void)at;
    check();
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}
void *realloc(void *old, size_t bytes) {
    void *at = take(bytes, 16);
    if (old) memcpy(at, old, ((size_t *)old)[-1] < bytes ? ((size_t *)old)[-1] : bytes);
    return at;
}

static void *busy(void *x) {
    while (!done) {
        pthread_mutex_lock(&lock);
        for (volatile int n = 0; n < 1000; n++) {}
        pthread_mutex_unlock(&lock);
    }
    return x;
}

int main(void) {
    pthread_t threads[2];
    for (int n = 0; n < 2; n++) pthread_create(&threads[n], NULL, busy, NULL);
    printf("ready %d\n", stillwire_threads_are_stopped != NULL);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {}
    done = 1;
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    printf("no lock was needed\n");
    return 0;
}
