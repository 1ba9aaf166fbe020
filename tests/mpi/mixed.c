/* Collectives, messages and one-sided operations together, every result checked, for SECONDS (default 5). Rank 0 prints rounds per second.
   What a round does is known beforehand, so that a message that is lost, doubled or altered is found in the round in which it happens. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 4096, LARGE_BYTES = 600000, TAG = 7 };

static int rank, ranks;

static void wrong(const char *what, long round, long expected, long found)
{
    fprintf(stderr, "rank %d, round %ld: %s: expected %ld, found %ld\n", rank, round, what, expected, found);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void sums(long round)
{
    long mine[64], all[64];
    for (int i = 0; i < 64; i++)
        mine[i] = round * (rank + 1) + i;
    MPI_Allreduce(mine, all, 64, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 64; i++) {
        long expected = round * ranks * (ranks + 1) / 2 + (long)i * ranks;
        if (all[i] != expected)
            wrong("sum", round, expected, all[i]);
    }
}

static void exchange(long round, int *out, int *in)
{
    int each = ELEMENTS / ranks;
    for (int i = 0; i < each * ranks; i++)
        out[i] = (int)(round * 31 + rank * 1000 + i);
    MPI_Alltoall(out, each, MPI_INT, in, each, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < each; i++) {
            int expected = (int)(round * 31 + from * 1000 + rank * each + i);
            if (in[from * each + i] != expected)
                wrong("alltoall", round, expected, in[from * each + i]);
        }
}

static void large(long round, unsigned char *out, unsigned char *in)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    int bytes = (int)(round * 7919 % LARGE_BYTES);
    MPI_Request requests[2];
    memset(out, (int)(round + rank) & 0xff, (size_t)bytes);
    MPI_Irecv(in, LARGE_BYTES, MPI_BYTE, previous, TAG, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, bytes, MPI_BYTE, next, TAG, MPI_COMM_WORLD, &requests[1]);
    MPI_Status status[2];
    MPI_Waitall(2, requests, status);
    int found;
    MPI_Get_count(&status[0], MPI_BYTE, &found);
    if (found != bytes)
        wrong("length", round, bytes, found);
    for (int i = 0; i < bytes; i++)
        if (in[i] != (unsigned char)(round + previous))
            wrong("byte", round, (unsigned char)(round + previous), in[i]);
}

/* Everybody adds to everybody's counter, and reads it when all have. */
static void one_sided(long round, long *counters, MPI_Win window)
{
    long one = 1, found;
    for (int to = 0; to < ranks; to++) {
        MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
        MPI_Accumulate(&one, 1, MPI_LONG, to, 0, 1, MPI_LONG, MPI_SUM, window);
        MPI_Put(&round, 1, MPI_LONG, to, 1 + rank, 1, MPI_LONG, window);
        MPI_Win_unlock(to, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int to = (rank + 1) % ranks;
    MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
    MPI_Get(&found, 1, MPI_LONG, to, 0, 1, MPI_LONG, window);
    MPI_Win_unlock(to, window);
    if (found != round * ranks)
        wrong("counter", round, round * ranks, found);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    for (int from = 0; from < ranks; from++)
        if (counters[1 + from] != round)
            wrong("put", round, round, counters[1 + from]);
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    long *counters;
    MPI_Win window;
    MPI_Win_allocate((MPI_Aint)sizeof(long) * (1 + ranks), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(counters, 0, sizeof(long) * (size_t)(1 + ranks));
    MPI_Win_unlock(rank, window);
    int *out = malloc(2 * ELEMENTS * sizeof *out);
    unsigned char *bytes = malloc(2 * LARGE_BYTES);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    long round = 0;
    int more = 1;
    while (more) {
        round++;
        sums(round);
        exchange(round, out, out + ELEMENTS);
        large(round, bytes, bytes + LARGE_BYTES);
        one_sided(round, counters, window);
        more = MPI_Wtime() - begun < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    double took = MPI_Wtime() - begun;
    if (rank == 0)
        printf("verified %ld rounds, %.1f rounds/s\n", round, (double)round / took);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
