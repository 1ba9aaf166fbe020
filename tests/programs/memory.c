// Memory of every kind. Says where it lies ("name address bytes"), then, for each byte of its input, checks all of it, changes
// all of it, and says so.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
enum { PAGE = 4096 };
static uint64_t generation = 1;

struct part {
    const char *name;
    unsigned char *at;
    size_t bytes;
    // What must be done to write to it, and afterwards.
    int readable, protection;
    // The same memory by another address.
    unsigned char *again;
};
static struct part parts[32];
static int count;
static unsigned char data[3 * PAGE] = {1}, bss[5 * PAGE];

static struct part *add(const char *name, void *at, size_t bytes) {
    if (at == MAP_FAILED) {
        perror(name);
        exit(2);
    }
    parts[count] = (struct part){name, at, bytes, 1, 0, NULL};
    return &parts[count++];
}

static void *map(size_t bytes, int flags) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
}

static uint64_t word(int part, size_t at) {
    uint64_t mixed = (generation * 1000003 + part) * 6364136223846793005ul + at * 1442695040888963407ul;
    return mixed ^ mixed >> 29;
}

static void visit(int writes) {
    for (int n = 0; n < count; n++) {
        struct part *part = &parts[n];
        if (!part->readable) mprotect(part->at, part->bytes, PROT_READ | PROT_WRITE);
        for (size_t at = 0; at + 8 <= part->bytes; at += 8) {
            uint64_t value;
            if (writes) {
                value = word(n, at);
                memcpy(part->at + at, &value, 8);
            } else {
                memcpy(&value, (part->again ? part->again : part->at) + at, 8);
                if (value != word(n, at)) {
                    printf("FAULT %s at %lu: %lx is not %lx\n", part->name, (unsigned long)at, (unsigned long)value,
                           (unsigned long)word(n, at));
                    fflush(stdout);
                    _exit(3);
                }
            }
        }
        if (!part->readable) mprotect(part->at, part->bytes, part->protection);
    }
}

// Touches the stack far below: it grows, and stays.
static __attribute__((noinline)) int deep(int left) {
    volatile char room[PAGE];
    room[0] = 1;
    return left == 0 ? room[0] - 1 : deep(left - 1) + room[0] - 1;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    add("data", data, sizeof data);
    add("bss", bss, sizeof bss);
    add("heap", malloc(100000), 100000);
    add("anonymous", map(16 * PAGE, MAP_PRIVATE), 16 * PAGE);
    unsigned char *sparse = map(1ul << 40, MAP_PRIVATE | MAP_NORESERVE);
    add("sparse-low", sparse, PAGE);
    add("sparse-middle", sparse + (1ul << 39) + 7 * PAGE, 2 * PAGE);
    add("sparse-high", sparse + (1ul << 40) - PAGE, PAGE);
    add("shared", map(8 * PAGE, MAP_SHARED), 8 * PAGE);
    unsigned char *shared_holes = map(64 << 20, MAP_SHARED);
    add("shared-sparse", shared_holes + (32 << 20), 3 * PAGE);
    int memory = memfd_create("twice", 0);
    if (memory < 0 || ftruncate(memory, 4 * PAGE)) return 2;
    struct part *twice =
        add("memfd", mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), 4 * PAGE);
    twice->again = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, memory, 0);
    close(memory);
    struct part *hidden = add("no-access", map(4 * PAGE, MAP_PRIVATE), 4 * PAGE);
    hidden->readable = 0;
    hidden->protection = PROT_NONE;
    struct part *shared_hidden = add("shared-no-access", map(4 * PAGE, MAP_SHARED), 4 * PAGE);
    shared_hidden->readable = 0;
    shared_hidden->protection = PROT_NONE;
    struct part *code = add("code", map(2 * PAGE, MAP_PRIVATE), 2 * PAGE);
    code->readable = 0;
    code->protection = PROT_READ | PROT_EXEC;
    madvise(add("not-forked", map(3 * PAGE, MAP_PRIVATE), 3 * PAGE)->at, 3 * PAGE, MADV_DONTFORK);
    madvise(add("wiped", map(3 * PAGE, MAP_PRIVATE), 3 * PAGE)->at, 3 * PAGE, MADV_WIPEONFORK);
    madvise(add("huge", aligned_alloc(2 << 20, 4 << 20), 4 << 20)->at, 4 << 20, MADV_HUGEPAGE);
    char path[512];
    snprintf(path, sizeof path, "%s/mapped-file", folder);
    FILE *file = fopen(path, "w+");
    for (int n = 0; n < 4 * PAGE + 100; n++) fputc(n * 7, file);
    fflush(file);
    // Two pages of a file written privately, of five; the others stay the file's.
    unsigned char *mapped = mmap(NULL, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    add("file-changed", mapped + PAGE, 2 * PAGE);
    // A file that has no name any more, and a mapping that is longer than it.
    snprintf(path, sizeof path, "%s/removed-file", folder);
    FILE *removed = fopen(path, "w+");
    for (int n = 0; n < 2 * PAGE + 100; n++) fputc(n * 13, removed);
    fflush(removed);
    unsigned char *gone = mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, fileno(removed), 0);
    unlink(path);
    fclose(removed);
    fclose(file);
    deep(200);
    visit(1);
    // Memory that is mapped twice is told by the lower address.
    for (int n = 0; n < count; n++) {
        unsigned char *at = parts[n].again && parts[n].again < parts[n].at ? parts[n].again : parts[n].at;
        printf("%s %lx %lu\n", parts[n].name, (unsigned long)at, (unsigned long)parts[n].bytes);
    }
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        visit(0);
        for (int n = 0; n < 4 * PAGE + 100; n++)
            if ((n < PAGE || n >= 3 * PAGE) && mapped[n] != (unsigned char)(n * 7)) {
                printf("FAULT file at %d\n", n);
                return 3;
            }
        for (int n = 0; n < 2 * PAGE + 100; n++)
            if (gone[n] != (unsigned char)(n * 13)) {
                printf("FAULT removed file at %d\n", n);
                return 3;
            }
        if (sparse[1ul << 38] != 0 || shared_holes[5] != 0 || deep(300) != 0) {
            printf("FAULT: what was empty is not\n");
            return 3;
        }
        generation++;
        visit(1);
        printf("checked\n");
        fflush(stdout);
    }
    printf("memory kept\n");
    return 0;
}
