"""Readers and writers of a sharded table, which check what they read."""

import threading
import time

import numpy as np
from ray_actors import PATIENCE_S


class Load:
    """Threads that read and write a table until they shall stop.

    Each writer has its own keys and adds 1 to their rows, so a row must be between the number of
    acknowledged additions and that of attempted ones; and equal to it if no call failed.
    """

    def __init__(self, table, writers=2, readers=1, keys=4000, dim=4):
        self.table, self.keys = table, np.arange(keys * writers).reshape(writers, keys)
        table.insert(self.keys, np.zeros((writers, keys, dim), np.int64))
        self.added = [0] * writers
        self.reads, self.failures, self.longest_s = 0, [], 0.0
        self.dim, self.stop = dim, threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(call, number))
            for call, count in ((self._write, writers), (self._read, readers))
            for number in range(count)
        ]

    def _run(self, call, number):
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                call(number)
            except BaseException as error:
                self.failures.append(error)
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _write(self, number):
        keys = self.keys[number]
        found = self.table.add_at(keys, np.ones((len(keys), self.dim), np.int64))
        assert found.all()
        self.added[number] += 1

    def _read(self, number):
        before = list(self.added)
        rows, found = self.table.find(self.keys)
        assert found.all(), "a row is missing"
        assert (rows == rows[..., :1]).all(), "a torn row"
        for writer, least in enumerate(before):
            # One addition may be under way.
            assert rows[writer].min() >= least, "an addition is missing"
            assert rows[writer].max() <= self.added[writer] + 1, "an addition was applied twice"
        self.reads += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def wait(self, more, seconds=PATIENCE_S):
        """Waits until every writer and the readers have got on."""
        added, reads = [n + more for n in self.added], self.reads + more
        deadline = time.monotonic() + seconds
        while any(now < then for now, then in zip(self.added, added)) or self.reads < reads:
            assert time.monotonic() < deadline, "no progress"
            assert not self.failures, self.failures
            time.sleep(0.01)

    def check(self):
        assert not self.failures, self.failures
        rows, found = self.table.find(self.keys)
        assert found.all()
        for writer, count in enumerate(self.added):
            assert (rows[writer] == count).all()
