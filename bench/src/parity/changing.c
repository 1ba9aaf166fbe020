/*
 * A rank of a job whose checkpoints are measured: memory of which a part changes all the time, with as little work as that can be.
 *
 * usage: changing MIB PERCENT PASSES    MIB of memory, of the pages of which it writes to PERCENT, one word each, PASSES times a second
 *
 * Random numbers fill it: nothing of it is zeros, and nothing packs. It goes on until it is ended.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Words of a page, and pages that are written to between two rests. */
enum { PAGE_WORDS = 512, AT_ONCE = 256 };

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "usage: changing MIB PERCENT PASSES\n");
        return 2;
    }
    size_t pages = (size_t)atol(words[1]) << 8;
    size_t hot = (size_t)((double)pages * atof(words[2]) / 100);
    double passes = atof(words[3]);
    uint64_t *set = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (set == MAP_FAILED || hot == 0 || passes <= 0) {
        fprintf(stderr, "changing: no memory, or nothing to write to\n");
        return 2;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state = (uint64_t)now.tv_nsec << 20 | 1;
    for (size_t i = 0; i < pages * PAGE_WORDS; i++)
        set[i] = state = state * 6364136223846793005ull + 1442695040888963407ull;
    puts("begun");
    fflush(stdout);
    /* Of each pass, so long for each piece of it. */
    double rest = 1e9 / passes * AT_ONCE / (double)hot;
    struct timespec pause = { (time_t)(rest / 1e9), (long)rest % 1000000000 };
    for (size_t at = 0;; at = at + AT_ONCE < hot ? at + AT_ONCE : 0) {
        for (size_t page = at; page < at + AT_ONCE && page < hot; page++)
            set[page * PAGE_WORDS] = state = state * 6364136223846793005ull + 1442695040888963407ull;
        nanosleep(&pause, NULL);
    }
}
