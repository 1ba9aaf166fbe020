/*
 * Kernels that compute and communicate for as long as they are told, with a result that depends on every message and on nothing else: all arithmetic is in
 * integers, so that an undisturbed run and one that was killed and restored say the same.
 *
 * usage: kernels KIND ROUNDS
 *   sort       integer sort: counts by MPI_Allreduce, keys by MPI_Alltoallv
 *   solve      a grid: halos by MPI_Irecv and MPI_Isend, wildcards and probes now and then, sums by MPI_Allreduce
 *   transpose  a matrix turned by MPI_Alltoall, long messages (rendezvous) by MPI_Sendrecv
 *   window     one-sided: MPI_Put and MPI_Accumulate between fences, MPI_Fetch_and_op and MPI_Get under locks
 *   threads    MPI_THREAD_MULTIPLE: each thread a ring of its own, of short and long messages
 *   mixture    a round of each in turn; persistent requests, parts of the world, non-blocking collectives
 *
 * Rank 0 prints "KIND: round N" now and then; at the end each rank prints "rank R result HEX".
 */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 20000, WIDTH = 512, HEIGHT = 64, SIDE = 64, LONG = 300000, SLOTS = 256, THREADS = 3, RANKS_MAX = 64 };

static int rank, ranks;
static uint64_t result;

static uint64_t mix(uint64_t a, uint64_t b)
{
    a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
    a *= 0xbf58476d1ce4e5b9ull;
    return a ^ a >> 31;
}

static void fill(void *to, size_t bytes, uint64_t seed)
{
    unsigned char *at = to;
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0)
            seed = mix(seed, i);
        at[i] = (unsigned char)(seed >> i % 8 * 8);
    }
}

static uint64_t digest(const void *of, size_t bytes, uint64_t seed)
{
    const unsigned char *at = of;
    for (size_t i = 0; i < bytes; i++)
        seed = (seed ^ at[i]) * 0x100000001b3ull;
    return seed;
}

static void wrong(const char *what, long round)
{
    fprintf(stderr, "rank %d, round %ld: %s\n", rank, round, what);
    MPI_Abort(MPI_COMM_WORLD, 4);
}

static void sort(long round)
{
    static uint32_t keys[KEYS], sorted[KEYS * 4], sent[KEYS];
    int to[RANKS_MAX] = {0}, from[RANKS_MAX], send_at[RANKS_MAX], receive_at[RANKS_MAX], next[RANKS_MAX];
    uint64_t mine[RANKS_MAX] = {0}, all[RANKS_MAX];
    for (int i = 0; i < KEYS; i++) {
        keys[i] = (uint32_t)mix(result + (uint64_t)round, (uint64_t)i * 31 + (uint64_t)rank);
        int owner = (int)((uint64_t)keys[i] * (uint64_t)ranks >> 32);
        to[owner]++;
        mine[owner]++;
    }
    MPI_Allreduce(mine, all, ranks, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
    int sends = 0, receives = 0;
    for (int i = 0; i < ranks; i++) {
        send_at[i] = next[i] = sends;
        receive_at[i] = receives;
        sends += to[i];
        receives += from[i];
    }
    if ((uint64_t)receives != all[rank] || receives > KEYS * 4)
        wrong("the counts do not add up", round);
    for (int i = 0; i < KEYS; i++)
        sent[next[(uint64_t)keys[i] * (uint64_t)ranks >> 32]++] = keys[i];
    MPI_Alltoallv(sent, to, send_at, MPI_UINT32_T, sorted, from, receive_at, MPI_UINT32_T, MPI_COMM_WORLD);
    uint64_t sum = 0;
    for (int i = 0; i < receives; i++) {
        if ((int)((uint64_t)sorted[i] * (uint64_t)ranks >> 32) != rank)
            wrong("a key has come to the wrong rank", round);
        sum += mix(sorted[i], 1);
    }
    result = mix(result, sum);
}

static uint32_t grid[2][HEIGHT + 2][WIDTH];

static void solve(long round)
{
    uint32_t(*now)[WIDTH] = grid[round % 2], (*then)[WIDTH] = grid[1 - round % 2];
    int up = (rank + ranks - 1) % ranks, down = (rank + 1) % ranks;
    MPI_Request requests[4];
    if (round == 0)
        fill(now[1], sizeof(uint32_t) * WIDTH * HEIGHT, (uint64_t)rank);
    MPI_Isend(now[1], WIDTH, MPI_UINT32_T, up, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(now[HEIGHT], WIDTH, MPI_UINT32_T, down, 2, MPI_COMM_WORLD, &requests[1]);
    if (round % 5 == 0 && ranks > 2) {
        /* Whichever comes first, by its source and tag. */
        for (int i = 0; i < 2; i++) {
            MPI_Status status;
            int count;
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_UINT32_T, &count);
            if (count != WIDTH || (status.MPI_SOURCE == up ? 2 : 1) != status.MPI_TAG)
                wrong("a halo is not what it should be", round);
            MPI_Recv(now[status.MPI_TAG == 2 ? 0 : HEIGHT + 1], WIDTH, MPI_UINT32_T, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Irecv(now[0], WIDTH, MPI_UINT32_T, up, 2, MPI_COMM_WORLD, &requests[2]);
        MPI_Irecv(now[HEIGHT + 1], WIDTH, MPI_UINT32_T, down, 1, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
    uint64_t sum = 0, all;
    for (int y = 1; y <= HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            then[y][x] = now[y][x] * 3 + now[y - 1][x] + now[y + 1][x] + now[y][(x + 1) % WIDTH] + now[y][(x + WIDTH - 1) % WIDTH];
            sum += then[y][x];
        }
    MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    result = mix(result, all);
}

static void transpose(long round)
{
    static uint64_t rows[RANKS_MAX * SIDE * SIDE / 8], columns[RANKS_MAX * SIDE * SIDE / 8];
    static unsigned char out[LONG], in[LONG], expected[LONG];
    int block = SIDE * SIDE / 8;
    fill(rows, sizeof(uint64_t) * (size_t)(block * ranks), result + (uint64_t)round);
    MPI_Alltoall(rows, block, MPI_UINT64_T, columns, block, MPI_UINT64_T, MPI_COMM_WORLD);
    result = digest(columns, sizeof(uint64_t) * (size_t)(block * ranks), result);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, bytes = LONG - (int)(round % 1000);
    fill(out, (size_t)bytes, (uint64_t)rank * 1000003 + (uint64_t)round);
    MPI_Sendrecv(out, bytes, MPI_BYTE, to, 3, in, LONG, MPI_BYTE, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    fill(expected, (size_t)bytes, (uint64_t)from * 1000003 + (uint64_t)round);
    if (memcmp(in, expected, (size_t)bytes))
        wrong("a long message is not what was sent", round);
}

static MPI_Win window;
static uint64_t *slots;

static void one_sided(long round)
{
    uint64_t put[SLOTS / 4], got[SLOTS], one = (uint64_t)rank + 1, before;
    int next = (rank + 1) % ranks, before_me = (rank + ranks - 1) % ranks;
    if (round == 0) {
        MPI_Win_allocate(sizeof(uint64_t) * SLOTS, sizeof(uint64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &slots, &window);
        memset(slots, 0, sizeof(uint64_t) * SLOTS);
    }
    fill(put, sizeof put, result + (uint64_t)round);
    MPI_Win_fence(0, window);
    MPI_Put(put, SLOTS / 4, MPI_UINT64_T, next, 0, SLOTS / 4, MPI_UINT64_T, window);
    for (int to = 0; to < ranks; to++)
        MPI_Accumulate(put, SLOTS / 4, MPI_UINT64_T, to, SLOTS / 2, SLOTS / 4, MPI_UINT64_T, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 3; i++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, SLOTS - 1, MPI_SUM, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Win_fence(0, window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, before_me, 0, window);
    MPI_Get(got, SLOTS, MPI_UINT64_T, before_me, 0, SLOTS, MPI_UINT64_T, window);
    MPI_Win_unlock(before_me, window);
    MPI_Win_fence(0, window);
    result = digest(got, sizeof got, result);
    result = digest(slots, sizeof(uint64_t) * SLOTS, result);
}

struct ring {
    MPI_Comm world;
    uint64_t result;
    long round;
};
static struct ring rings[THREADS];

static void *ring(void *argument)
{
    struct ring *mine = argument;
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    static _Thread_local unsigned char out[20000], in[20000];
    for (int i = 0; i < 10; i++) {
        int bytes = i % 4 == 3 ? 20000 : 16 + i;
        fill(out, (size_t)bytes, mine->result + (uint64_t)i);
        if (i % 2 == 0) {
            MPI_Request request;
            MPI_Isend(out, bytes, MPI_BYTE, to, i, mine->world, &request);
            MPI_Recv(in, bytes, MPI_BYTE, from, i, mine->world, MPI_STATUS_IGNORE);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            MPI_Sendrecv(out, bytes, MPI_BYTE, to, i, in, bytes, MPI_BYTE, from, i, mine->world, MPI_STATUS_IGNORE);
        }
        mine->result = digest(in, (size_t)bytes, mine->result);
    }
    return NULL;
}

static void threads(long round)
{
    pthread_t started[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (round == 0) {
            MPI_Comm_dup(MPI_COMM_WORLD, &rings[i].world);
            rings[i].result = (uint64_t)(rank * THREADS + i);
        }
        rings[i].round = round;
        if (pthread_create(&started[i], NULL, ring, &rings[i]))
            wrong("no thread", round);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(started[i], NULL);
        result = mix(result, rings[i].result);
    }
}

static MPI_Request persistent[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};

static void rest(long round)
{
    static MPI_Comm half;
    static uint64_t out[500], in[500];
    if (round == 0) {
        MPI_Send_init(out, 500, MPI_UINT64_T, (rank + 1) % ranks, 9, MPI_COMM_WORLD, &persistent[0]);
        MPI_Recv_init(in, 500, MPI_UINT64_T, (rank + ranks - 1) % ranks, 9, MPI_COMM_WORLD, &persistent[1]);
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    }
    fill(out, sizeof out, result);
    MPI_Startall(2, persistent);
    MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE);
    result = digest(in, sizeof in, result);
    uint64_t mine = result, greatest, first = round % ranks == rank ? result : 0;
    MPI_Request requests[2];
    MPI_Iallreduce(&mine, &greatest, 1, MPI_UINT64_T, MPI_MAX, half, &requests[0]);
    MPI_Ibcast(&first, 1, MPI_UINT64_T, (int)(round % ranks), MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    result = mix(mix(result, greatest), first);
}

static const struct {
    const char *name;
    void (*round)(long);
    long told;
} KINDS[] = {{"sort", sort, 200}, {"solve", solve, 2000}, {"transpose", transpose, 200}, {"window", one_sided, 500}, {"threads", threads, 200}};
enum { ALL = sizeof KINDS / sizeof *KINDS };

int main(int count, char **words)
{
    if (count != 3) {
        fprintf(stderr, "usage: kernels sort|solve|transpose|window|threads|mixture ROUNDS\n");
        return 2;
    }
    int given, kind = 0, mixture = !strcmp(words[1], "mixture");
    long rounds = atol(words[2]);
    MPI_Init_thread(NULL, NULL, mixture || !strcmp(words[1], "threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (!mixture && kind < ALL && strcmp(KINDS[kind].name, words[1]))
        kind++;
    if (kind == ALL || ranks > RANKS_MAX)
        wrong("no such kernel, or too many ranks", 0);
    for (long round = 0; round < rounds; round++) {
        if (mixture) {
            for (int i = 0; i < ALL; i++)
                KINDS[i].round(round);
            rest(round);
        } else {
            KINDS[kind].round(round);
        }
        if (rank == 0 && round % (mixture ? 50 : KINDS[kind].told) == 0) {
            printf("%s: round %ld\n", words[1], round);
            fflush(stdout);
        }
    }
    if (slots)
        MPI_Win_free(&window);
    if (mixture)
        for (int i = 0; i < 2; i++)
            MPI_Request_free(&persistent[i]);
    printf("rank %d result %016llx\n", rank, (unsigned long long)result);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
