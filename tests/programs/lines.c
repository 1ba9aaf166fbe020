/* Reads lines of standard input in pieces of odd lengths, and prints how many there were and a number that depends on every byte.
   usage: lines MICROSECONDS-PER-PIECE [LINES-PER-REPORT] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    long pause_us = count > 1 ? atol(words[1]) : 0, report = count > 2 ? atol(words[2]) : 1000, lines = 0;
    uint64_t sum = 1469598103934665603u, bytes = 0;
    unsigned piece = 1;
    char buffer[512];
    for (;;) {
        ssize_t got = read(0, buffer, piece);
        if (got <= 0)
            break;
        bytes += got;
        for (ssize_t n = 0; n < got; n++) {
            sum = (sum ^ (unsigned char)buffer[n]) * 1099511628211u;
            if (buffer[n] == '\n' && ++lines % report == 0) {
                printf("%ld lines\n", lines);
                fflush(stdout);
            }
        }
        piece = (piece * 7 + 3) % 509 + 1;
        usleep(pause_us);
    }
    printf("%ld lines, %llu bytes, sum %016llx\n", lines, (unsigned long long)bytes, (unsigned long long)sum);
    return 0;
}
