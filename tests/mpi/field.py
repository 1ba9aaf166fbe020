"""A field of numpy over mpi4py: halos in buffers, sums, pickled objects, a matrix product. The result depends on every message and on nothing else.

usage: field.py ROUNDS
"""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

ROWS, COLUMNS = 128, 512

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
up, down = (rank - 1) % ranks, (rank + 1) % ranks
random = np.random.default_rng(rank)
field = random.integers(0, 1 << 32, (ROWS + 2, COLUMNS), dtype=np.uint64)
history = hashlib.sha256()

for number in range(int(sys.argv[1])):
    requests = [
        world.Irecv(field[0], up, 1),
        world.Irecv(field[-1], down, 2),
        world.Isend(field[1].copy(), up, 2),
        world.Isend(field[-2].copy(), down, 1),
    ]
    MPI.Request.Waitall(requests)
    inner = field[1:-1]
    field[1:-1] = inner * np.uint64(3) + field[:-2] + field[2:] + np.roll(inner, 1, axis=1)
    total = np.zeros(COLUMNS, dtype=np.uint64)
    world.Allreduce(field[1:-1].sum(axis=0, dtype=np.uint64), total)
    history.update(total.tobytes())
    if number % 10 == 0:
        # Objects of every length, from everybody to everybody.
        told = world.alltoall([{"from": rank, "to": to, "rows": field[1, : 1 + (number + to) % 50].tolist()} for to in range(ranks)])
        assert [part["from"] for part in told] == list(range(ranks)), told
        history.update(repr(told).encode())
    if number % 25 == 0:
        # Small whole numbers: a product of floats is exact, whatever the library's threads do.
        small = (field[1:-1, :128] % np.uint64(1000)).astype(np.float64)
        product = small @ small.T
        history.update(product.tobytes())
    if rank == 0 and number % 200 == 0:
        print(f"field: round {number}", flush=True)

print(f"rank {rank} result {history.hexdigest()[:16]}", flush=True)
