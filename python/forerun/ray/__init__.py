"""A table in shards on the nodes of a Ray cluster.

`ShardedTable` has the calls of `forerun.Table`. Ray places the shards, restarts them and finds
them; keys and rows travel over the shards' own TCP ports.

    table.py        the handle           session.py, connection.py   a call: frames to all shards at once
    actors.py       the actors: a shard, and the coordinator that places shards and moves buckets
    shard.py        a table and its buckets; gate.py: which requests it serves
    data_port.py    its TCP port; frames.py: the protocol
    shard_map.py    the map of buckets to shards
"""

from forerun.ray.session import LostWritesWarning
from forerun.ray.table import Move, ShardedTable

__all__ = ["LostWritesWarning", "Move", "ShardedTable"]
