/*
 * Each rank has a working set, and in each round receives a message of its neighbour and writes to every page of the set: what a person sees of a job that
 * has recovered. Prints after each round when it ended.
 *
 * usage: working_set MIB    prints "rank R round N at T" with T in ns of CLOCK_MONOTONIC, which all processes of a host share
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **words)
{
    int rank, ranks;
    size_t bytes = (size_t)atol(count == 2 ? words[1] : "0") << 20;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *set = malloc(bytes);
    if (!bytes || !set) {
        fprintf(stderr, "usage: working_set MIB\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    uint64_t state = (uint64_t)rank + 1;
    for (size_t i = 0; i < bytes; i += 8) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        *(uint64_t *)(set + i) = state;
    }
    for (long round = 0;; round++) {
        long sent = round, received;
        MPI_Sendrecv(&sent, 1, MPI_LONG, (rank + 1) % ranks, 0, &received, 1, MPI_LONG, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (received != round)
            MPI_Abort(MPI_COMM_WORLD, 4);
        for (size_t i = 0; i < bytes; i += 4096)
            set[i]++;
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("rank %d round %ld at %lld\n", rank, round, now.tv_sec * 1000000000ll + now.tv_nsec);
        fflush(stdout);
    }
}
