// Waits in pause(2) for a timer's signal, again and again. The argument is how often.
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static atomic_int alarms;

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

int main(int argc, char **argv) {
    int rounds = argc == 2 ? atoi(argv[1]) : 0;
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    printf("ready\n");
    fflush(stdout);
    for (int n = 0; n < rounds; n++) {
        int before = alarms;
        // Long enough for the call to begin before it.
        struct itimerval timer = {{0, 0}, {0, 200000}};
        setitimer(ITIMER_REAL, &timer, NULL);
        pause();
        if (alarms != before + 1) {
            printf("FAULT: %d alarms in round %d\n", alarms - before, n);
            return 3;
        }
    }
    printf("no alarm was missed\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
    }
    return 0;
}
