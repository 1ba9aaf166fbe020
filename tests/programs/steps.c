/* Counts steps, touches memory in each, and prints where it is; the last line depends on all of them.
   usage: steps STEPS MICROSECONDS-PER-STEP BYTES [FILE [PAGES]]    the last step waits until FILE is there; a step touches PAGES pages of memory that is filled
   before, or all pages of memory that is not */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    long steps = count > 1 ? atol(words[1]) : 10, pause_us = count > 2 ? atol(words[2]) : 1000;
    size_t bytes = count > 3 ? strtoul(words[3], 0, 10) : 1 << 20;
    uint64_t *memory = calloc(bytes / 8, 8), sum = 1469598103934665603u;
    for (size_t i = 0; count > 5 && i < bytes / 8; i++)
        memory[i] = i;
    for (long step = 0; step < steps; step++) {
        while (step == steps - 1 && count > 4 && access(words[4], F_OK))
            usleep(1000);
        size_t pages = bytes / 4096, touched = count > 5 ? strtoul(words[5], 0, 10) : pages;
        for (size_t n = 0; n < touched; n++) {
            size_t i = (step * touched + n) % pages * 512 + step % 512;
            memory[i] += i * 2654435761u + step;
        }
        printf("step %ld of process %d\n", step, (int)getpid());
        fflush(stdout);
        usleep(pause_us);
    }
    for (size_t i = 0; i < bytes / 8; i++)
        sum = (sum ^ memory[i]) * 1099511628211u;
    printf("sum %016llx\n", (unsigned long long)sum);
    return 0;
}
