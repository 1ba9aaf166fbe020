"""A matrix product again and again, by numpy and its threads; every result must be the first one, bit for bit."""
import hashlib
import os
import sys
import threading

import numpy

generator = numpy.random.default_rng(7)
left = generator.standard_normal((300, 300))
right = generator.standard_normal((300, 300))
expected = left @ right
rounds = 0
done = False


def work():
    global rounds
    while not done:
        if not numpy.array_equal(left @ right, expected):
            print("FAULT: another product", flush=True)
            os._exit(3)
        rounds += 1


thread = threading.Thread(target=work)
thread.start()
print("ready", flush=True)
while os.read(0, 1):
    before = rounds
    while rounds < before + 3:
        pass
    print("alive", flush=True)
done = True
thread.join()
print("numbers kept", hashlib.sha256(expected.tobytes()).hexdigest()[:8] != "", flush=True)
