// Memory that changes a little in each round, in every way in which memory can: written by the program and by the kernel, given back,
// unmapped and mapped anew, moved, grown. For each byte of its input all of it is checked, and changed again.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, BLOCKS = 96, OPS = 60, SPECIAL = 4 };
struct block {
    char *at;
    // What each page holds: zeros, or what its number says.
    unsigned version[PAGES];
};
static struct block blocks[BLOCKS];
static unsigned seed = 12345, round_number;
static int ends[2];

static void fail(const char *what, int block, int page) {
    printf("FAULT in round %u: %s, block %d page %d\n", round_number, what, block, page);
    fflush(stdout);
    _exit(3);
}
static unsigned any(unsigned below) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
}
static uint64_t word(int block, int page, unsigned version, int n) {
    uint64_t mixed = ((uint64_t)block << 40 | (uint64_t)page << 24 | version) * 0x9e3779b97f4a7c15ul + n;
    return version ? mixed ^ mixed >> 29 : 0;
}
static void compose(uint64_t *to, int block, int page) {
    for (int n = 0; n < PAGE / 8; n++) to[n] = word(block, page, blocks[block].version[page], n);
}
static void check(void) {
    for (int block = 0; block < BLOCKS; block++)
        for (int page = 0; page < PAGES; page++) {
            const uint64_t *at = (const uint64_t *)(blocks[block].at + page * PAGE);
            // Half of the words, others in each round: reading alone must change nothing.
            for (int n = round_number & 1; n < PAGE / 8; n += 2)
                if (at[n] != word(block, page, blocks[block].version[page], n)) fail("other content", block, page);
        }
}
static char *map(char *at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    char *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap", 0, 0);
    return mapped;
}
static void write_page(int block, int page, int by_kernel) {
    uint64_t content[PAGE / 8];
    blocks[block].version[page] = round_number * 1000 + any(1000) + 1;
    compose(content, block, page);
    char *at = blocks[block].at + page * PAGE;
    if (!by_kernel) {
        memcpy(at, content, PAGE);
        return;
    }
    if (write(ends[1], content, PAGE) != PAGE || read(ends[0], at, PAGE) != PAGE) fail("pipe", block, page);
}
// A block may be made of several mappings, which not every kernel moves in one call.
static void move(char *from, char *to) {
    for (int n = 0; n < PAGES; n++) {
        char *place = to + n * PAGE;
        if (mremap(from + n * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place) fail("mremap", 0, n);
    }
}
static void change(void) {
    for (int op = 0; op < OPS; op++) {
        int block = any(BLOCKS), page = any(PAGES), some = 1 + any(PAGES - page);
        struct block *b = &blocks[block];
        switch (any(8)) {
        case 0: case 1: case 2: write_page(block, page, 0); break;
        case 3: write_page(block, page, 1); break;
        case 4:
            if (madvise(b->at + page * PAGE, some * PAGE, MADV_DONTNEED)) fail("MADV_DONTNEED", block, page);
            memset(&b->version[page], 0, some * sizeof b->version[0]);
            // Half of them are read, and written, at once.
            if (op & 1) write_page(block, page, 0);
            break;
        case 5:
            if (munmap(b->at + page * PAGE, some * PAGE)) fail("munmap", block, page);
            map(b->at + page * PAGE, some * PAGE);
            memset(&b->version[page], 0, some * sizeof b->version[0]);
            if (op & 1) write_page(block, page, 0);
            break;
        case 6: {
            // To where another block was: addresses change hands.
            int other = any(BLOCKS - SPECIAL);
            if (block >= BLOCKS - SPECIAL || other == block) break;
            char *free = map(NULL, PAGES * PAGE), *theirs = blocks[other].at;
            move(theirs, free);
            blocks[other].at = free;
            move(b->at, theirs);
            b->at = theirs;
            break;
        }
        case 7:
            if (mprotect(b->at, PAGES * PAGE, PROT_READ) || mprotect(b->at, PAGES * PAGE, PROT_READ | PROT_WRITE))
                fail("mprotect", block, page);
            break;
        }
    }
}

int main(void) {
    if (pipe(ends)) return 2;
    for (int block = 0; block < BLOCKS; block++) {
        blocks[block].at = map(NULL, PAGES * PAGE);
        for (int page = 0; page < PAGES; page++)
            if (page % 5) write_page(block, page, 0);
    }
    // Memory that no child gets, and memory that children find empty.
    if (madvise(blocks[BLOCKS - 1].at, PAGES * PAGE, MADV_DONTFORK)) return 2;
    if (madvise(blocks[BLOCKS - 2].at, PAGES * PAGE, MADV_WIPEONFORK)) return 2;
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        check();
        round_number++;
        if (round_number % 4 == 0 && sbrk(3 * PAGE) == (void *)-1) return 2;
        change();
        check();
        printf("alive\n");
        fflush(stdout);
    }
    check();
    printf("all was there\n");
    return 0;
}
