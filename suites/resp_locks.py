"""Takes locks of 100 ms with redis-py's Lock, from many clients at once and under load, and checks
that none ends early and none has two holders. Prints one JSON object.

    python resp_locks.py --port 6379 --count 100000

A lock that was asked for at t, by this machine's clock, is its client's until t + 100 ms: the
server has set it at t or later. All processes read the same monotonic clock.
"""

import argparse
import json
import multiprocessing
import random
import threading
import time

import redis

TTL_S = 0.1
# A lock that nobody gets within this time was not freed.
PATIENCE_S = 30
# Nobody holds the lock.
FREE = 0.0


class Counts:
    """What the clients of a process have seen."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(["taken", "released", "extended", "left", "ended"], 0)
        self.faults = []

    def add(self, what):
        with self.lock:
            self.counts[what] += 1

    def fault(self, kind, text):
        with self.lock:
            if len(self.faults) < 20:
                self.faults.append([kind, text])


def client(port, seed, names, held_until, tickets, counts):
    """Takes locks until all are taken. `held_until` has the time until which each one is held."""
    rng = random.Random(seed)
    server = redis.Redis(port=port, protocol=rng.choice([2, 3]))
    while True:
        with tickets.get_lock():
            if tickets.value == 0:
                return
            tickets.value -= 1
        name = rng.randrange(names)
        lock = server.lock(f"lock:{name}", timeout=TTL_S)
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            if lock.acquire(blocking=False):
                break
            if asked - began > PATIENCE_S:
                counts.fault("stuck", f"lock {name} was not freed for {PATIENCE_S} s")
                return
            time.sleep(rng.uniform(0.001, 0.01))
        # Read first, because a client that is late may find the time of a later holder, but only
        # after its own has ended.
        before = held_until[name]
        got = time.monotonic()
        if got < before and got < asked + TTL_S:
            text = f"lock {name} has a second holder {before - got:.4f} s before its end"
            counts.fault("two holders", text)
        held_until[name] = until = asked + TTL_S
        counts.add("taken")
        hold(lock, name, rng, until, held_until, counts)


def hold(lock, name, rng, until, held_until, counts):
    """Holds a lock for a while, then releases it or lets it end."""
    choice = rng.random()
    if choice < 0.1:
        # It ends by itself.
        counts.add("left")
        return
    # Many are held nearly to the end.
    left_s = until - time.monotonic()
    time.sleep(max(0, rng.uniform(0, 0.02) if choice < 0.5 else left_s - rng.uniform(0.001, 0.03)))
    try:
        if choice > 0.9:
            asked = time.monotonic()
            lock.extend(TTL_S, replace_ttl=True)
            held_until[name] = until = asked + TTL_S
            counts.add("extended")
            time.sleep(max(0, until - time.monotonic() - rng.uniform(0.005, 0.05)))
        # From here on it may be somebody else's.
        held_until[name] = FREE
        lock.release()
        counts.add("released")
    except redis.exceptions.LockNotOwnedError:
        now = time.monotonic()
        if now < until:
            counts.fault("early", f"lock {name} ended {until - now:.4f} s early")
        # Otherwise this client was late.
        counts.add("ended")


def load(port, seed, is_over):
    """Other commands on the same server, as many as it takes."""
    rng = random.Random(seed)
    server = redis.Redis(port=port)
    while not is_over.is_set():
        pipeline = server.pipeline(transaction=rng.random() < 0.3)
        for _ in range(50):
            key = f"load:{rng.randrange(10_000)}"
            if rng.random() < 0.5:
                pipeline.set(key, "v" * rng.randrange(2_000), px=rng.randrange(1, 5_000))
            else:
                pipeline.mget(key, f"load:{rng.randrange(10_000)}")
        pipeline.execute()


def process(port, seed, threads, names, held_until, tickets, results):
    counts = Counts()
    clients = [
        threading.Thread(
            target=client, args=(port, seed * 1_000 + at, names, held_until, tickets, counts)
        )
        for at in range(threads)
    ]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    results.put((counts.counts, counts.faults))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--names", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=50, help="clients of each process")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    held_until = multiprocessing.Array("d", arguments.names, lock=False)
    tickets = multiprocessing.Value("q", arguments.count)
    results = multiprocessing.SimpleQueue()
    is_over = multiprocessing.Event()
    began = time.monotonic()
    loaders = [
        multiprocessing.Process(target=load, args=(arguments.port, at, is_over)) for at in range(2)
    ]
    takers = [
        multiprocessing.Process(
            target=process,
            args=(
                arguments.port,
                arguments.seed + at,
                arguments.threads,
                arguments.names,
                held_until,
                tickets,
                results,
            ),
        )
        for at in range(arguments.processes)
    ]
    for one in loaders + takers:
        one.start()
    counts, faults = {}, []
    for _ in takers:
        theirs, their_faults = results.get()
        counts = {name: counts.get(name, 0) + count for name, count in theirs.items()}
        faults += their_faults
    is_over.set()
    for one in loaders + takers:
        one.join()
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**counts, "faults": faults, "seconds": seconds, "seed": arguments.seed}))


if __name__ == "__main__":
    main()
