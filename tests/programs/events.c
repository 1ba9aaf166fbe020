// eventfd, signalfd and epoll, with a thread that waits in epoll_wait without a limit: what was counted is counted, what
// was watched is watched, under the same data. Each line on standard input is one more event of each.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

enum { COUNTER = 1, SIGNAL = 2, MOVED = 3, STOP = 4 };
static int counter, tickets, signals, moved[2], stop, poller;
static atomic_int counted, signalled, came;

static void add(int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {events, {.u64 = data << 32 | 0xfeed}};
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void *watch(void *x) {
    for (;;) {
        struct epoll_event event;
        CHECK(epoll_wait(poller, &event, 1, -1) == 1);
        CHECK((event.data.u64 & 0xffffffff) == 0xfeed);
        uint64_t value;
        struct signalfd_siginfo info;
        char byte;
        switch (event.data.u64 >> 32) {
        case COUNTER:
            CHECK(read(counter, &value, 8) == 8);
            counted += (int)value;
            break;
        case SIGNAL:
            CHECK(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
            signalled++;
            break;
        case MOVED:
            CHECK(read(moved[0], &byte, 1) == 1);
            came++;
            break;
        case STOP:
            return x;
        default:
            fail("data that nobody gave");
        }
    }
}

static void settle(atomic_int *value, int expected) {
    for (int n = 0; *value != expected; n++) {
        if (n == 30000) fail("an event did not come");
        usleep(1000);
    }
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0 && (tickets = eventfd(3, EFD_SEMAPHORE)) >= 0);
    CHECK((signals = signalfd(-1, &set, SFD_NONBLOCK)) >= 0 && (stop = eventfd(0, 0)) >= 0);
    CHECK((poller = epoll_create1(0)) >= 0 && pipe(moved) == 0);
    add(counter, EPOLLIN | EPOLLET, COUNTER);
    add(signals, EPOLLIN, SIGNAL);
    add(stop, EPOLLIN, STOP);
    // Watched under a number that is closed afterwards.
    int copy = dup(moved[0]);
    CHECK(copy >= 0);
    add(copy, EPOLLIN, MOVED);
    CHECK(close(copy) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, watch, NULL) == 0);
    printf("ready\n");
    fflush(stdout);
    char byte;
    int rounds = 0;
    while (read(0, &byte, 1) == 1) {
        if (byte != '\n') continue;
        uint64_t two = 2;
        CHECK(write(counter, &two, 8) == 8 && kill(getpid(), SIGUSR2) == 0 && write(moved[1], "x", 1) == 1);
        rounds++;
        settle(&counted, 2 * rounds);
        settle(&signalled, rounds);
        settle(&came, rounds);
        printf("round %d\n", rounds);
        fflush(stdout);
    }
    uint64_t one = 1, value;
    CHECK(write(stop, &one, 8) == 8 && pthread_join(thread, NULL) == 0);
    for (int n = 0; n < 3; n++) CHECK(read(tickets, &value, 8) == 8 && value == 1);
    printf("all counted\n");
    return 0;
}
