/*
 * Ranks spawn two processes together, speak with each, meet them at a barrier and part from them, three times over.
 *
 * usage: spawn [MS]    rank 0 prints "verified: 3 spawns"; before each spawn, and while the spawned processes are there, so many milliseconds pass
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPAWNS = 3, CHILDREN = 2, BYTES = 100000, TAG = 5 };

static unsigned char bytes[BYTES];
static double pause_s;

/* In which ranks talk to each other all the time. */
static void pass_time(void)
{
    double began = MPI_Wtime();
    int over = 0;
    while (!over) {
        int late = MPI_Wtime() - began >= pause_s;
        MPI_Allreduce(&late, &over, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
}

static void fill(int value)
{
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(value + i);
}

static void check(int value)
{
    for (int i = 0; i < BYTES; i++)
        if (bytes[i] != (unsigned char)(value + i)) {
            fprintf(stderr, "byte %d: expected %d, found %d\n", i, (unsigned char)(value + i), bytes[i]);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

static void child(MPI_Comm parents)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Recv(bytes, BYTES, MPI_BYTE, 0, TAG, parents, MPI_STATUS_IGNORE);
    check(rank);
    fill(rank + 100);
    MPI_Send(bytes, BYTES, MPI_BYTE, 0, TAG, parents);
    MPI_Barrier(parents);
    MPI_Comm_disconnect(&parents);
}

static void parent(char *program)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int spawn = 0; spawn < SPAWNS; spawn++) {
        MPI_Comm children;
        pass_time();
        MPI_Comm_spawn(program, MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
        for (int to = 0; rank == 0 && to < CHILDREN; to++) {
            fill(to);
            MPI_Send(bytes, BYTES, MPI_BYTE, to, TAG, children);
            MPI_Recv(bytes, BYTES, MPI_BYTE, to, TAG, children, MPI_STATUS_IGNORE);
            check(to + 100);
        }
        pass_time();
        MPI_Barrier(children);
        MPI_Comm_disconnect(&children);
    }
    if (rank == 0)
        printf("verified: %d spawns\n", SPAWNS);
}

int main(int count, char **arguments)
{
    MPI_Comm parents;
    MPI_Init(&count, &arguments);
    pause_s = count > 1 ? atof(arguments[1]) / 1000 : 0;
    MPI_Comm_get_parent(&parents);
    if (parents == MPI_COMM_NULL)
        parent(arguments[0]);
    else
        child(parents);
    MPI_Finalize();
    return 0;
}
