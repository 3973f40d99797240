"""Four servers under load, of which one is killed and brought back: clients see misses but never a
wrong value, and never wait longer than the time-out."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import forerun
from forerun import aio
from forerun.errors import PartialError
from memcached import PATIENCE_S, Server, any_kind, started

TIMEOUT_MS = 1000
# How much longer than the time-out a call may take because the machine is busy.
GRACE_S = 2
KEYS = 200
WRITERS = 4
OPTIONS = {"timeout_ms": TIMEOUT_MS, "retry_interval_ms": 100, "on_failure": "miss"}


class Writer:
    """One of several that look up and replace values. Nobody else writes its keys."""

    def __init__(self, number):
        self.number = number
        self.turns = self.hits = self.misses = self.lost = 0
        self.longest_s = 0.0
        # The value of the last write that was answered, and those of writes that were not.
        self.answered, self.unanswered = {}, {}

    def keys(self):
        self.turns += 1
        return [f"{self.number}:{(self.turns * 37 + at * 7) % KEYS}" for at in range(100)]

    def new_values(self, keys):
        return [f"{key} at {self.turns}, ".encode() * (1 + self.turns % 30) for key in keys]

    def took(self, begin):
        self.longest_s = max(self.longest_s, time.monotonic() - begin)

    def check(self, keys, values):
        for key, value in zip(keys, values):
            if value is None:
                self.misses += 1
                continue
            self.hits += 1
            may_be = {self.answered.get(key), *self.unanswered.get(key, ())}
            assert value in may_be, f"{key}: {value[:60]!r}"

    def note(self, keys, values, lost):
        self.lost += len(lost)
        for at, (key, value) in enumerate(zip(keys, values)):
            if at in lost:
                self.unanswered.setdefault(key, set()).add(value)
            else:
                self.answered[key] = value


def until(what, holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def kill_and_bring_back(servers, writers, stats):
    """Kills one server after the other, and waits for what the writers see."""

    def more(count, by, what):
        before = count()
        until(what, lambda: count() >= before + by)

    def hits():
        return sum(writer.hits for writer in writers)

    def turns():
        return sum(writer.turns for writer in writers)

    def lost():
        return sum(writer.lost for writer in writers)

    more(hits, 1000, "the servers have values")
    for at in range(3):
        servers[at].kill()
        more(lost, 20, "writes to a dead server fail")
        more(hits, 200, "the others answer")
        servers[at] = Server(servers[at].kind, port=servers[at].port)
        until("it is used again", lambda: stats()["ejected_servers"] == 0)
        more(hits, 1000, "the servers have values")

        def is_calm():
            before = lost()
            more(turns, 3 * WRITERS, "the writers go on")
            return lost() == before

        until("every write is answered", is_calm)


def check_times(writers):
    longest_s = max(writer.longest_s for writer in writers)
    assert longest_s < TIMEOUT_MS / 1000 + GRACE_S, f"a call took {longest_s:.2f} s"


def test_threads_see_misses_but_no_wrong_value_and_no_stall():
    writers = [Writer(number) for number in range(WRITERS)]
    is_over = threading.Event()

    def work(writer, client):
        while not is_over.is_set():
            keys = writer.keys()
            begin = time.monotonic()
            values = client.multi_get(keys)
            writer.took(begin)
            writer.check(keys, values)
            keys, lost = keys[:20], ()
            values = writer.new_values(keys)
            begin = time.monotonic()
            try:
                client.set_many(keys, values)
            except PartialError as error:
                lost = error.positions
            writer.took(begin)
            writer.note(keys, values, lost)

    with (
        started(4, any_kind()) as servers,
        forerun.Client([server.address for server in servers], **OPTIONS) as client,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        done = [pool.submit(work, writer, client) for writer in writers]
        try:
            kill_and_bring_back(servers, writers, client.stats)
        finally:
            is_over.set()
        for each in done:
            each.result(PATIENCE_S)
    check_times(writers)


def test_tasks_see_misses_but_no_wrong_value_and_no_stall():
    writers = [Writer(number) for number in range(WRITERS)]

    async def work(writer, client, is_over):
        while not is_over.is_set():
            keys = writer.keys()
            begin = time.monotonic()
            values = await client.multi_get(keys)
            writer.took(begin)
            writer.check(keys, values)
            keys, lost = keys[:20], ()
            values = writer.new_values(keys)
            begin = time.monotonic()
            try:
                await client.set_many(keys, values)
            except PartialError as error:
                lost = error.positions
            writer.took(begin)
            writer.note(keys, values, lost)

    async def main(servers):
        is_over = threading.Event()
        async with aio.Client([server.address for server in servers], **OPTIONS) as client:
            tasks = [asyncio.create_task(work(writer, client, is_over)) for writer in writers]
            try:
                # In a thread, because it waits.
                await asyncio.to_thread(kill_and_bring_back, servers, writers, client.stats)
            finally:
                is_over.set()
                await asyncio.gather(*tasks)

    with started(4, any_kind()) as servers:
        asyncio.run(main(servers))
    check_times(writers)
