/*
 * Every collective operation of MPI-3, blocking and not, on communicators within a group, between two groups and with neighbours, every result checked.
 *
 * usage: collectives [ROUNDS [BYTES]]    default 1 round, with blocks of up to 1 MiB; rank 0 prints "verified N operations"
 *        collectives SECONDSs|FILE [BYTES]    as many rounds as begin in that time, such as 6s, or until there is a file of that name, which begins with /
 *
 * A block has 0, 8, 1 Ki, 64 Ki or 1 Mi bytes. The operations with counts of their own for each rank leave gaps between the blocks, which must stay as they were.
 * While one that does not block is open, so is a barrier on the same communicator. Exit code 3: something was wrong.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WRONG = 3, GAP = 1, SIZES = 5, GAP_VALUE = -77 };

/* MPICH 5.0.2 delivers nothing of an MPI_Ibcast between two groups whose root is not rank 0, also over its own shared memory. */
#ifdef MPICH_NUMVERSION
enum { IBCAST_WANTS_ROOT_0 = 1 };
#else
enum { IBCAST_WANTS_ROOT_0 = 0 };
#endif

/* From an MPI_Ibarrier between two groups of Open MPI 4.1 and 5.0 ranks other than 0 come back too early, also over its own transports. */
#ifdef OPEN_MPI
enum { IBARRIER_LEAVES_EARLY = 1 };
#else
enum { IBARRIER_LEAVES_EARLY = 0 };
#endif

/* A communicator as one of its processes sees it. Between two groups the others are those of the other one. */
struct view {
    const char *name;
    MPI_Comm comm;
    int between, side, me, size, others;
    int *ids; /* ranks of the others in MPI_COMM_WORLD */
};

/* Who sends and who receives in an operation with a root. */
struct rooted {
    int argument;          /* what the call wants for `root` */
    int is_root, is_leaf;  /* within a group the root is both */
    int root_id;           /* for leaves */
};

static int world_rank, world_size, nonblocking;
static const char *operation;
static long operations;
static long *out, *in;

static void wrong(const struct view *view, long at, long expected, long found)
{
    fprintf(stderr, "rank %d: %s%s on %s: value %ld: expected %ld, found %ld\n", world_rank, nonblocking ? "nonblocking " : "", operation, view->name, at,
            expected, found);
    MPI_Abort(MPI_COMM_WORLD, WRONG);
}

/* The i-th value that one rank has for another. */
static long value(int from, int to, long i)
{
    return from * 1000003L + to * 7919L + i * 31 + operations % 1009;
}

static long sum_of(const struct view *view, int ranks, int to, long i)
{
    long sum = 0;
    for (int at = 0; at < ranks; at++)
        sum += value(view->ids[at], to, i);
    return sum;
}

static void fill(long *block, int from, int to, long first, long count)
{
    for (long i = 0; i < count; i++)
        block[i] = value(from, to, first + i);
}

static void expect_block(const struct view *view, const long *block, int from, int to, long first, long count)
{
    for (long i = 0; i < count; i++)
        if (block[i] != value(from, to, first + i))
            wrong(view, i, value(from, to, first + i), block[i]);
}

static void expect_sums(const struct view *view, const long *block, int ranks, int to, long first, long count)
{
    for (long i = 0; i < count; i++) {
        long expected = sum_of(view, ranks, to, first + i);
        if (block[i] != expected)
            wrong(view, i, expected, block[i]);
    }
}

static void clear(long count)
{
    for (long i = 0; i < count; i++)
        in[i] = GAP_VALUE;
}

static void expect_gap(const struct view *view, long at)
{
    for (int i = 0; i < GAP; i++)
        if (in[at + i] != GAP_VALUE)
            wrong(view, at + i, GAP_VALUE, in[at + i]);
}

/* One operation, in the form that is being tested. */
#define DO(view, blocking_name, other_name, ...)                                                                                                               \
    do {                                                                                                                                                       \
        operation = #other_name;                                                                                                                               \
        if (nonblocking) {                                                                                                                                     \
            MPI_Request requests[2];                                                                                                                           \
            MPI_Ibarrier((view)->comm, &requests[0]);                                                                                                          \
            MPI_I##other_name(__VA_ARGS__, &requests[1]);                                                                                                      \
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);                                                                                                     \
        } else {                                                                                                                                               \
            MPI_##blocking_name(__VA_ARGS__);                                                                                                                  \
        }                                                                                                                                                      \
    } while (0)

/* Longs of the block of a rank, in the operations where they differ. */
static int part(int id, int count)
{
    return count < 2 ? count : count - id % 2;
}

/* Counts and places of the blocks of all others, with gaps between them. */
static void lay_out(const struct view *view, int count, int *counts, int *places)
{
    int at = 0;
    for (int i = 0; i < view->others; i++) {
        counts[i] = part(view->ids[i], count);
        places[i] = at;
        at += counts[i] + GAP;
    }
}

static struct rooted rooted_at(const struct view *view, int side, int root)
{
    struct rooted rooted = { .argument = root };
    int at_home = !view->between || side == view->side;
    rooted.is_root = at_home && view->me == root;
    rooted.is_leaf = !view->between || !at_home;
    rooted.root_id = rooted.is_leaf ? view->ids[root] : -1;
    if (view->between && at_home)
        rooted.argument = rooted.is_root ? MPI_ROOT : MPI_PROC_NULL;
    return rooted;
}

/* No one leaves before everybody that is waited for has come. All clocks are this machine's. */
static void barrier(const struct view *view)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double entered[2] = { 0, 0 }, last[2];
    entered[view->side] = now.tv_sec + now.tv_nsec * 1e-9;
    operation = "barrier";
    if (nonblocking) {
        MPI_Request request;
        MPI_Ibarrier(view->comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Barrier(view->comm);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    double left = now.tv_sec + now.tv_nsec * 1e-9;
    MPI_Allreduce(entered, last, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double awaited = last[view->between ? 1 - view->side : view->side];
    if (left < awaited && !(IBARRIER_LEAVES_EARLY && view->between && nonblocking))
        wrong(view, 0, (long)(awaited * 1e9), (long)(left * 1e9));
    operations++;
}

static void with_root(const struct view *view, int count, int side, int root)
{
    struct rooted rooted = rooted_at(view, side, root);
    int mine = part(world_rank, count), *counts = malloc(sizeof(int) * (size_t)view->others), *places = malloc(sizeof(int) * (size_t)view->others);
    long whole = (long)view->others * (count + GAP);
    lay_out(view, count, counts, places);

    if (!(IBCAST_WANTS_ROOT_0 && view->between && nonblocking && root > 0)) {
        clear(count);
        fill(in, world_rank, 0, 0, rooted.is_root ? count : 0);
        DO(view, Bcast, bcast, in, count, MPI_LONG, rooted.argument, view->comm);
        if (rooted.is_leaf)
            expect_block(view, in, rooted.root_id, 0, 0, count);
        operations++;
    }

    clear(whole);
    fill(out, world_rank, rooted.root_id, 0, count);
    DO(view, Gather, gather, out, count, MPI_LONG, in, count, MPI_LONG, rooted.argument, view->comm);
    for (int i = 0; rooted.is_root && i < view->others; i++)
        expect_block(view, in + (long)i * count, view->ids[i], world_rank, 0, count);
    operations++;

    clear(whole);
    fill(out, world_rank, rooted.root_id, 0, mine);
    DO(view, Gatherv, gatherv, out, mine, MPI_LONG, in, counts, places, MPI_LONG, rooted.argument, view->comm);
    for (int i = 0; rooted.is_root && i < view->others; i++) {
        expect_block(view, in + places[i], view->ids[i], world_rank, 0, counts[i]);
        expect_gap(view, places[i] + counts[i]);
    }
    operations++;

    clear(count);
    for (int i = 0; i < view->others; i++)
        fill(out + (long)i * count, world_rank, view->ids[i], 0, count);
    DO(view, Scatter, scatter, out, count, MPI_LONG, in, count, MPI_LONG, rooted.argument, view->comm);
    if (rooted.is_leaf)
        expect_block(view, in, rooted.root_id, world_rank, 0, count);
    operations++;

    clear(count + GAP);
    for (int i = 0; i < view->others; i++)
        fill(out + places[i], world_rank, view->ids[i], 0, counts[i]);
    DO(view, Scatterv, scatterv, out, counts, places, MPI_LONG, in, mine, MPI_LONG, rooted.argument, view->comm);
    if (rooted.is_leaf) {
        expect_block(view, in, rooted.root_id, world_rank, 0, mine);
        expect_gap(view, mine);
    }
    operations++;

    clear(count);
    fill(out, world_rank, 0, 0, count);
    DO(view, Reduce, reduce, out, in, count, MPI_LONG, MPI_SUM, rooted.argument, view->comm);
    if (rooted.is_root)
        expect_sums(view, in, view->others, 0, 0, count);
    operations++;
    free(counts);
    free(places);
}

static void all_to_all(const struct view *view, int count)
{
    int others = view->others, mine = part(world_rank, count), *counts = malloc(sizeof(int) * (size_t)others), *places = malloc(sizeof(int) * (size_t)others);
    int *given = malloc(sizeof(int) * (size_t)others), *from = malloc(sizeof(int) * (size_t)others), *bytes_from = malloc(sizeof(int) * (size_t)others),
        *bytes_to = malloc(sizeof(int) * (size_t)others);
    MPI_Datatype *types = malloc(sizeof(MPI_Datatype) * (size_t)others);
    long whole = (long)others * (count + GAP);
    lay_out(view, count, counts, places);

    clear(whole);
    fill(out, world_rank, 0, 0, count);
    DO(view, Allgather, allgather, out, count, MPI_LONG, in, count, MPI_LONG, view->comm);
    for (int i = 0; i < others; i++)
        expect_block(view, in + (long)i * count, view->ids[i], 0, 0, count);
    operations++;

    clear(whole);
    fill(out, world_rank, 0, 0, mine);
    DO(view, Allgatherv, allgatherv, out, mine, MPI_LONG, in, counts, places, MPI_LONG, view->comm);
    for (int i = 0; i < others; i++) {
        expect_block(view, in + places[i], view->ids[i], 0, 0, counts[i]);
        expect_gap(view, places[i] + counts[i]);
    }
    operations++;

    clear(whole);
    for (int i = 0; i < others; i++)
        fill(out + (long)i * count, world_rank, view->ids[i], 0, count);
    DO(view, Alltoall, alltoall, out, count, MPI_LONG, in, count, MPI_LONG, view->comm);
    for (int i = 0; i < others; i++)
        expect_block(view, in + (long)i * count, view->ids[i], world_rank, 0, count);
    operations++;

    /* To each of the others the block that belongs to its size, from each the one that belongs to mine: what is sent differs from what comes. */
    for (int i = 0; i < others; i++) {
        given[i] = mine;
        from[i] = i * (count + GAP);
        bytes_to[i] = places[i] * (int)sizeof(long);
        bytes_from[i] = from[i] * (int)sizeof(long);
        types[i] = MPI_LONG;
    }
    for (int wide = 0; wide < 2; wide++) {
        clear(whole);
        for (int i = 0; i < others; i++)
            fill(out + places[i], world_rank, view->ids[i], 0, counts[i]);
        if (wide)
            DO(view, Alltoallw, alltoallw, out, counts, bytes_to, types, in, given, bytes_from, types, view->comm);
        else
            DO(view, Alltoallv, alltoallv, out, counts, places, MPI_LONG, in, given, from, MPI_LONG, view->comm);
        for (int i = 0; i < others; i++) {
            expect_block(view, in + from[i], view->ids[i], world_rank, 0, mine);
            expect_gap(view, from[i] + mine);
        }
        operations++;
    }

    clear(count);
    fill(out, world_rank, 0, 0, count);
    DO(view, Allreduce, allreduce, out, in, count, MPI_LONG, MPI_SUM, view->comm);
    expect_sums(view, in, others, 0, 0, count);
    operations++;

    /* Both groups give vectors of one length, and each shares out what the other has given. */
    int each = view->between ? count * others : count;
    clear(each + GAP);
    fill(out, world_rank, 0, 0, (long)each * view->size);
    DO(view, Reduce_scatter_block, reduce_scatter_block, out, in, each, MPI_LONG, MPI_SUM, view->comm);
    expect_sums(view, in, others, 0, (long)view->me * each, each);
    operations++;

    int *shares = malloc(sizeof(int) * (size_t)view->size), first = 0;
    for (int i = 0; i < view->size; i++)
        shares[i] = each;
    if (each > 0 && view->size > 1) {
        shares[0]++;
        shares[view->size - 1]--;
    }
    for (int i = 0; i < view->me; i++)
        first += shares[i];
    clear(each + GAP + 1);
    fill(out, world_rank, 0, 0, (long)each * view->size);
    DO(view, Reduce_scatter, reduce_scatter, out, in, shares, MPI_LONG, MPI_SUM, view->comm);
    expect_sums(view, in, others, 0, first, shares[view->me]);
    expect_gap(view, shares[view->me]);
    operations++;

    if (!view->between) {
        clear(count);
        fill(out, world_rank, 0, 0, count);
        DO(view, Scan, scan, out, in, count, MPI_LONG, MPI_SUM, view->comm);
        expect_sums(view, in, view->me + 1, 0, 0, count);
        operations++;

        clear(count);
        fill(out, world_rank, 0, 0, count);
        DO(view, Exscan, exscan, out, in, count, MPI_LONG, MPI_SUM, view->comm);
        if (view->me > 0)
            expect_sums(view, in, view->me, 0, 0, count);
        operations++;
    }
    free(shares);
    free(types);
    free(bytes_to);
    free(bytes_from);
    free(from);
    free(given);
    free(counts);
    free(places);
}

/* Each rank sends to the next two, and receives from the previous two. */
static void with_neighbours(const struct view *view, int count)
{
    enum { NEAR_MAX = 2 };
    int near = view->size > 1 ? NEAR_MAX : 1, mine = part(world_rank, count);
    int to[NEAR_MAX], from[NEAR_MAX], counts[NEAR_MAX], places[NEAR_MAX], given[NEAR_MAX], starts[NEAR_MAX];
    MPI_Aint bytes_from[NEAR_MAX], bytes_to[NEAR_MAX];
    MPI_Datatype types[NEAR_MAX];
    long whole = (long)near * (count + GAP);
    for (int i = 0; i < near; i++) {
        to[i] = (view->me + i + 1) % view->size;
        from[i] = (view->me - i - 1 + view->size * NEAR_MAX) % view->size;
        counts[i] = part(view->ids[from[i]], count);
        places[i] = starts[i] = i * (count + GAP);
        given[i] = part(view->ids[to[i]], count);
        bytes_from[i] = bytes_to[i] = places[i] * (MPI_Aint)sizeof(long);
        types[i] = MPI_LONG;
    }
    struct view graph = *view;
    graph.name = "a graph";
    MPI_Dist_graph_create_adjacent(view->comm, near, from, MPI_UNWEIGHTED, near, to, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph.comm);

    clear(whole);
    fill(out, world_rank, 0, 0, count);
    DO(&graph, Neighbor_allgather, neighbor_allgather, out, count, MPI_LONG, in, count, MPI_LONG, graph.comm);
    for (int i = 0; i < near; i++)
        expect_block(&graph, in + (long)i * count, view->ids[from[i]], 0, 0, count);
    operations++;

    clear(whole);
    fill(out, world_rank, 0, 0, mine);
    DO(&graph, Neighbor_allgatherv, neighbor_allgatherv, out, mine, MPI_LONG, in, counts, places, MPI_LONG, graph.comm);
    for (int i = 0; i < near; i++) {
        expect_block(&graph, in + places[i], view->ids[from[i]], 0, 0, counts[i]);
        expect_gap(&graph, places[i] + counts[i]);
    }
    operations++;

    clear(whole);
    for (int i = 0; i < near; i++)
        fill(out + (long)i * count, world_rank, view->ids[to[i]], 0, count);
    DO(&graph, Neighbor_alltoall, neighbor_alltoall, out, count, MPI_LONG, in, count, MPI_LONG, graph.comm);
    for (int i = 0; i < near; i++)
        expect_block(&graph, in + (long)i * count, view->ids[from[i]], world_rank, 0, count);
    operations++;

    for (int wide = 0; wide < 2; wide++) {
        int incoming[NEAR_MAX];
        for (int i = 0; i < near; i++)
            incoming[i] = mine;
        clear(whole);
        for (int i = 0; i < near; i++)
            fill(out + starts[i], world_rank, view->ids[to[i]], 0, given[i]);
        if (wide)
            DO(&graph, Neighbor_alltoallw, neighbor_alltoallw, out, given, bytes_to, types, in, incoming, bytes_from, types, graph.comm);
        else
            DO(&graph, Neighbor_alltoallv, neighbor_alltoallv, out, given, starts, MPI_LONG, in, incoming, places, MPI_LONG, graph.comm);
        for (int i = 0; i < near; i++) {
            expect_block(&graph, in + places[i], view->ids[from[i]], world_rank, 0, mine);
            expect_gap(&graph, places[i] + mine);
        }
        operations++;
    }
    MPI_Comm_free(&graph.comm);
}

static void all_of(const struct view *view, int count)
{
    barrier(view);
    int sides = view->between ? 2 : 1;
    for (int side = 0; side < sides; side++) {
        int size = !view->between || side == view->side ? view->size : view->others;
        with_root(view, count, side, 0);
        if (size > 1)
            with_root(view, count, side, size - 1);
    }
    all_to_all(view, count);
    if (!view->between)
        with_neighbours(view, count);
}

int main(int argc, char **argv)
{
    static const int sizes[SIZES] = { 0, 8, 1 << 10, 64 << 10, 1 << 20 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    char *unit = "";
    double amount = argc > 1 ? strtod(argv[1], &unit) : 1;
    const char *until = argc > 1 && argv[1][0] == '/' ? argv[1] : NULL;
    int is_timed = *unit == 's', bytes_max = argc > 2 ? atoi(argv[2]) : sizes[SIZES - 1];
    /* Between two groups the vector that is shared out is as long as both groups together make it. */
    size_t longs = ((size_t)bytes_max / sizeof(long) + GAP + 2) * (size_t)world_size * (size_t)(world_size > 1 ? world_size : 2);
    out = malloc(longs * sizeof(long));
    in = malloc(longs * sizeof(long));
    int *all = malloc(sizeof(int) * (size_t)world_size);
    for (int i = 0; i < world_size; i++)
        all[i] = i;

    struct view views[2] = { { .name = "one group", .comm = MPI_COMM_WORLD, .me = world_rank, .size = world_size, .others = world_size, .ids = all } };
    int count = 1;
    MPI_Comm half = MPI_COMM_NULL;
    if (world_size > 1) {
        int middle = world_size / 2, side = world_rank >= middle;
        MPI_Comm_split(MPI_COMM_WORLD, side, world_rank, &half);
        views[1] = (struct view){ .name = "two groups", .between = 1, .side = side, .me = world_rank - (side ? middle : 0) };
        views[1].size = side ? world_size - middle : middle;
        views[1].others = world_size - views[1].size;
        views[1].ids = side ? all : all + middle;
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side ? 0 : middle, 5, &views[1].comm);
        count = 2;
    }
    double begun = MPI_Wtime();
    int more = 1;
    for (int round = 1; more; round++) {
        for (int size = 0; size < SIZES && sizes[size] <= bytes_max; size++)
            for (int at = 0; at < count; at++)
                for (nonblocking = 0; nonblocking < 2; nonblocking++)
                    all_of(&views[at], sizes[size] / (int)sizeof(long));
        more = until ? access(until, F_OK) != 0 : is_timed ? MPI_Wtime() - begun < amount : round < amount;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (count > 1) {
        MPI_Comm_free(&views[1].comm);
        MPI_Comm_free(&half);
    }
    if (world_rank == 0)
        printf("verified %ld operations\n", operations);
    free(all);
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
