/* Sorts integers on all ranks, again and again, and verifies each result, until a file is there. An MPI program like any other: it knows
   nothing of checkpoints.
   usage: sort KEYS-PER-RANK ROUNDS FILE    at least so many rounds, and until FILE is there */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANGE = 1 << 20, MESSAGES = 32, WORDS = 64 };

static uint32_t mixed(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = (a * 0x9e3779b97f4a7c15u) ^ (b * 0xbf58476d1ce4e5b9u) ^ (c * 0x94d049bb133111ebu);
    x = (x ^ x >> 31) * 0xd6e8feb86659fd93u;
    return x >> 32;
}

static void *room(size_t bytes)
{
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

int main(int count, char **words)
{
    int rank, ranks;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int keys = atoi(words[1]);
    long rounds = atol(words[2]), round = 0;
    uint32_t width = (RANGE + ranks - 1) / ranks, low = width * rank;
    uint32_t *key = room(sizeof *key * keys), *out = room(sizeof *key * keys), *in = 0, *place = room(sizeof *place * width);
    uint32_t *sent = room(sizeof(uint32_t) * ranks * MESSAGES * WORDS), *got = room(sizeof(uint32_t) * ranks * MESSAGES * WORDS);
    int *to = room(sizeof(int) * ranks), *from = room(sizeof(int) * ranks), *to_at = room(sizeof(int) * ranks),
        *from_at = room(sizeof(int) * ranks);
    MPI_Request *open = room(sizeof *open * 2 * ranks * MESSAGES);
    int64_t seen[5] = {0}, all[5];
    enum { BORDERS, BORDERS_RIGHT, SORTS, SORTS_RIGHT, RECEIVED };
    int in_room = 0, wrong = 0;

    for (int over = 0; !over; round++) {
        /* In flight while all else happens. */
        int requests = 0;
        for (int peer = 0; peer < ranks; peer++)
            for (int number = 0; peer != rank && number < MESSAGES; number++) {
                uint32_t *words_in = got + (peer * MESSAGES + number) * WORDS;
                uint32_t *words_out = sent + (peer * MESSAGES + number) * WORDS;
                for (int word = 0; word < WORDS; word++)
                    words_out[word] = mixed(round * 64 + word, rank, peer * MESSAGES + number);
                MPI_Irecv(words_in, WORDS, MPI_UINT32_T, peer, number, MPI_COMM_WORLD, &open[requests++]);
                MPI_Isend(words_out, WORDS, MPI_UINT32_T, peer, number, MPI_COMM_WORLD, &open[requests++]);
            }
        /* Every key goes to the rank that has its part of the range. */
        int64_t sums[4] = {0}, together[4];
        memset(to, 0, sizeof(int) * ranks);
        for (int i = 0; i < keys; i++) {
            key[i] = mixed(round, rank, i) % RANGE;
            to[key[i] / width]++;
            sums[0] += key[i], sums[1] += (int64_t)key[i] * key[i];
        }
        MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
        int mine = 0;
        for (int peer = 0, at = 0; peer < ranks; peer++) {
            to_at[peer] = at, at += to[peer];
            from_at[peer] = mine, mine += from[peer];
        }
        if (mine > in_room) {
            free(in);
            in = room(sizeof *in * (in_room = mine + mine / 8));
        }
        for (int i = 0; i < keys; i++)
            out[to_at[key[i] / width]++] = key[i];
        for (int peer = 0; peer < ranks; peer++)
            to_at[peer] -= to[peer];
        MPI_Alltoallv(out, to, to_at, MPI_UINT32_T, in, from, from_at, MPI_UINT32_T, MPI_COMM_WORLD);
        memset(place, 0, sizeof *place * width);
        int stray = 0;
        for (int i = 0; i < mine; i++)
            if (in[i] - low < width)
                place[in[i] - low]++;
            else
                stray++;
        for (uint32_t value = 0, i = 0; value < width; value++)
            for (uint32_t times = place[value]; times; times--)
                in[i++] = low + value;
        /* It is sorted if no key was lost or made, and the borders fit. */
        for (int i = 0; i < mine; i++)
            sums[2] += in[i], sums[3] += (int64_t)in[i] * in[i];
        MPI_Allreduce(sums, together, 4, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        seen[SORTS]++;
        seen[SORTS_RIGHT] += !stray && together[0] == together[2] && together[1] == together[3];
        uint32_t last = mine ? in[mine - 1] : low, before = 0;
        int right = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL, left = rank ? rank - 1 : MPI_PROC_NULL;
        MPI_Sendrecv(&last, 1, MPI_UINT32_T, right, MESSAGES, &before, 1, MPI_UINT32_T, left, MESSAGES, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        seen[BORDERS] += rank > 0;
        seen[BORDERS_RIGHT] += rank > 0 && (!mine || before <= in[0]);
        MPI_Waitall(requests, open, MPI_STATUSES_IGNORE);
        for (int peer = 0; peer < ranks; peer++)
            for (int number = 0; peer != rank && number < MESSAGES; number++) {
                uint32_t *message = got + (peer * MESSAGES + number) * WORDS;
                int fits = 1;
                for (int word = 0; word < WORDS; word++)
                    fits &= message[word] == mixed(round * 64 + word, peer, rank * MESSAGES + number);
                seen[RECEIVED] += fits, wrong += !fits;
            }
        over = !rank && round + 1 >= rounds && !access(words[3], F_OK);
        MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }

    int any = 0;
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce(seen, all, 5, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) {
        int verified = !any && all[BORDERS] == all[BORDERS_RIGHT] && all[SORTS] == all[SORTS_RIGHT];
        printf("{\"verified\":%s,\"rounds\":%ld,\"keys\":%lld,\"partial_passed\":%lld,\"partial_expected\":%lld,"
               "\"full_passed\":%lld,\"full_expected\":%lld,\"burst_messages\":%lld}\n",
               verified ? "true" : "false", round, (long long)keys * ranks, (long long)all[BORDERS_RIGHT],
               (long long)all[BORDERS], (long long)all[SORTS_RIGHT], (long long)all[SORTS], (long long)all[RECEIVED]);
    }
    MPI_Finalize();
    return 0;
}
