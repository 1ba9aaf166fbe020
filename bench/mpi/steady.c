/*
 * Ranks that compute on a set of memory and talk to each other all the time, and say how far they come in a given time: what runs beside them shows in that.
 *
 * usage: steady MIB PERCENT SECONDS    each rank has MIB of memory, of which it writes to PERCENT, over and over, and reads no other part after the beginning
 *
 * Rank 0 prints "begun" after WARM_SECONDS, and SECONDS later "rounds N in T s". Where there is a processor for each rank, each keeps to its own: two that poll
 * on one would measure the scheduler.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Words of 8 bytes that a rank works on in a round, and that it sends in one. */
enum { WORK = 32768, SENT = 1024 };

/* The first checkpoints save everything: later ones what was written. */
static const double WARM_SECONDS = 5;

int main(int count, char **words)
{
    int rank, ranks;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks <= sysconf(_SC_NPROCESSORS_ONLN)) {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(rank, &own);
        sched_setaffinity(0, sizeof own, &own);
    }
    size_t all = (size_t)atol(count == 4 ? words[1] : "0") << 17;
    size_t hot = count == 4 ? all / 100 * (size_t)atol(words[2]) : 0;
    double seconds = count == 4 ? atof(words[3]) : 0;
    uint64_t *set = malloc(all * 8);
    if (hot < WORK || hot > all || !set) {
        fprintf(stderr, "usage: steady MIB PERCENT SECONDS, with at least 256 KiB to write to\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    uint64_t state = (uint64_t)rank + 1;
    for (size_t i = 0; i < all; i++)
        set[i] = state = state * 6364136223846793005ull + 1442695040888963407ull;
    double began = MPI_Wtime(), since = 0;
    long round = 0, first = 0;
    uint64_t received[SENT];
    for (size_t at = 0;; at = at + 2 * WORK > hot ? 0 : at + WORK, round++) {
        MPI_Sendrecv(set + at, SENT, MPI_UINT64_T, (rank + 1) % ranks, 0, received, SENT, MPI_UINT64_T, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (size_t i = 0; i < WORK; i++)
            set[at + i] = state = (state ^ set[at + i] ^ received[i % SENT]) * 6364136223846793005ull + 1442695040888963407ull;
        int phase = 0;
        if (rank == 0) {
            double now = MPI_Wtime();
            if (since == 0 && now - began >= WARM_SECONDS) {
                since = now;
                first = round;
                printf("begun\n");
                fflush(stdout);
            }
            if (since != 0 && now - since >= seconds) {
                printf("rounds %ld in %.6f s\n", round - first, now - since);
                fflush(stdout);
                phase = 1;
            }
        }
        MPI_Bcast(&phase, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (phase)
            break;
    }
    MPI_Finalize();
    return 0;
}
