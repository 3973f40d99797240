"""The actors of a sharded table, and waiting for what happens to them."""

import contextlib
import os
import pathlib
import signal
import time

import ray

# On a very busy machine, the start of a process takes a minute.
PATIENCE_S = 240


def shard_actors(table):
    """The actors of a table's shards, by number."""
    directory = table._directory
    shards = range(len(directory.map.places))
    deadline = time.monotonic() + PATIENCE_S
    return {shard: directory.endpoint(shard, deadline)[1] for shard in shards}


def until(happens, seconds=PATIENCE_S):
    """Waits until something happens."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def process_of(actor):
    """The process of an actor."""
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


@contextlib.contextmanager
def stopped(process):
    """A process that hangs meanwhile. The others see a peer that is alive and does not answer."""
    os.kill(process, signal.SIGSTOP)
    try:
        # Its threads run on until the signal has reached each of them.
        until(lambda: is_stopped(process))
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def is_stopped(process):
    """Whether all threads of a process have stopped."""
    for stat in pathlib.Path(f"/proc/{process}/task").glob("*/stat"):
        # The state follows the name of the program, which may contain parentheses.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(") ")[2][0] != "T":
                return False
    return True


def node_of(actor):
    return ray.get(actor.describe.remote())["node_id"]
