/* An alltoall over as many ranks as there are, every value checked, a number of times; what a rank's memory grew by, for each peer.
 * usage: alltoall ROUNDS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long resident_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = atol(line + 6);
    if (file)
        fclose(file);
    return kib;
}

int main(int count, char **words)
{
    int rounds = count > 1 ? atoi(words[1]) : 3, rank, ranks;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* 16 KiB for each peer. */
    enum { EACH = 2048 };
    double *out = malloc((size_t)ranks * EACH * sizeof *out), *in = malloc((size_t)ranks * EACH * sizeof *in);
    memset(in, 0, (size_t)ranks * EACH * sizeof *in);
    memset(out, 0, (size_t)ranks * EACH * sizeof *out);
    long before = resident_kib();
    double started = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        for (int peer = 0; peer < ranks; peer++)
            for (int i = 0; i < EACH; i++)
                out[peer * EACH + i] = round * 1e6 + rank * 1e3 + peer + i * 1e-6;
        MPI_Alltoall(out, EACH, MPI_DOUBLE, in, EACH, MPI_DOUBLE, MPI_COMM_WORLD);
        for (int peer = 0; peer < ranks; peer++)
            for (int i = 0; i < EACH; i++)
                if (in[peer * EACH + i] != round * 1e6 + peer * 1e3 + rank + i * 1e-6) {
                    fprintf(stderr, "rank %d: wrong value of rank %d in round %d\n", rank, peer, round);
                    MPI_Abort(MPI_COMM_WORLD, 9);
                }
    }
    double seconds = MPI_Wtime() - started;
    double grown = (double)(resident_kib() - before) / ranks, most = 0;
    MPI_Reduce(&grown, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("verified: %d ranks, %d rounds in %.1f s, at most %.1f KiB more for each peer\n", ranks, rounds, seconds, most);
    MPI_Finalize();
    return 0;
}
