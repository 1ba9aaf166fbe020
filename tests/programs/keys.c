// Shows what is typed on its terminal, how it came (single keys, with "single" as argument, or whole lines), and the terminal's size
// whenever that changes. Ends with the input (a single Ctrl-D, too), or at "q".
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static void on_size(int signal) { (void)signal; }

static void show_size(void) {
    struct winsize size;
    if (ioctl(0, TIOCGWINSZ, &size) == 0) printf("size %d x %d\n", size.ws_row, size.ws_col);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct termios settings;
    if (tcgetattr(0, &settings) != 0 || !isatty(1) || !isatty(2)) {
        perror("no terminal");
        return 2;
    }
    if (argc > 1 && strcmp(argv[1], "single") == 0) {
        settings.c_lflag &= ~(ICANON | ECHO | ISIG);
        tcsetattr(0, TCSANOW, &settings);
    }
    // The signal comes only while this waits for input.
    sigset_t changes, usual;
    sigemptyset(&changes);
    sigaddset(&changes, SIGWINCH);
    sigprocmask(SIG_BLOCK, &changes, &usual);
    struct sigaction action = {.sa_handler = on_size};
    sigaction(SIGWINCH, &action, NULL);
    show_size();
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (ppoll(&input, 1, NULL, &usual) < 0 && errno == EINTR) {
            show_size();
            continue;
        }
        char text[256];
        ssize_t bytes = read(0, text, sizeof text);
        if (bytes <= 0) {
            printf("the input ended\n");
            return 0;
        }
        tcgetattr(0, &settings);
        if (text[bytes - 1] == '\n') bytes--;
        printf("got <%.*s> by %s\n", (int)bytes, text, settings.c_lflag & ICANON ? "line" : "key");
        fflush(stdout);
        if (text[0] == 'q' || text[0] == 4) return 0;
    }
}
