// Every kind of timer: what is left of it is left, what repeats repeats, what has fired once does not fire again. Time in
// which the program does not run does not count. Each line on standard input waits until every repeating timer has fired.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

enum { FAST = 7, ONCE = 8 };
static atomic_int alarms, fast, once, threaded;

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}
static void on_timer(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_value.sival_int == FAST) fast++;
    if (info->si_value.sival_int == ONCE) once++;
}
static void in_thread(union sigval value) {
    if (value.sival_int == FAST) threaded++;
}

static timer_t create(int notify, int signal, int value) {
    struct sigevent event = {0};
    event.sigev_notify = notify;
    event.sigev_signo = signal;
    event.sigev_value.sival_int = value;
    event.sigev_notify_function = in_thread;
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    return timer;
}

static struct itimerspec every(long first_ms, long then_ms) {
    struct itimerspec time = {{then_ms / 1000, then_ms % 1000 * 1000000}, {first_ms / 1000, first_ms % 1000 * 1000000}};
    return time;
}

static void beyond(int before, atomic_int *count, const char *what) {
    for (int n = 0; *count <= before; n++) {
        if (n == 30000) fail(what);
        usleep(1000);
    }
}
static void more(atomic_int *count, const char *what) { beyond(*count, count, what); }

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    action.sa_sigaction = on_timer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    CHECK(sigaction(SIGRTMIN + 1, &action, NULL) == 0);
    // A number that was used and given up: the others keep theirs.
    timer_t gone = create(SIGEV_NONE, 0, 0), tick = create(SIGEV_SIGNAL, SIGRTMIN + 1, FAST);
    CHECK(timer_delete(gone) == 0);
    timer_t last = create(SIGEV_SIGNAL, SIGRTMIN + 1, ONCE), far = create(SIGEV_SIGNAL, SIGTERM, 0);
    timer_t thread = create(SIGEV_THREAD, 0, FAST);
    struct itimerspec time = every(20, 20);
    CHECK(timer_settime(tick, 0, &time, NULL) == 0 && timer_settime(thread, 0, &time, NULL) == 0);
    time = every(10, 0);
    CHECK(timer_settime(last, 0, &time, NULL) == 0);
    time = every(3600000, 0);
    CHECK(timer_settime(far, 0, &time, NULL) == 0);
    struct itimerval alarm_time = {{0, 20000}, {0, 20000}};
    CHECK(setitimer(ITIMER_REAL, &alarm_time, NULL) == 0);
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), expired = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    time = every(20, 20);
    CHECK(fd >= 0 && timerfd_settime(fd, 0, &time, NULL) == 0);
    time = every(1, 0);
    CHECK(expired >= 0 && timerfd_settime(expired, 0, &time, NULL) == 0);
    beyond(0, &once, "a timer has not fired");
    usleep(5000);
    printf("ready\n");
    fflush(stdout);
    char byte;
    int rounds = 0;
    uint64_t ticks;
    while (read(0, &byte, 1) == 1) {
        if (byte != '\n') continue;
        more(&alarms, "ITIMER_REAL has stopped");
        more(&fast, "a timer that sends a signal has stopped");
        more(&threaded, "a timer that starts threads has stopped");
        for (int n = 0; read(fd, &ticks, 8) != 8; n++) {
            if (n == 30000) fail("a timerfd has stopped");
            usleep(1000);
        }
        printf("round %d\n", ++rounds);
        fflush(stdout);
    }
    CHECK(once == 1);
    CHECK(read(expired, &ticks, 8) == 8 && ticks == 1);
    CHECK(read(expired, &ticks, 8) == -1 && errno == EAGAIN);
    CHECK(timer_gettime(far, &time) == 0 && time.it_value.tv_sec > 1800 && time.it_value.tv_sec < 3600);
    CHECK(timer_gettime(gone, &time) == -1 && errno == EINVAL);
    printf("all in time\n");
    return 0;
}
