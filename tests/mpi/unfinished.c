/*
 * Threads of two ranks exchange messages (MPI_THREAD_MULTIPLE), and no rank calls MPI_Finalize: the standard forbids that, and programs do it, as
 * osu_latency_mt of OSU 7.4.
 *
 * usage: unfinished [SECONDS]    one sending thread of rank 0, two receiving threads of rank 1, for so long, 1 s by default; rank 0 prints
 *                                "verified N answers". Exit code 3: an answer was wrong.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RECEIVERS = 2, LENGTH = 20000, WRONG = 3, REQUEST = 1, ANSWER = 2 };

static double seconds = 1;
static long answers;

/* A request that begins with 0 ends the receiver that gets it. */
static void *asks(void *unused)
{
    static int out[LENGTH], in[LENGTH];
    double until = MPI_Wtime() + seconds;
    (void)unused;
    for (int left = RECEIVERS; left > 0;) {
        int goes_on = MPI_Wtime() < until;
        for (int i = 0; i < LENGTH; i++)
            out[i] = goes_on ? (int)answers + i + 1 : 0;
        MPI_Send(out, LENGTH, MPI_INT, 1, REQUEST, MPI_COMM_WORLD);
        MPI_Recv(in, LENGTH, MPI_INT, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < LENGTH; i++)
            if (in[i] != 2 * out[i]) {
                fprintf(stderr, "answer %ld: expected %d, found %d\n", answers, 2 * out[i], in[i]);
                MPI_Abort(MPI_COMM_WORLD, WRONG);
            }
        answers++;
        left -= !goes_on;
    }
    return NULL;
}

static void *answer(void *unused)
{
    int *block = malloc(LENGTH * sizeof *block), goes_on;
    (void)unused;
    do {
        MPI_Recv(block, LENGTH, MPI_INT, 0, REQUEST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        goes_on = block[0] != 0;
        for (int i = 0; i < LENGTH; i++)
            block[i] *= 2;
        MPI_Send(block, LENGTH, MPI_INT, 0, ANSWER, MPI_COMM_WORLD);
    } while (goes_on);
    free(block);
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[RECEIVERS];
    int provided, rank, ranks;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (provided != MPI_THREAD_MULTIPLE || ranks != 2)
        return WRONG;
    if (count > 1)
        seconds = atof(words[1]);
    int own = rank == 0 ? 1 : RECEIVERS;
    for (int i = 0; i < own; i++)
        pthread_create(&threads[i], NULL, rank == 0 ? asks : answer, NULL);
    for (int i = 0; i < own; i++)
        pthread_join(threads[i], NULL);
    if (rank == 0)
        printf("verified %ld answers\n", answers);
    return 0;
}
