// Waits in a call that only a handled signal ends.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    handled++;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    int pipes[2];
    char byte;
    if (argc < 2 || pipe(pipes)) return 2;
    printf("ready\n");
    fflush(stdout);
    int result = strcmp(argv[1], "pause") == 0 ? pause() : (int)read(pipes[0], &byte, 1);
    if (result != -1 || errno != EINTR || handled != 1) return 3;
    printf("interrupted\n");
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {}
    return 0;
}
