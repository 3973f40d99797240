"""The map of buckets to shards, and what a shard keeps of it on disk.

    key --hash--> bucket, 0..1024 --owners--> shard --generation, name--> actor

A key never changes its bucket; `crates/forerun-table/src/partition.rs` has the hash. A map changes
as a whole, and each change has a higher version. Every shard keeps the newest map that it was
given. So the map survives the end of the coordinator and of the cluster.

    shard-0002/rows          an ordinary store
    shard-0002/shard.json    a `ShardState`; written to shard.json.new, synced and renamed
    shard-0002.1/            the same shard, restored once: its generation is 1, so the disk of a
                             node that comes back later is not mistaken for the shard
    backups/map.json         `format`, `table` and the `map` as of the last backup, used if no node
                             has anything of the table

A shard that got buckets answers `Moved` to all older maps: they may name it by mistake.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun._files import sync_directory
from forerun.errors import CorruptionError, VersionError

BUCKETS = 1024
FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where a shard is."""

    # Higher each time the shard is restored from a backup.
    generation: int
    # The address of its node.
    node: str
    # Ray's ID of the node. It changes when the cluster starts again.
    node_id: str = ""


@dataclass(frozen=True)
class ShardMap:
    """Which shard has which buckets. Not changed after it was made."""

    version: int
    seed: int
    owners: NDArray[np.uint16]
    places: tuple[Place, ...]

    def owned_by(self, shard: int) -> NDArray[np.bool_]:
        owned: NDArray[np.bool_] = self.owners == shard
        return owned

    def moved(self, version: int, buckets: NDArray[np.bool_], shard: int) -> ShardMap:
        """A map in which a shard has these buckets."""
        owners = self.owners.copy()
        owners[buckets] = shard
        return replace(self, version=version, owners=owners)

    def placed(self, version: int, shard: int, place: Place) -> ShardMap:
        """A map in which a shard is elsewhere. It may be a new shard."""
        places = list(self.places)
        places[shard : shard + 1] = [place]
        return replace(self, version=version, places=tuple(places))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "seed": self.seed,
            "owners": base64.b64encode(self.owners.astype("<u2").tobytes()).decode(),
            "places": [asdict(place) for place in self.places],
        }

    @staticmethod
    def from_json(parts: dict[str, Any]) -> ShardMap:
        owners = np.frombuffer(base64.b64decode(parts["owners"]), "<u2").astype(np.uint16)
        places = tuple(
            Place(int(p["generation"]), str(p["node"]), str(p.get("node_id", "")))
            for p in parts["places"]
        )
        if len(owners) != BUCKETS or int(owners.max()) >= len(places):
            raise ValueError("a map of other buckets or shards")
        return ShardMap(int(parts["version"]), int(parts["seed"]), owners, places)


def even_owners(shards: int) -> NDArray[np.uint16]:
    """A range of buckets for each shard."""
    return (np.arange(BUCKETS) * shards // BUCKETS).astype(np.uint16)


def plan(owners: NDArray[np.uint16], shards: int) -> list[tuple[int, int, NDArray[np.bool_]]]:
    """The moves (from, to, buckets) that give each of `shards` shards its share. No bucket moves
    that need not."""
    counts = np.bincount(owners, minlength=max(shards, int(owners.max()) + 1))
    share = [BUCKETS // shards + (shard < BUCKETS % shards) for shard in range(shards)]
    share += [0] * (len(counts) - shards)
    excess = {shard: int(n) - share[shard] for shard, n in enumerate(counts) if n > share[shard]}
    moves: list[tuple[int, int, NDArray[np.bool_]]] = []
    for shard, count in enumerate(counts):
        lack = share[shard] - int(count)
        while lack > 0:
            source = max(excess, key=lambda shard: excess[shard])
            moving = min(lack, excess[source])
            free = np.flatnonzero(owners == source)
            for _, _, taken in moves:
                free = free[~taken[free]]
            buckets = np.zeros(BUCKETS, np.bool_)
            buckets[free[-moving:]] = True
            moves.append((source, shard, buckets))
            lack -= moving
            excess[source] -= moving
            if excess[source] == 0:
                del excess[source]
    return moves


@dataclass
class ShardState:
    """What a shard keeps on disk besides its rows."""

    table: str
    shard: int
    dim: int
    dtype: str
    # The highest coordinator that gave orders. An older one is refused.
    epoch: int = 0
    map: ShardMap | None = None
    # Buckets that are leaving with the map of this version.
    frozen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(BUCKETS, np.bool_))
    frozen_version: int = 0
    # Whether there may be rows of buckets that the shard does not own.
    needs_sweep: bool = False
    # Whether its rows are not yet restored from a backup.
    is_restoring: bool = False
    # How often it was restored, and from which backups.
    recoveries: list[dict[str, Any]] = field(default_factory=list)

    def save(self, directory: Path) -> None:
        """Replaces `shard.json`: after a crash there is the old one or the new one."""
        parts = {
            "format": FORMAT,
            "table": self.table,
            "shard": self.shard,
            "dim": self.dim,
            "dtype": self.dtype,
            "epoch": self.epoch,
            "map": None if self.map is None else self.map.to_json(),
            "frozen": np.flatnonzero(self.frozen).tolist(),
            "frozen_version": self.frozen_version,
            "needs_sweep": self.needs_sweep,
            "is_restoring": self.is_restoring,
            "recoveries": self.recoveries,
        }
        _replace(directory / "shard.json", parts)

    @staticmethod
    def load(directory: Path) -> ShardState | None:
        path = directory / "shard.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            parts = json.loads(text)
            version = int(parts["format"])
            if version > FORMAT:
                raise VersionError(f"{path} has format {version}: a newer release wrote it")
            frozen = np.zeros(BUCKETS, np.bool_)
            frozen[parts["frozen"]] = True
            return ShardState(
                table=str(parts["table"]),
                shard=int(parts["shard"]),
                dim=int(parts["dim"]),
                dtype=str(parts["dtype"]),
                epoch=int(parts["epoch"]),
                map=None if parts["map"] is None else ShardMap.from_json(parts["map"]),
                frozen=frozen,
                frozen_version=int(parts["frozen_version"]),
                needs_sweep=bool(parts["needs_sweep"]),
                is_restoring=bool(parts["is_restoring"]),
                recoveries=[dict(recovery) for recovery in parts.get("recoveries", [])],
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptionError(f"{path} is damaged: {error!r}") from error


def save_map(directory: Path, table: str, known: ShardMap) -> None:
    """Replaces `map.json`, the map beside a table's backups."""
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / "map.json", {"format": FORMAT, "table": table, "map": known.to_json()})


def load_map(directory: Path, table: str) -> ShardMap | None:
    path = directory / "map.json"
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptionError(f"{path} is damaged: {error!r}") from error
    try:
        if int(parts["format"]) > FORMAT:
            raise VersionError(f"{path} has format {parts['format']}: a newer release wrote it")
        if parts["table"] != table:
            raise VersionError(f"{path} belongs to table {parts['table']!r}, not {table!r}")
        return ShardMap.from_json(parts["map"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} is damaged: {error!r}") from error


def _replace(path: Path, parts: dict[str, Any]) -> None:
    """Replaces a file: after a crash there is the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8") as file:
        json.dump(parts, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_directory(path.parent)
