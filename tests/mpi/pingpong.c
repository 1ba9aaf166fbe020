/* Two ranks exchange messages of several lengths, check every byte, and rank 0 prints half the round trip of each length. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static const int bytes_of[] = {0, 8, 1024, 16384, 65536, 1 << 20, 4 << 20};
enum { LENGTHS = sizeof bytes_of / sizeof *bytes_of, BYTES_MAX = 4 << 20, TAG = 1 };

static void fill(unsigned char *buffer, int bytes, int round)
{
    for (int i = 0; i < bytes; i++)
        buffer[i] = (unsigned char)(i * 31 + round);
}

static void check(const unsigned char *buffer, int bytes, int round)
{
    for (int i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)(i * 31 + round)) {
            fprintf(stderr, "byte %d of %d is wrong in round %d\n", i, bytes, round);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    unsigned char *buffer = calloc(BYTES_MAX, 1);
    for (int length = 0; length < LENGTHS; length++) {
        int bytes = bytes_of[length], rounds = bytes <= 16384 ? 2000 : 40, checked = 10;
        double begun = 0;
        for (int round = -checked; round < rounds; round++) {
            if (round == 0)
                begun = MPI_Wtime();
            if (rank == 0) {
                if (round < 0)
                    fill(buffer, bytes, round);
                MPI_Send(buffer, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
                if (round < 0)
                    fill(buffer, bytes, 0);
            }
            if (rank < 2)
                MPI_Recv(buffer, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank < 2 && round < 0)
                check(buffer, bytes, round);
            if (rank == 1)
                MPI_Send(buffer, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
        if (rank == 0)
            printf("%d bytes: %.2f us\n", bytes, (MPI_Wtime() - begun) / rounds / 2 * 1e6);
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}
