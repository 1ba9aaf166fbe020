/* Prints numbered lines: on standard output in two halves with a pause between them, on standard error through a buffer that
   ends anywhere in a line. No part of a line is like one of another line.
   usage: prints LINES MICROSECONDS [FILE]    the last line waits until FILE is there */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put(const char *text)
{
    for (size_t left = strlen(text); left;) {
        ssize_t written = write(1, text, left);
        if (written > 0)
            text += written, left -= written;
    }
}

int main(int count, char **words)
{
    long lines = count > 1 ? atol(words[1]) : 10, pause_us = count > 2 ? atol(words[2]) : 1000;
    static char buffer[512];
    char text[64];
    setvbuf(stderr, buffer, _IOFBF, sizeof buffer);
    for (long line = 0; line < lines; line++) {
        while (line == lines - 1 && count > 3 && access(words[3], F_OK))
            usleep(1000);
        snprintf(text, sizeof text, "out %ld begins", line);
        put(text);
        fprintf(stderr, "err %ld begins and", line);
        usleep(pause_us);
        snprintf(text, sizeof text, ", then out %ld ends\n", line);
        put(text);
        fprintf(stderr, " goes on, err %ld, and ends, err %ld\n", line, line);
    }
    return 0;
}
