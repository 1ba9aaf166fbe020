// Files in every way that a program has them open: offsets, shared and not, appending, locked, without a name, behind a
// shared mapping. Each line on standard input is one more step; all of it must be there at the end.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("FAULT %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static int data, twin, reader, log_fd, unlinked, temporary, memory, directory, null, list;
static char *shared;
static int step;

static void write_all(int fd, const char *text) {
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

static void one_step(void) {
    char text[32], back[32];
    int length = snprintf(text, sizeof text, "step %d\n", ++step);
    // Two numbers, one offset.
    write_all(step % 2 ? data : twin, text);
    CHECK(lseek(data, 0, SEEK_CUR) == lseek(twin, 0, SEEK_CUR));
    CHECK(read(reader, back, length) == length && memcmp(back, text, length) == 0);
    write_all(log_fd, text);
    write_all(unlinked, text);
    write_all(temporary, text);
    write_all(memory, text);
    shared[step] = (char)('a' + step % 26);
    struct stat seen;
    CHECK(fstat(unlinked, &seen) == 0 && seen.st_nlink == 0);
    CHECK(write(null, text, length) == length);
    CHECK(fstatat(directory, "log", &seen, 0) == 0);
}

static void check_steps(int fd, const char *what) {
    char text[32], back[32];
    off_t at = 0;
    for (int n = 1; n <= step; n++) {
        int length = snprintf(text, sizeof text, "step %d\n", n);
        if (pread(fd, back, length, at) != length || memcmp(back, text, length) != 0) fail(what);
        at += length;
    }
    struct stat seen;
    if (fstat(fd, &seen) != 0 || seen.st_size != at) fail(what);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    CHECK((data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    CHECK((twin = dup(data)) >= 0);
    CHECK((reader = open("data", O_RDONLY | O_CLOEXEC)) >= 0);
    CHECK((log_fd = open("log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600)) >= 0);
    CHECK((unlinked = open("unlinked", O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0 && unlink("unlinked") == 0);
    CHECK((temporary = open(".", O_RDWR | O_TMPFILE, 0600)) >= 0);
    CHECK((memory = memfd_create("memory", 0)) >= 0);
    CHECK((directory = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
    CHECK((null = open("/dev/null", O_RDWR)) >= 0);
    CHECK((list = open("/proc/self/status", O_RDONLY)) >= 0);
    // Memory that a descriptor reads as well.
    int object = memfd_create("object", 0);
    CHECK(object >= 0 && ftruncate(object, 4096) == 0);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0);
    CHECK(shared != MAP_FAILED);
    CHECK(flock(log_fd, LOCK_EX) == 0);
    one_step();
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        if (byte != '\n') continue;
        one_step();
        printf("step %d\n", step);
        fflush(stdout);
    }
    check_steps(data, "data");
    check_steps(log_fd, "log");
    check_steps(unlinked, "unlinked");
    check_steps(temporary, "temporary");
    check_steps(memory, "memory");
    char back[4096];
    CHECK(pread(object, back, sizeof back, 0) == sizeof back && memcmp(back, shared, sizeof back) == 0);
    for (int n = 1; n <= step; n++) CHECK(shared[n] == 'a' + n % 26);
    int other = open("log", O_RDONLY);
    CHECK(other >= 0 && flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    CHECK((fcntl(reader, F_GETFD) & FD_CLOEXEC) && !(fcntl(twin, F_GETFD) & FD_CLOEXEC));
    char status[4096] = {0}, pid[32];
    CHECK(read(list, status, sizeof status - 1) > 0);
    snprintf(pid, sizeof pid, "\nPid:\t%d\n", getpid());
    CHECK(strstr(status, pid) != NULL);
    printf("all as it was\n");
    return 0;
}
