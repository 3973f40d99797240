"""How a table and its shards are made, and whether another constructor asks for the same."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forerun
from forerun._forerun import _size_bytes
from forerun.errors import InvalidArgumentError
from forerun.ray.data_port import CONNECTIONS_MAX

_SIZES = frozenset({"memory", "host_bytes", "cache_bytes"})


@dataclass(frozen=True)
class TableConfig:
    """How a table is made."""

    name: str
    namespace: str
    dim: int
    dtype: str
    shards: int
    path: str
    bind: str
    backups: str | None
    nodes: tuple[str, ...] | None
    num_cpus: float
    connections_max: int = CONNECTIONS_MAX
    options: dict[str, Any] = field(default_factory=dict)

    def check_given(self, given: dict[str, Any], shards: int) -> None:
        """Raises an error for an argument that differs from that of the table, which has so many
        shards now. `None` is an argument that was not given."""
        for name, value in given.items():
            known = self._argument(name)
            # The number with which the table was made is right also after `reshard`.
            if name == "shards" and value == shards:
                continue
            if value is not None and _comparable(name, value) != _comparable(name, known):
                shown = shards if name == "shards" else known
                raise InvalidArgumentError(
                    f"table {self.name!r} runs already, with {name}={shown!r}, not {value!r}: "
                    "call ShardedTable.attach, or shut the table down first"
                )

    def _argument(self, name: str) -> Any:
        if name in self.__dataclass_fields__:
            return getattr(self, name)
        default = inspect.signature(forerun.Table).parameters[name].default
        return self.options.get(name, default)


@dataclass(frozen=True)
class ShardConfig:
    """How a shard is made. Ray keeps it for restarts."""

    table: str
    shard: int
    generation: int
    dim: int
    dtype: str
    path: str
    bind: str
    backups: str | None
    # Whether a missing directory is filled from the last backup.
    restores: bool
    connections_max: int = CONNECTIONS_MAX
    options: dict[str, Any] = field(default_factory=dict)

    def check_same(self, other: ShardConfig) -> None:
        """Raises an error if a coordinator would make this shard, which runs, in another way: its
        predecessor was ended, and someone made the table again with other arguments."""
        for name in self.__dataclass_fields__:
            known, given = getattr(self, name), getattr(other, name)
            if known != given:
                raise InvalidArgumentError(
                    f"shard {self.shard} of table {self.table!r} runs already, with "
                    f"{name}={known!r}, not {given!r}"
                )

    @property
    def directory(self) -> Path:
        name = f"shard-{self.shard:04}"
        return Path(self.path) / (f"{name}.{self.generation}" if self.generation else name)

    @property
    def backup_directory(self) -> Path:
        if self.backups is None:
            raise InvalidArgumentError("the table has no directory of backups: pass `backups`")
        return Path(self.backups) / f"shard-{self.shard:04}"


def _comparable(name: str, value: Any) -> Any:
    """Equal for values that mean the same."""
    if name in _SIZES and value is not None:
        return value if value == "auto" else _size_bytes(value)
    return frozenset(value) if name == "nodes" and value is not None else value
