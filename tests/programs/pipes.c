// Pipes and pairs of sockets with something in them, and threads that talk through them: nothing is lost, doubled or
// reordered. Each line on standard input is one more round.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static int busy[2], idle[2], closed[2], packets[2], stream[2], messages[2], shut[2], timed[2];
static volatile int done;
static uint64_t sent, received;

static void *writer(void *x) {
    while (!done) {
        uint64_t value = sent + 1;
        CHECK(write(busy[1], &value, sizeof value) == sizeof value);
        sent = value;
    }
    close(busy[1]);
    return x;
}

static void *reader(void *x) {
    uint64_t value;
    ssize_t got;
    // Whole numbers: both ends move eight bytes, and a page is a multiple of that.
    while ((got = read(busy[0], &value, sizeof value)) == sizeof value) {
        if (value != received + 1) fail("a number that was not next");
        received = value;
    }
    CHECK(got == 0);
    return x;
}

static void one_round(void) {
    char back[64];
    CHECK(write(idle[1], "idle", 4) == 4);
    CHECK(read(idle[0], back, 4) == 4 && memcmp(back, "idle", 4) == 0);
    CHECK(read(idle[0], back, 4) == -1 && errno == EAGAIN);
    CHECK(write(packets[1], "one", 3) == 3 && write(packets[1], "three", 5) == 5);
    CHECK(read(packets[0], back, 64) == 3 && read(packets[0], back, 64) == 5);
    CHECK(write(stream[0], "there", 5) == 5 && write(stream[1], "back", 4) == 4);
    CHECK(recv(messages[1], back, 64, 0) == 7 && send(messages[0], "message", 7, 0) == 7);
    // Each end of a pair waits as long as it was told.
    struct timeval time = {0, 0};
    socklen_t bytes = sizeof time;
    CHECK(getsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &time, &bytes) == 0 && time.tv_sec == 0 && time.tv_usec == 40000);
    CHECK(getsockopt(timed[1], SOL_SOCKET, SO_SNDTIMEO, &time, &bytes) == 0 && time.tv_sec == 3 && time.tv_usec == 0);
    CHECK(recv(timed[0], back, 64, 0) == -1 && errno == EAGAIN);
}

int main(void) {
    CHECK(pipe(busy) == 0 && pipe2(idle, O_NONBLOCK) == 0 && pipe(closed) == 0 && pipe2(packets, O_DIRECT) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, stream) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, messages) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, shut) == 0);
    struct timeval receive = {0, 40000}, send_time = {3, 0};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, timed) == 0);
    CHECK(setsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &receive, sizeof receive) == 0);
    CHECK(setsockopt(timed[1], SOL_SOCKET, SO_SNDTIMEO, &send_time, sizeof send_time) == 0);
    CHECK(write(closed[1], "last words", 10) == 10 && close(closed[1]) == 0);
    CHECK(send(messages[0], "message", 7, 0) == 7);
    CHECK(send(shut[0], "over", 4, 0) == 4 && shutdown(shut[0], SHUT_WR) == 0);
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, writer, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, reader, NULL) == 0);
    printf("ready\n");
    fflush(stdout);
    char byte;
    int rounds = 0;
    while (read(0, &byte, 1) == 1) {
        if (byte != '\n') continue;
        one_round();
        printf("round %d\n", ++rounds);
        fflush(stdout);
    }
    done = 1;
    for (int n = 0; n < 2; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(sent == received && sent > 0);
    char back[64];
    CHECK(read(closed[0], back, 64) == 10 && memcmp(back, "last words", 10) == 0);
    CHECK(read(closed[0], back, 64) == 0);
    CHECK(recv(shut[1], back, 64, 0) == 4 && recv(shut[1], back, 64, 0) == 0);
    CHECK(send(shut[1], "answer", 6, 0) == 6 && recv(shut[0], back, 64, 0) == 6);
    for (int n = 0; n < rounds; n++) {
        CHECK(read(stream[1], back, 5) == 5 && memcmp(back, "there", 5) == 0);
        CHECK(read(stream[0], back, 4) == 4 && memcmp(back, "back", 4) == 0);
    }
    CHECK(read(stream[0], back, 1) == -1 && errno == EAGAIN);
    printf("nothing lost\n");
    return 0;
}
