/*
 * Collectives, messages and one-sided operations together, every result checked.
 *
 * usage: mixed [SECONDS|FILE]    for so long, 5 by default, or until there is a file of that name, which begins with /;
 *                                rank 0 prints "verified N rounds, X rounds/s"
 *
 * What a round does is known beforehand, so that a message that is lost, doubled or altered is found in the round in which it happens. While
 * the collectives of a round run, a long message and a long put of it are under way. Exit code 3: something was wrong.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 4096, LARGE_BYTES = 600000, BLOCK = 20000, TAG = 7, WRONG = 3 };

static int rank, ranks;

static void wrong(const char *what, long round, long expected, long found)
{
    fprintf(stderr, "rank %d, round %ld: %s: expected %ld, found %ld\n", rank, round, what, expected, found);
    MPI_Abort(MPI_COMM_WORLD, WRONG);
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

/* A message to the next rank, of another length in each round. */
struct letter {
    unsigned char out[LARGE_BYTES], in[LARGE_BYTES];
    MPI_Request requests[2];
    int bytes;
};

static void post(long round, struct letter *letter)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    letter->bytes = (int)(round * 7919 % LARGE_BYTES);
    memset(letter->out, (int)(round + rank) & 0xff, (size_t)letter->bytes);
    MPI_Irecv(letter->in, LARGE_BYTES, MPI_BYTE, previous, TAG, MPI_COMM_WORLD, &letter->requests[0]);
    MPI_Isend(letter->out, letter->bytes, MPI_BYTE, next, TAG, MPI_COMM_WORLD, &letter->requests[1]);
}

static void read_letter(long round, struct letter *letter)
{
    int previous = (rank + ranks - 1) % ranks, found;
    MPI_Status status[2];
    MPI_Waitall(2, letter->requests, status);
    MPI_Get_count(&status[0], MPI_BYTE, &found);
    if (found != letter->bytes)
        wrong("length", round, letter->bytes, found);
    for (int i = 0; i < found; i++)
        if (letter->in[i] != (unsigned char)(round + previous))
            wrong("byte", round, (unsigned char)(round + previous), letter->in[i]);
}

/* What everybody has for others to write into: a counter, a number from each rank, a block. */
static long *memory;
static MPI_Win window;

static int block_at(void)
{
    return 1 + ranks;
}

/* A block to the next rank; `block_end` says that it is there. */
static void block_begin(long round, long *block)
{
    int next = (rank + 1) % ranks;
    for (int i = 0; i < BLOCK; i++)
        block[i] = round * 13 + rank * 1000 + i;
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
    MPI_Put(block, BLOCK, MPI_LONG, next, block_at(), BLOCK, MPI_LONG, window);
}

static void block_end(long round)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    MPI_Win_unlock(next, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    for (int i = 0; i < BLOCK; i++) {
        long expected = round * 13 + previous * 1000 + i, found = memory[block_at() + i];
        if (found != expected)
            wrong("block", round, expected, found);
    }
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Everybody adds to everybody's counter, and reads it when all have. */
static void one_sided(long round)
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
        if (memory[1 + from] != round)
            wrong("put", round, round, memory[1 + from]);
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *until = argc > 1 && argv[1][0] == '/' ? argv[1] : NULL;
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    MPI_Aint bytes = (MPI_Aint)sizeof(long) * (block_at() + BLOCK);
    MPI_Win_allocate(bytes, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(memory, 0, (size_t)bytes);
    MPI_Win_unlock(rank, window);
    int *out = malloc(2 * ELEMENTS * sizeof *out);
    long *block = malloc(BLOCK * sizeof *block);
    struct letter *letter = malloc(sizeof *letter);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    long round = 0;
    int more = 1;
    while (more) {
        round++;
        post(round, letter);
        sums(round);
        one_sided(round);
        block_begin(round, block);
        exchange(round, out, out + ELEMENTS);
        sums(round);
        read_letter(round, letter);
        block_end(round);
        more = until ? access(until, F_OK) != 0 : MPI_Wtime() - begun < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    double took = MPI_Wtime() - begun;
    if (rank == 0)
        printf("verified %ld rounds, %.1f rounds/s\n", round, (double)round / took);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
