/*
 * Several threads of each rank talk at the same time (MPI_THREAD_MULTIPLE), every result checked.
 *
 * usage: threads [SECONDS|FILE [THREADS]]    for so long, 5 s by default, or until there is a file of that name, which begins with /; 3 threads;
 *                                            rank 0 prints "verified N rounds in T threads"
 *
 * Each thread has a communicator and a window of its own, and tags of its own in the one that all share. In a round it sums over its communicator,
 * sends to both neighbours in the shared one, short and long messages with all of them under way, and puts a block into the next rank's window. Exit code 3:
 * something was wrong.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MAX = 64, LENGTHS = 4, BLOCK = 3000, WRONG = 3 };

static const int lengths[LENGTHS] = { 0, 61, 9000, 150000 };
static int rank, ranks, threads;
static double seconds;
static const char *until;

struct thread {
    int number;
    MPI_Comm comm;
    MPI_Win window;
    long *memory;
    long rounds;
};

static void wrong(const struct thread *thread, const char *what, long round, long expected, long found)
{
    fprintf(stderr, "rank %d, thread %d, round %ld: %s: expected %ld, found %ld\n", rank, thread->number, round, what, expected, found);
    MPI_Abort(MPI_COMM_WORLD, WRONG);
}

static unsigned char content(int from, int thread, long round, int length, int at)
{
    return (unsigned char)(from * 31 + thread * 17 + round * 7 + length * 3 + at);
}

static void sum(const struct thread *thread, long round)
{
    long mine = round * 100 + rank + thread->number, all;
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, thread->comm);
    long expected = ranks * (round * 100 + thread->number) + (long)ranks * (ranks - 1) / 2;
    if (all != expected)
        wrong(thread, "sum", round, expected, all);
}

/* Messages of all lengths to both neighbours, their answers in the same round. */
static void neighbours(const struct thread *thread, long round)
{
    static const int steps[2] = { 1, -1 };
    unsigned char *out[2][LENGTHS], *in[2][LENGTHS];
    MPI_Request requests[4 * LENGTHS];
    MPI_Status statuses[4 * LENGTHS];
    int open = 0;
    for (int side = 0; side < 2; side++)
        for (int n = 0; n < LENGTHS; n++) {
            /* What goes to the next rank has another tag than what goes to the previous one: with two ranks both are the same. */
            int from = (rank - steps[side] + ranks) % ranks, tag = (thread->number * LENGTHS + n) * 2 + side;
            in[side][n] = malloc((size_t)lengths[n] + 1);
            MPI_Irecv(in[side][n], lengths[n], MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests[open++]);
        }
    for (int side = 0; side < 2; side++)
        for (int n = 0; n < LENGTHS; n++) {
            int to = (rank + steps[side] + ranks) % ranks, tag = (thread->number * LENGTHS + n) * 2 + side;
            out[side][n] = malloc((size_t)lengths[n] + 1);
            for (int at = 0; at < lengths[n]; at++)
                out[side][n][at] = content(rank, thread->number, round, lengths[n] + side, at);
            MPI_Isend(out[side][n], lengths[n], MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[open++]);
        }
    MPI_Waitall(open, requests, statuses);
    open = 0;
    for (int side = 0; side < 2; side++)
        for (int n = 0; n < LENGTHS; n++) {
            int from = (rank - steps[side] + ranks) % ranks, found;
            MPI_Get_count(&statuses[open++], MPI_BYTE, &found);
            if (found != lengths[n])
                wrong(thread, "length", round, lengths[n], found);
            for (int at = 0; at < lengths[n]; at++) {
                unsigned char expected = content(from, thread->number, round, lengths[n] + side, at);
                if (in[side][n][at] != expected)
                    wrong(thread, "byte", round, expected, in[side][n][at]);
            }
            free(in[side][n]);
            free(out[side][n]);
        }
}

static void put(const struct thread *thread, long round)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    long block[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        block[i] = round * 1000 + thread->number * 100 + rank * 10 + i;
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, thread->window);
    MPI_Put(block, BLOCK, MPI_LONG, next, 0, BLOCK, MPI_LONG, thread->window);
    MPI_Win_unlock(next, thread->window);
    MPI_Barrier(thread->comm);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, thread->window);
    for (int i = 0; i < BLOCK; i++) {
        long expected = round * 1000 + thread->number * 100 + previous * 10 + i;
        if (thread->memory[i] != expected)
            wrong(thread, "put", round, expected, thread->memory[i]);
    }
    MPI_Win_unlock(rank, thread->window);
    MPI_Barrier(thread->comm);
}

static void *work(void *argument)
{
    struct thread *thread = argument;
    double begun = MPI_Wtime();
    int more = 1;
    while (more) {
        long round = ++thread->rounds;
        sum(thread, round);
        neighbours(thread, round);
        put(thread, round);
        more = until ? access(until, F_OK) != 0 : MPI_Wtime() - begun < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, thread->comm);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    until = argc > 1 && argv[1][0] == '/' ? argv[1] : NULL;
    seconds = argc > 1 ? atof(argv[1]) : 5;
    threads = argc > 2 ? atoi(argv[2]) : 3;
    if (provided < MPI_THREAD_MULTIPLE || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "expected MPI_THREAD_MULTIPLE and 1 to %d threads, found level %d and %d\n", THREADS_MAX, provided, threads);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    struct thread all[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    for (int n = 0; n < threads; n++) {
        all[n] = (struct thread){ .number = n };
        MPI_Comm_dup(MPI_COMM_WORLD, &all[n].comm);
        MPI_Win_allocate(BLOCK * (MPI_Aint)sizeof(long), sizeof(long), MPI_INFO_NULL, all[n].comm, &all[n].memory, &all[n].window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int n = 0; n < threads; n++)
        pthread_create(&ids[n], NULL, work, &all[n]);
    long rounds = 0;
    for (int n = 0; n < threads; n++) {
        pthread_join(ids[n], NULL);
        rounds += all[n].rounds;
    }
    for (int n = 0; n < threads; n++) {
        MPI_Win_free(&all[n].window);
        MPI_Comm_free(&all[n].comm);
    }
    if (rank == 0)
        printf("verified %ld rounds in %d threads\n", rounds, threads);
    MPI_Finalize();
    return 0;
}
