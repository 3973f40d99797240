"""A table in shards on the nodes of a Ray cluster.

`ShardedTable` has the calls of `forerun.Table`. Ray places the shards, restarts them and finds
them; keys and rows travel over the shards' own TCP ports.

    table.py          the handle; table_config.py: its arguments; datasets.py: ray.data
    directory.py      what a handle knows of the cluster; connected.py: whether Ray runs
    session.py        a call: frames to all shards at once; connection.py: frames to one
    session_pool.py   the sessions of a handle; given_up.py: the writes that they gave up
    coordinator.py    the actor that moves buckets and restores shards
    shard_watch.py    how shards are; unsaved_keys.py: how much a loss would cost
    shard_actors.py   where shards are; disk_scan.py: where their rows are
    shard_actor.py    the actor of a shard
    shard.py          a table and its buckets; bucket_lock.py: which requests it serves
    catch_up.py       when a copy of buckets has caught up with writes
    data_port.py      its TCP port; frames.py: the protocol
    shard_map.py      the map of buckets to shards
"""

from forerun.ray.session import LostWritesWarning
from forerun.ray.table import Move, ShardedTable

__all__ = ["LostWritesWarning", "Move", "ShardedTable"]
