/*
 * Figures of one MPI library between two ranks.
 *
 * usage: figures check BYTES...                    every byte of every kind of transfer is compared; nothing is timed
 *        figures measure BLOCKS BLOCK_US BYTES...  rank 0 prints one line for each block: "figure KIND BYTES COUNT SECONDS"
 *
 * BYTES are the lengths of messages; collectives and one-sided transfers have lengths of their own. A block repeats a
 * transfer so often that it takes about BLOCK_US, found by a trial; all blocks of one kind and length repeat it equally often.
 * What takes TOO_SLOW blocks of time or more for once is measured in one block.
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    RANKS = 2,
    TAG = 1,
    /* Messages of a stream that are under way, and their buffers: as many as fit into STREAM_BYTES. */
    SLOTS_MIN = 2,
    SLOTS_MAX = 64,
    STREAM_BYTES = 8 << 20,
    /* Messages between two answers of the receiver. */
    BATCH_MIN = 4,
    BATCH_MAX = 64,
    BATCH_BYTES = 256 << 20,
    MESSAGE_BYTES_MAX = 64 << 20,
    BUFFER_BYTES = SLOTS_MIN * MESSAGE_BYTES_MAX,
    WINDOW_BYTES = 4 << 20,
    TOO_SLOW = 10,
    COUNT_MAX = 100 * 1000 * 1000,
    /* No rank lives longer than this, whatever it waits for. */
    LIFETIME_SECONDS = 900,
};

static const long collective_bytes[] = {8, 64 << 10};
static const long one_sided_bytes[] = {8, WINDOW_BYTES};

static int rank;
static unsigned char *outgoing, *incoming, *window_memory;
static MPI_Win window;

static long clamp(long value, long least, long most)
{
    return value < least ? least : value > most ? most : value;
}

static long slots_of(long bytes)
{
    return bytes ? clamp(STREAM_BYTES / bytes, SLOTS_MIN, SLOTS_MAX) : SLOTS_MAX;
}

static long batch_of(long bytes)
{
    return bytes ? clamp(BATCH_BYTES / bytes, BATCH_MIN, BATCH_MAX) : BATCH_MAX;
}

static void fill(unsigned char *buffer, long bytes, long seed)
{
    for (long i = 0; i < bytes; i++)
        buffer[i] = (unsigned char)(i * 31 + (i >> 12) * 7 + seed);
}

static void compare(const char *kind, const unsigned char *buffer, long bytes, long seed)
{
    for (long i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)(i * 31 + (i >> 12) * 7 + seed)) {
            fprintf(stderr, "rank %d: %s: byte %ld of %ld is wrong\n", rank, kind, i, bytes);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

/* One round trip for each count. */
static void pingpong(long bytes, long count)
{
    for (long i = 0; i < count; i++) {
        if (rank == 0)
            MPI_Send(outgoing, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(incoming, (int)bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(outgoing, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

/* One batch of messages from rank 0 to rank 1 for each count, and one empty answer. */
static void stream(long bytes, long count)
{
    MPI_Request requests[SLOTS_MAX];
    long slots = slots_of(bytes), batch = batch_of(bytes);
    for (long i = 0; i < count; i++) {
        for (long message = 0; message < batch; message++) {
            long slot = message % slots;
            if (message >= slots)
                MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
            if (rank == 0)
                MPI_Isend(outgoing + slot * bytes, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &requests[slot]);
            else
                MPI_Irecv(incoming + slot * bytes, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[slot]);
        }
        MPI_Waitall((int)(batch < slots ? batch : slots), requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

static void allreduce(long bytes, long count)
{
    for (long i = 0; i < count; i++)
        MPI_Allreduce(outgoing, incoming, (int)(bytes / 8), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
}

/* `bytes` to each rank. */
static void alltoall(long bytes, long count)
{
    for (long i = 0; i < count; i++)
        MPI_Alltoall(outgoing, (int)bytes, MPI_BYTE, incoming, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* Rank 1 only waits in the barrier that ends a block. */
static void put(long bytes, long count)
{
    for (long i = 0; rank == 0 && i < count; i++) {
        MPI_Put(outgoing, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
}

static void get(long bytes, long count)
{
    for (long i = 0; rank == 0 && i < count; i++) {
        MPI_Get(incoming, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
}

typedef void (*Transfer)(long bytes, long count);

/* Seconds of rank 0. The barrier is outside, but for one-sided transfers nothing else tells rank 1 that they are over. */
static double timed(Transfer transfer, long bytes, long count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    transfer(bytes, count);
    double seconds = MPI_Wtime() - begun;
    MPI_Barrier(MPI_COMM_WORLD);
    return seconds;
}

static void measure(const char *kind, Transfer transfer, long bytes, long per_count, long blocks, double block_seconds)
{
    /* The first trial pays for what is set up once; each next one is longer, until it is long enough to be trusted. */
    long count = 1;
    double seconds = timed(transfer, bytes, count);
    for (int more = 1; more;) {
        seconds = timed(transfer, bytes, count);
        more = seconds < block_seconds / 10;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        count *= more ? 4 : 1;
    }
    long plan[] = {clamp((long)((double)count * block_seconds / seconds), 1, COUNT_MAX),
                   seconds > TOO_SLOW * block_seconds ? 1 : blocks};
    MPI_Bcast(plan, 2, MPI_LONG, 0, MPI_COMM_WORLD);
    count = plan[0];
    blocks = plan[1];
    for (long block = 0; block < blocks; block++) {
        seconds = timed(transfer, bytes, count);
        if (rank == 0)
            printf("figure %s %ld %ld %.9f\n", kind, bytes, count * per_count, seconds);
    }
    fflush(stdout);
}

static void check_messages(long bytes)
{
    long slots = slots_of(bytes);
    fill(outgoing, bytes, rank);
    memset(incoming, 0xff, (size_t)bytes);
    pingpong(bytes, 3);
    compare("pingpong", incoming, bytes, 1 - rank);
    for (long slot = 0; slot < slots; slot++)
        fill(outgoing + slot * bytes, bytes, slot);
    memset(incoming, 0xff, (size_t)(slots * bytes));
    stream(bytes, 2);
    for (long slot = 0; rank == 1 && slot < slots && slot < batch_of(bytes); slot++)
        compare("stream", incoming + slot * bytes, bytes, slot);
}

static void check_collectives(long bytes)
{
    int64_t *numbers = (int64_t *)(void *)outgoing, *sums = (int64_t *)(void *)incoming;
    for (long i = 0; i < bytes / 8; i++)
        numbers[i] = i * 1000003 + rank;
    allreduce(bytes, 3);
    for (long i = 0; i < bytes / 8; i++)
        if (sums[i] != 2 * i * 1000003 + 1) {
            fprintf(stderr, "rank %d: allreduce: sum %ld of %ld is wrong\n", rank, i, bytes / 8);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    for (long to = 0; to < RANKS; to++)
        fill(outgoing + to * bytes, bytes, 10 * rank + to);
    alltoall(bytes, 3);
    for (long from = 0; from < RANKS; from++)
        compare("alltoall", incoming + from * bytes, bytes, 10 * from + rank);
}

static void check_one_sided(long bytes)
{
    fill(outgoing, bytes, 3);
    put(bytes, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(window);
    if (rank == 1) {
        compare("put", window_memory, bytes, 3);
        fill(window_memory, bytes, 4);
    }
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    get(bytes, 2);
    if (rank == 0)
        compare("get", incoming, bytes, 4);
    MPI_Barrier(MPI_COMM_WORLD);
}

static long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 0 || value > MESSAGE_BYTES_MAX) {
        fprintf(stderr, "'%s' is no number from 0 to %d\n", text, MESSAGE_BYTES_MAX);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    return value;
}

#define EACH(lengths, i) (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)

int main(int argc, char **argv)
{
    /* A rank whose launcher is killed dies too. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFETIME_SECONDS);
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int checks = argc > 2 && !strcmp(argv[1], "check");
    if (ranks != RANKS || argc < 3 || (!checks && (strcmp(argv[1], "measure") || argc < 5))) {
        fprintf(stderr, "usage, with %d ranks (%d came): figures check BYTES... | measure BLOCKS BLOCK_US BYTES...\n",
                RANKS, ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    outgoing = calloc(BUFFER_BYTES, 1);
    incoming = calloc(BUFFER_BYTES, 1);
    if (!outgoing || !incoming) {
        fprintf(stderr, "no memory for 2 x %d bytes\n", BUFFER_BYTES);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Win_allocate(WINDOW_BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
    MPI_Win_lock_all(0, window);
    if (checks) {
        for (int i = 2; i < argc; i++)
            check_messages(number(argv[i]));
        for EACH (collective_bytes, i)
            check_collectives(collective_bytes[i]);
        for EACH (one_sided_bytes, i)
            check_one_sided(one_sided_bytes[i]);
        if (rank == 0)
            printf("checked\n");
    } else {
        long blocks = number(argv[2]);
        double block_seconds = (double)number(argv[3]) / 1e6;
        for (int i = 4; i < argc; i++) {
            long bytes = number(argv[i]);
            measure("pingpong", pingpong, bytes, 1, blocks, block_seconds);
            measure("stream", stream, bytes, batch_of(bytes), blocks, block_seconds);
        }
        for EACH (collective_bytes, i) {
            measure("allreduce", allreduce, collective_bytes[i], 1, blocks, block_seconds);
            measure("alltoall", alltoall, collective_bytes[i], 1, blocks, block_seconds);
        }
        for EACH (one_sided_bytes, i) {
            measure("put", put, one_sided_bytes[i], 1, blocks, block_seconds);
            measure("get", get, one_sided_bytes[i], 1, blocks, block_seconds);
        }
        if (rank == 0)
            printf("measured\n");
    }
    fflush(stdout);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(outgoing);
    free(incoming);
    MPI_Finalize();
    return 0;
}
