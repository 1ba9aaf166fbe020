/*
 * Ranks that hang. usage: hangs KIND
 *   receive   0 and 1 receive from each other, with tags 7 and 8; others wait in a barrier
 *   send      0 and 1 send each other long messages that neither receives
 *   any       0 receives from any rank, 1 from 0, and the others have come to MPI_Finalize
 *   compute   the last rank computes, and all others wait for it in MPI_Allreduce
 *   stopped   0 receives from 1, which computes (until it is stopped)
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    int rank, ranks, value = 1, sum = 0;
    enum { LONG = 1 << 20 };
    static char bytes[LONG];
    const char *kind = count > 1 ? words[1] : "";

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* Everybody has spoken with everybody: a library may do more at the first message. */
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("all are there\n");
        fflush(stdout);
    }
    if (!strcmp(kind, "receive")) {
        if (rank < 2)
            MPI_Recv(&value, 1, MPI_INT, 1 - rank, 7 + rank, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(kind, "send")) {
        if (rank < 2)
            MPI_Send(bytes, LONG, MPI_BYTE, 1 - rank, 9, MPI_COMM_WORLD);
    } else if (!strcmp(kind, "any")) {
        if (rank == 0)
            MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else if (rank == 1)
            MPI_Recv(&value, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (!strcmp(kind, "compute") || !strcmp(kind, "stopped")) {
        int computes = !strcmp(kind, "compute") ? ranks - 1 : 1;
        if (rank == computes)
            for (;;)
                pause();
        if (!strcmp(kind, "stopped"))
            MPI_Recv(&value, 1, MPI_INT, computes, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
