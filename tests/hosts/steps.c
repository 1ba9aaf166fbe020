/*
 * A ring of cells that every rank computes a part of, for as long as it may: the values depend on every message and on nothing else, and rank 0 computes all of
 * them again at the end. All arithmetic is in integers. Meanwhile each rank writes down that it runs, whether MPI moves or not.
 *
 * usage: steps LINES END [BYTES]
 *
 * A second thread appends "RANK PID STEP NUMBER MILLISECONDS" to the file LINES every 20 ms: the process, its last complete step, a count of its own lines, and the
 * kernel's monotonic clock. The file is opened for each line, so that it is no open file of an image. The program ends when the file END exists; rank 0 then prints
 * "verified: STEP steps", or exits with 3. Each rank has BYTES more of memory, which has to be as it was at the end.
 */
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CELLS = 8192, REACH = 1024, STEP_US = 2000, LINE_US = 20000 };

static const char *lines;
static int rank, ranks;
static atomic_long steps;

static void *write_lines(void *unused)
{
    char line[96];
    struct timespec now;
    for (long number = 0;; number++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        /* The kernel's answer: a restored process has another number. */
        long pid = syscall(SYS_getpid);
        long at = (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
        int bytes = snprintf(line, sizeof line, "%d %ld %ld %ld %ld\n", rank, pid, atomic_load(&steps), number, at);
        int file = open(lines, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (file < 0 || write(file, line, (size_t)bytes) != bytes) {
            perror(lines);
            exit(2);
        }
        close(file);
        usleep(LINE_US);
    }
    return unused;
}

/* Cells of `count` that follow each other, with REACH more at either end. */
static void compute(uint64_t *to, const uint64_t *from, long count, long step)
{
    for (long i = 0; i < count; i++)
        to[i + REACH] = 3 * from[i + REACH] + from[i] + from[i + 2 * REACH] + (uint64_t)step;
}

static uint64_t initial_value(long cell)
{
    return (uint64_t)cell * 0x9e3779b97f4a7c15ull;
}

static uint64_t *allocate(long count)
{
    uint64_t *cells = calloc((size_t)count, sizeof *cells);
    if (!cells) {
        perror("calloc");
        exit(2);
    }
    return cells;
}

/* Memory of which no two words are alike, for no other purpose than to be saved. */
static uint64_t ballast_word(long i)
{
    uint64_t word = ((uint64_t)rank << 56 ^ (uint64_t)i) * 0x9e3779b97f4a7c15ull;
    return word ^ word >> 29;
}

static int is_ballast_right(const uint64_t *ballast, long count)
{
    for (long i = 0; i < count; i++)
        if (ballast[i] != ballast_word(i))
            return 0;
    return 1;
}

/* What all cells are after so many steps, computed by one process. */
static uint64_t *recompute(long over)
{
    long count = (long)ranks * CELLS;
    uint64_t *now = allocate(count + 2 * REACH), *then = allocate(count + 2 * REACH);
    for (long i = 0; i < count; i++)
        now[i + REACH] = initial_value(i);
    for (long step = 0; step < over; step++) {
        memcpy(now, now + count, REACH * sizeof *now);
        memcpy(now + count + REACH, now + REACH, REACH * sizeof *now);
        compute(then, now, count, step);
        uint64_t *swapped = now;
        now = then;
        then = swapped;
    }
    memmove(now, now + REACH, (size_t)count * sizeof *now);
    return now;
}

int main(int count, char **words)
{
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: steps LINES END [BYTES]\n");
        return 2;
    }
    lines = words[1];
    int given;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long ballast_count = count == 4 ? atol(words[3]) / (long)sizeof(uint64_t) : 0;
    uint64_t *ballast = allocate(ballast_count + 1);
    for (long i = 0; i < ballast_count; i++)
        ballast[i] = ballast_word(i);
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_lines, NULL)) {
        fprintf(stderr, "no thread\n");
        return 2;
    }
    uint64_t *now = allocate(CELLS + 2 * REACH), *then = allocate(CELLS + 2 * REACH);
    for (long i = 0; i < CELLS; i++)
        now[i + REACH] = initial_value((long)rank * CELLS + i);
    int before = (rank + ranks - 1) % ranks, after = (rank + 1) % ranks, is_over = 0;
    long step = 0;
    while (!is_over) {
        MPI_Sendrecv(now + CELLS, REACH, MPI_UINT64_T, after, 1, now, REACH, MPI_UINT64_T, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(now + REACH, REACH, MPI_UINT64_T, before, 2, now + CELLS + REACH, REACH, MPI_UINT64_T, after, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compute(then, now, CELLS, step);
        uint64_t *swapped = now;
        now = then;
        then = swapped;
        int wanted = rank == 0 && access(words[2], F_OK) == 0;
        MPI_Allreduce(&wanted, &is_over, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        atomic_store(&steps, ++step);
        usleep(STEP_US);
    }
    uint64_t *all = allocate((long)ranks * CELLS);
    MPI_Gather(now + REACH, CELLS, MPI_UINT64_T, all, CELLS, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    int has_ballast = is_ballast_right(ballast, ballast_count), is_right = 1;
    MPI_Allreduce(MPI_IN_PLACE, &has_ballast, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) {
        is_right = has_ballast && !memcmp(all, recompute(step), (size_t)ranks * CELLS * sizeof *all);
        printf(is_right ? "verified: %ld steps\n" : "WRONG after %ld steps\n", step);
        fflush(stdout);
    }
    MPI_Finalize();
    return is_right ? 0 : 3;
}
