/* Rank 1 ends itself, and the others go on without it: what they ask of it fails or is complete, MPICH names it, and they make a communicator of their own.
 * usage: survivors [kill|exit]   how it ends: by SIGKILL (default), or with exit code 1. Needs three ranks or more. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GONE 1
#define LONG (1 << 20)

static int rank, size;

static void need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

int main(int argc, char **argv)
{
    static char buffer[LONG];
    int number = 0, sum = 0, flag = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    need(size > 2, "three ranks are needed");
    int next = (rank + 1) % size;
    MPI_Request early;
    /* Posted before it ends, and after all know each other. */
    need(MPI_Sendrecv(&rank, 1, MPI_INT, next, 0, &number, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE) == MPI_SUCCESS, "the first ring fails");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == GONE) {
        if (argc > 1 && strcmp(argv[1], "exit") == 0)
            exit(1);
        raise(SIGKILL);
    }
    need(MPI_Irecv(&number, 1, MPI_INT, GONE, 7, MPI_COMM_WORLD, &early) == MPI_SUCCESS, "MPI_Irecv fails");
    need(MPI_Wait(&early, MPI_STATUS_IGNORE) != MPI_SUCCESS, "a receive from a rank that is gone succeeds");
    need(MPI_Recv(&number, 1, MPI_INT, GONE, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS,
         "a later receive from it succeeds");
    /* Nobody takes these, and nobody waits for that. */
    MPI_Send(&rank, 1, MPI_INT, GONE, 7, MPI_COMM_WORLD);
    MPI_Send(buffer, LONG, MPI_CHAR, GONE, 7, MPI_COMM_WORLD);

    MPI_Group failed, world, left;
    int gone = MPI_UNDEFINED, zero = 0;
    need(MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed) == MPI_SUCCESS, "MPIX_Comm_get_failed fails");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_size(failed, &number);
    need(number == 1, "MPIX_Comm_get_failed does not name one rank");
    MPI_Group_translate_ranks(failed, 1, &zero, world, &gone);
    need(gone == GONE, "MPIX_Comm_get_failed names another rank");

    MPI_Comm survivors;
    MPI_Group_difference(world, failed, &left);
    need(MPI_Comm_create_group(MPI_COMM_WORLD, left, 5, &survivors) == MPI_SUCCESS, "no communicator of those that are left");
    for (int round = 0; round < 100; round++) {
        need(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, survivors) == MPI_SUCCESS, "MPI_Allreduce fails");
        need(sum == size * (size - 1) / 2 - GONE, "the sum is wrong");
    }
    /* From any source: the rank that is gone is none. */
    int last = size - 1;
    if (rank == 0) {
        for (int from = 2; from < size; from++)
            need(MPI_Recv(buffer, LONG, MPI_CHAR, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS,
                 "a receive from any source fails");
    } else {
        need(MPI_Send(buffer, rank == last ? LONG : 1, MPI_CHAR, 0, 9, MPI_COMM_WORLD) == MPI_SUCCESS, "a send to a rank that is there fails");
    }
    MPI_Iprobe(GONE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    need(!flag, "a message of the rank that is gone");
    if (rank == 0) {
        printf("verified: %d of %d ranks went on\n", size - 1, size);
        fflush(stdout);
    }
    MPI_Comm_free(&survivors);
    MPI_Finalize();
    return 0;
}
