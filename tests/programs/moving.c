// Threads that change memory all the time, in every way in which memory can change: pages are written, huge pages too, memory is
// allocated and freed, mapped, moved, grown, given back and protected; a file grows, and a timer fires. For each byte of its input all
// threads pause, and all of it is checked. Arguments: a file, MiB of pages that are written, writes a second (0: as many as possible).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, WRITERS = 2, ALLOCATORS = 2, PIECES = 400, BLOCKS = 24, BLOCK_PAGES = 48, THREADS = WRITERS + ALLOCATORS + 3 };
static atomic_int pausing;
static atomic_long ticks, steps[THREADS];
static pthread_barrier_t paused, resumed;
static long writes_a_second;

static void fail(const char *what, long a, long b) {
    printf("FAULT: %s, %ld %ld\n", what, a, b);
    fflush(stdout);
    _exit(3);
}
static unsigned any(unsigned *seed, unsigned below) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) % below;
}
static uint64_t word(uint64_t owner, uint64_t page, uint64_t version, int n) {
    uint64_t mixed = (owner << 52 | page << 28 | version) * 0x9e3779b97f4a7c15ul + n;
    return version ? mixed ^ mixed >> 29 : 0;
}
static void *map(size_t bytes, int flags) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap", bytes, flags);
    return at;
}
static void pause_here(int thread) {
    atomic_fetch_add(&steps[thread], 1);
    if (!atomic_load(&pausing)) return;
    pthread_barrier_wait(&paused);
    pthread_barrier_wait(&resumed);
}

// Pages with versions that are noted elsewhere.
struct area {
    uint64_t owner;
    char *at;
    long pages;
    uint64_t *versions;
};
static struct area areas[WRITERS], shared;
static void write_page(struct area *area, long page) {
    uint64_t *at = (uint64_t *)(area->at + page * PAGE), version = ++area->versions[page];
    for (int n = 0; n < WORDS; n++) at[n] = word(area->owner, page, version, n);
}
static void check_area(struct area *area) {
    for (long page = 0; page < area->pages; page++) {
        uint64_t *at = (uint64_t *)(area->at + page * PAGE);
        for (int n = 0; n < WORDS; n++)
            if (at[n] != word(area->owner, page, area->versions[page], n)) fail("a page is another one", area->owner, page);
    }
}
static void make_area(struct area *area, long owner, long pages, int flags) {
    *area = (struct area){owner, map(pages * PAGE, flags), pages, map(pages * 8, MAP_PRIVATE)};
}
static void *writer(void *number) {
    long thread = (long)number;
    unsigned seed = 77 + thread;
    for (;;) {
        write_page(&areas[thread], any(&seed, areas[thread].pages));
        if (writes_a_second) usleep(1000000 * WRITERS / writes_a_second);
        if (any(&seed, 16) == 0) write_page(&shared, thread * (shared.pages / WRITERS) + any(&seed, shared.pages / WRITERS));
        pause_here(thread);
    }
    return NULL;
}

// Memory of the C library's, whose content follows from its place and length.
struct piece {
    unsigned char *at;
    size_t bytes;
};
static struct piece pieces[ALLOCATORS][PIECES];
static void check_piece(struct piece *piece) {
    for (size_t n = 0; n < piece->bytes; n++)
        if (piece->at[n] != (unsigned char)(piece->bytes * 31 + n)) fail("allocated memory is another one", piece->bytes, n);
}
static void fill_piece(struct piece *piece, size_t bytes) {
    piece->bytes = bytes;
    for (size_t n = 0; n < bytes; n++) piece->at[n] = (unsigned char)(bytes * 31 + n);
}
static void *allocator(void *number) {
    long thread = (long)number, mine = thread - WRITERS;
    unsigned seed = 770 + thread;
    for (;;) {
        struct piece *piece = &pieces[mine][any(&seed, PIECES)];
        size_t bytes = any(&seed, 50) ? 1 + any(&seed, 2000) : 1 + any(&seed, 400000);
        check_piece(piece);
        switch (any(&seed, 3)) {
        case 0: free(piece->at); piece->at = malloc(bytes); break;
        case 1: piece->at = realloc(piece->at, bytes); break;
        case 2: free(piece->at); *piece = (struct piece){0}; pause_here(thread); continue;
        }
        if (!piece->at) fail("malloc", bytes, 0);
        fill_piece(piece, bytes);
        if (writes_a_second) usleep(2000);
        pause_here(thread);
    }
    return NULL;
}

// Memory that is mapped, moved, given back and protected.
static struct area blocks[BLOCKS];
static void empty(struct area *block, long page, long pages) {
    memset(&block->versions[page], 0, pages * sizeof block->versions[0]);
}
static void *changer(void *number) {
    long thread = (long)number;
    unsigned seed = 7700;
    for (;;) {
        struct area *b = &blocks[any(&seed, BLOCKS)];
        long page = any(&seed, b->pages), some = 1 + any(&seed, b->pages - page);
        char *at = b->at + page * PAGE;
        switch (any(&seed, 7)) {
        case 0: write_page(b, page); break;
        case 1:
            if (madvise(at, some * PAGE, MADV_DONTNEED)) fail("MADV_DONTNEED", page, some);
            empty(b, page, some);
            if (some & 1) write_page(b, page);
            break;
        case 2:
            if (mmap(at, some * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) fail("mmap", page, some);
            empty(b, page, some);
            if (some & 1) write_page(b, page);
            break;
        case 3: {
            // Page by page: a block may be made of several mappings.
            char *to = map(b->pages * PAGE, MAP_PRIVATE);
            for (long n = 0; n < b->pages; n++) {
                char *place = to + n * PAGE;
                if (mremap(b->at + n * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place) fail("mremap", n, 0);
            }
            b->at = to;
            break;
        }
        case 4: {
            // To where another block was, which stays mapped: other threads map memory, too.
            struct area *other = &blocks[any(&seed, BLOCKS)];
            if (other == b) break;
            char *free_place = map(b->pages * PAGE, MAP_PRIVATE), *theirs = other->at;
            for (long n = 0; n < b->pages; n++) mremap(theirs + n * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, free_place + n * PAGE);
            for (long n = 0; n < b->pages; n++) mremap(b->at + n * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, theirs + n * PAGE);
            other->at = free_place;
            b->at = theirs;
            break;
        }
        case 5:
            if (mprotect(b->at, b->pages * PAGE, PROT_NONE)) fail("mprotect", 0, 0);
            usleep(50);
            if (mprotect(b->at, b->pages * PAGE, PROT_READ | PROT_WRITE)) fail("mprotect", 1, 0);
            break;
        case 6: {
            // A new mapping, with a few pages of it written.
            munmap(b->at, b->pages * PAGE);
            b->at = map(b->pages * PAGE, MAP_PRIVATE);
            empty(b, 0, b->pages);
            write_page(b, page);
            write_page(b, b->pages - 1);
            break;
        }
        }
        if (writes_a_second) usleep(2000);
        pause_here(thread);
    }
    return NULL;
}

// The program's break, as far as nobody else moves it.
static char *breaks[1000];
static int breaks_count;
static void *grower(void *number) {
    long thread = (long)number;
    for (;;) {
        if (breaks_count < 1000) {
            char *at = sbrk(2 * PAGE);
            if (at == (void *)-1) fail("sbrk", breaks_count, 0);
            memset(at, breaks_count, 2 * PAGE);
            breaks[breaks_count++] = at;
        }
        usleep(1500);
        pause_here(thread);
    }
    return NULL;
}

static int file;
static long lines;
static void *appender(void *number) {
    long thread = (long)number;
    for (;;) {
        char line[32];
        sprintf(line, "%014ld\n", lines);
        if (write(file, line, 15) != 15) fail("write", lines, 0);
        lines++;
        usleep(500);
        pause_here(thread);
    }
    return NULL;
}
static void check_file(void) {
    char line[32] = {0}, wanted[32];
    for (long n = 0; n < lines; n++) {
        sprintf(wanted, "%014ld\n", n);
        if (pread(file, line, 15, n * 15) != 15 || strcmp(line, wanted)) fail("a line of the file", n, lines);
    }
    if (lseek(file, 0, SEEK_CUR) != lines * 15) fail("the place in the file", lseek(file, 0, SEEK_CUR), lines * 15);
}
static void tick(int signal) {
    (void)signal;
    atomic_fetch_add(&ticks, 1);
}

int main(int count, char **arguments) {
    long mib = count > 2 ? atol(arguments[2]) : 48;
    writes_a_second = count > 3 ? atol(arguments[3]) : 0;
    file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return 2;
    pthread_barrier_init(&paused, NULL, THREADS + 1);
    pthread_barrier_init(&resumed, NULL, THREADS + 1);
    for (long n = 0; n < WRITERS; n++) {
        make_area(&areas[n], n + 1, mib * 256 / WRITERS, MAP_PRIVATE);
        if (n == 0 && madvise(areas[n].at, areas[n].pages * PAGE, MADV_HUGEPAGE)) return 2;
        for (long page = 0; page < areas[n].pages; page++)
            if (page % 7) write_page(&areas[n], page);
    }
    make_area(&shared, 100, 256, MAP_SHARED);
    for (long n = 0; n < BLOCKS; n++) {
        make_area(&blocks[n], 200 + n, BLOCK_PAGES, MAP_PRIVATE);
        for (long page = 0; page < BLOCK_PAGES; page += 2) write_page(&blocks[n], page);
    }
    pthread_t thread;
    long made = 0;
    while (made < WRITERS) pthread_create(&thread, NULL, writer, (void *)made++);
    while (made < WRITERS + ALLOCATORS) pthread_create(&thread, NULL, allocator, (void *)made++);
    pthread_create(&thread, NULL, changer, (void *)made++);
    pthread_create(&thread, NULL, grower, (void *)made++);
    pthread_create(&thread, NULL, appender, (void *)made++);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, NULL);
    printf("ready\n");
    fflush(stdout);
    char byte;
    long last[THREADS + 1] = {0};
    while (read(0, &byte, 1) == 1) {
        // Everybody has gone on since the last time.
        for (int n = 0; n < THREADS; n++)
            while (atomic_load(&steps[n]) == last[n]) usleep(100);
        while (atomic_load(&ticks) == last[THREADS]) usleep(100);
        atomic_store(&pausing, 1);
        pthread_barrier_wait(&paused);
        for (int n = 0; n < WRITERS; n++) check_area(&areas[n]);
        check_area(&shared);
        for (int n = 0; n < BLOCKS; n++) check_area(&blocks[n]);
        for (int n = 0; n < ALLOCATORS; n++)
            for (int m = 0; m < PIECES; m++) check_piece(&pieces[n][m]);
        for (int n = 0; n < breaks_count; n++)
            for (int m = 0; m < 2 * PAGE; m++)
                if (breaks[n][m] != (char)n) fail("memory below the break", n, m);
        check_file();
        for (int n = 0; n < THREADS; n++) last[n] = atomic_load(&steps[n]);
        last[THREADS] = atomic_load(&ticks);
        atomic_store(&pausing, 0);
        pthread_barrier_wait(&resumed);
        printf("alive\n");
        fflush(stdout);
    }
    printf("nothing was lost\n");
    fflush(stdout);
    _exit(0);
}
