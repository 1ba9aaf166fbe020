// Memory that is given the same content again. For each byte of its input all of it is checked, and then some of it holds what the byte says:
// pages of private memory, pages of shared memory, and a region that is unmapped before and mapped anew.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, KEPT = 2048, CHANGED = 600, SHARED = 600, ANEW = 600 };
static char *kept, *shared, *anew;
static int last = 'a';

static char *map(char *at, size_t pages, int flags) {
    flags |= MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    char *mapped = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) _exit(2);
    return mapped;
}
static uint64_t word(int part, size_t n, int what) {
    uint64_t mixed = ((uint64_t)part << 56 | (uint64_t)what << 40 | n) * 0x9e3779b97f4a7c15ul;
    return mixed ^ mixed >> 29;
}
static void fill(int part, char *at, size_t pages, int what) {
    uint64_t *words = (uint64_t *)at;
    for (size_t n = 0; n < pages * PAGE / 8; n++) words[n] = word(part, n, what);
}
static void check(int part, const char *at, size_t from, size_t to, int what) {
    const uint64_t *words = (const uint64_t *)at;
    for (size_t n = from * PAGE / 8; n < to * PAGE / 8; n++)
        if (words[n] != word(part, n, what)) {
            printf("FAULT: part %d, page %zu is not of %c\n", part, n * 8 / PAGE, what);
            fflush(stdout);
            _exit(3);
        }
}
static void check_all(void) {
    check(0, kept, 0, CHANGED, last);
    check(0, kept, CHANGED, KEPT, '-');
    check(1, shared, 0, SHARED, last);
    check(2, anew, 0, ANEW, last);
}
int main(void) {
    kept = map(NULL, KEPT, MAP_PRIVATE);
    shared = map(NULL, SHARED, MAP_SHARED);
    anew = map(NULL, ANEW, MAP_PRIVATE);
    fill(0, kept, KEPT, '-');
    char byte = 'a';
    do {
        if (byte != 'x') {
            last = byte;
            fill(0, kept, CHANGED, last);
            fill(1, shared, SHARED, last);
            munmap(anew, ANEW * PAGE);
            map(anew, ANEW, MAP_PRIVATE);
            fill(2, anew, ANEW, last);
        }
        printf("%c\n", byte);
        fflush(stdout);
        if (read(0, &byte, 1) != 1) byte = 0;
        check_all();
    } while (byte);
    printf("all was there\n");
    return 0;
}
