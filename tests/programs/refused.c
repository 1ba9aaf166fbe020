// Holds one thing that cannot be saved; the argument says which. "missing" where this machine does not have it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 << 20 };

static void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

static void until_the_end(void) {
    char byte;
    while (read(0, &byte, 1) == 1) {
    }
}

static int system_v(void) {
    int id = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
    if (id < 0) return 0;
    void *at = shmat(id, NULL, 0);
    return shmctl(id, IPC_RMID, NULL) == 0 && at != (void *)-1;
}

static int secret(void) {
    int fd = syscall(SYS_memfd_secret, 0);
    if (fd < 0 || ftruncate(fd, BYTES)) return 0;
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return close(fd) == 0 && at != MAP_FAILED;
}

static int huge(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE;
    return mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
}

static int asynchronous(void) {
    aio_context_t context = 0;
    return syscall(SYS_io_setup, 4, &context) == 0;
}

static int keyed(void) {
    int key = pkey_alloc(0, 0);
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return key > 0 && at != MAP_FAILED && pkey_mprotect(at, BYTES, PROT_READ | PROT_WRITE, key) == 0;
}

static int filtered(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *outlives(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    say("ready");
    until_the_end();
    _exit(0);
}

static int ended(void) {
    static pthread_t self, thread;
    self = pthread_self();
    if (pthread_create(&thread, NULL, outlives, &self)) return 0;
    pthread_exit(NULL);
}

static int ended_child(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    siginfo_t info;
    return child > 0 && waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0;
}

static int undumpable(void) {
    if (getuid() == 0 && setuid(65534)) return 0;
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

static int rseq_of_its_own(void) {
    static struct { unsigned words[8]; } __attribute__((aligned(32))) area;
    return syscall(SYS_rseq, &area, sizeof area, 0, 0x53053053) == 0;
}

static int named(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, BYTES)) return 0;
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return close(fd) == 0 && at != MAP_FAILED;
}

static int nothing(void) {
    return 1;
}

static struct { const char *name; int (*hold)(void); } kinds[] = {
    {"system-v", system_v}, {"secret", secret}, {"huge", huge}, {"asynchronous", asynchronous}, {"keyed", keyed},
    {"filtered", filtered}, {"ended", ended}, {"ended-child", ended_child}, {"undumpable", undumpable},
    {"rseq", rseq_of_its_own}, {"nothing", nothing},
};

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int held = 0;
    if (argc == 3) held = named(argv[2]);
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
        if (strcmp(argv[1], kinds[n].name) == 0) held = kinds[n].hold();
    say(held ? "ready" : "missing");
    until_the_end();
    return 0;
}
