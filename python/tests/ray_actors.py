"""The actors of a sharded table, and waiting for what happens to them."""

import os
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


def node_of(actor):
    return ray.get(actor.describe.remote())["node_id"]
