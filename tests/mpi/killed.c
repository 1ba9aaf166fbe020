/*
 * A rank is killed in the middle of what all are doing, which never ends by itself.
 *
 * usage: killed KIND RANK     KIND: rma (passive puts and gets of megabytes), collective, rendezvous (long messages in a ring)
 *
 * The rank kills itself from a second thread, 100 ms after all have done several rounds; rank 0 prints "under way" before. An error that MPI answers ends a
 * rank with exit code 5.
 */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 4 << 20, ROUNDS_BEFORE = 3, HEARD = 5 };

static int rank, ranks;
static char *memory, *other;
static MPI_Win window;

static void *kill_oneself(void *unused)
{
    (void)unused;
    usleep(100000);
    kill(getpid(), SIGKILL);
    return NULL;
}

static int rma(void)
{
    int next = (rank + 1) % ranks, code = MPI_Put(memory, BYTES, MPI_CHAR, next, 0, BYTES, MPI_CHAR, window);
    if (code == MPI_SUCCESS)
        code = MPI_Get(other, BYTES, MPI_CHAR, next, BYTES, BYTES, MPI_CHAR, window);
    return code == MPI_SUCCESS ? MPI_Win_flush(next, window) : code;
}

static int collective(void)
{
    return MPI_Allreduce(memory, other, BYTES / sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static int rendezvous(void)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    return MPI_Sendrecv(memory, BYTES, MPI_CHAR, next, 1, other, BYTES, MPI_CHAR, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int count, char **words)
{
    if (count != 3) {
        fprintf(stderr, "usage: killed rma|collective|rendezvous RANK\n");
        return 2;
    }
    int given, victim = atoi(words[2]);
    int (*round)(void) = !strcmp(words[1], "rma") ? rma : !strcmp(words[1], "collective") ? collective : rendezvous;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    memory = calloc(1, BYTES);
    other = calloc(1, BYTES);
    void *place;
    MPI_Win_allocate(2 * BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &place, &window);
    MPI_Win_lock_all(0, window);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    for (long rounds = 0;; rounds++) {
        int code = round();
        if (code != MPI_SUCCESS) {
            fprintf(stderr, "rank %d heard of it: code %d\n", rank, code);
            _exit(HEARD);
        }
        if (rounds == ROUNDS_BEFORE) {
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) {
                printf("%s under way\n", words[1]);
                fflush(stdout);
            }
            if (rank == victim) {
                pthread_t thread;
                pthread_create(&thread, NULL, kill_oneself, NULL);
            }
        }
    }
}
