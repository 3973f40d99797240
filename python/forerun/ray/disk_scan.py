"""What the disks of the nodes have of a table that does not run.

    path/shard-0000/shard.json      map 7     a node: {(0, 0): state, (2, 1): state, ...}
    path/shard-0002.1/shard.json    map 9     newest map of all nodes: 9; it says which generation
                                              of each shard counts

Ray gives nodes new IDs when a cluster starts, so only the disks say where a shard is.
"""

from __future__ import annotations

import re
from pathlib import Path

from forerun.errors import Error
from forerun.ray.shard_map import ShardMap, ShardState

# By shard and generation. `None`: the state cannot be read.
Found = dict[tuple[int, int], ShardState | None]

_NAME = re.compile(r"shard-(\d{4,})(?:\.(\d+))?")


def shards_on_disk(path: str, table: str) -> Found:
    """The shards of a table in a directory of this node."""
    found: Found = {}
    for directory in Path(path).glob("shard-*"):
        name = _NAME.fullmatch(directory.name)
        if name is None:
            continue
        state: ShardState | None
        try:
            state = ShardState.load(directory)
        except (Error, OSError):
            state = None
        else:
            if state is None or state.table != table:
                continue
        found[int(name[1]), int(name[2] or 0)] = state
    return found


def newest_map(found: dict[str, Found]) -> ShardMap | None:
    """The map in force, of what the nodes have."""
    maps = [
        state.map
        for of_node in found.values()
        for state in of_node.values()
        if state is not None and state.map is not None
    ]
    return max(maps, key=lambda known: known.version, default=None)


def holders(found: dict[str, Found], shard: int, generation: int) -> list[str]:
    """The nodes that have a shard's rows. A directory without a map has none."""
    key = (shard, generation)
    has = {node: of_node[key] for node, of_node in found.items() if key in of_node}
    return [node for node, state in has.items() if state is None or state.map is not None]
