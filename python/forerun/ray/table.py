"""`ShardedTable`: a handle on the shards of a table."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import forerun
from forerun._forerun import _ShardBatch
from forerun.errors import (
    AlreadyExistsError,
    ClosedError,
    Error,
    ForkedError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    VersionError,
)
from forerun.ray import datasets, frames
from forerun.ray.connected import check_connected
from forerun.ray.connection import Connection
from forerun.ray.coordinator import coordinator_name, remote_coordinator
from forerun.ray.directory import Directory
from forerun.ray.frames import FrameError, Op
from forerun.ray.session import PAUSE_S, as_rows
from forerun.ray.session_pool import SessionPool
from forerun.ray.shard_map import BUCKETS, ShardMap
from forerun.ray.table_config import TableConfig

if TYPE_CHECKING:
    from typing_extensions import Self

    from forerun._arguments import Array, Bools, Create, Rows, StrPath

TIMEOUT_MS = 30_000
TIMEOUT_MS_MAX = 3_600_000
DEFAULTS = {"shards": 1, "backups": None, "nodes": None, "bind": "127.0.0.1", "num_cpus": 0}
_WITH_RESULTS = frozenset({Op.FIND, Op.CONTAINS, Op.ASSIGN, Op.ADD_AT})


class Move(TypedDict):
    """The report of a move of buckets."""

    source: int
    target: int
    buckets: int
    rows: int
    # From the order to freeze until the source has the new map.
    pause_ms: float
    seconds: float


class ShardedTable:
    """A table of rows in shards on the nodes of a Ray cluster. The calls are those of
    `forerun.Table`.

    `dim`, `dtype`: as for a table. `name`: the table's name in the cluster; a second constructor
    with the same name returns a handle on the same table. `path`: a directory on each node's own
    disk. `shards`: their number, if the table is new. `backups`: a directory that every node can
    reach, for `backup` and for restoring the shards of a lost node. `nodes`: the IDs or addresses
    of the nodes that hold shards, by default all. `bind`: the address of the shards' data ports;
    "node" is the address of the node in the cluster. `num_cpus`: what Ray reserves for a shard.
    `timeout_ms`: how long a call waits for a shard that is away. `transport`: "tcp", or "actor" for
    rows as Ray objects, which is slower. `create`: as for a table. Other keyword arguments are
    those of `forerun.Table`, for each shard.
    """

    def __init__(
        self,
        dim: int,
        dtype: Any = "float32",
        *,
        name: str = "table",
        path: StrPath,
        shards: int | None = None,
        backups: StrPath | None = None,
        namespace: str = "forerun",
        nodes: list[str] | None = None,
        bind: str | None = None,
        num_cpus: float | None = None,
        connections_max: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
        transport: Literal["tcp", "actor"] = "tcp",
        create: Create = "if_missing",
        **options: Any,
    ) -> None:
        check_connected()
        if shards is not None and not 1 <= shards <= BUCKETS:
            raise InvalidArgumentError(f"`shards` must be from 1 to {BUCKETS}, not {shards}")
        if connections_max is not None and connections_max < 1:
            raise InvalidArgumentError("`connections_max` must be at least 1")
        refused = options.keys() & {"writes", "read_only", "when_full"}
        if options.get("evict_strategy") == "customized":
            refused.add("evict_strategy")
        if refused:
            raise InvalidArgumentError(f"a sharded table takes no {', '.join(sorted(refused))}")
        if options.get("memory") == "auto":
            raise InvalidArgumentError(
                "each shard would take half of its node's memory: give each a size by `memory`"
            )
        if "/" in name or not name:
            raise InvalidArgumentError(f"`name` must be a word without a slash, not {name!r}")
        # A bad argument is an error here, and not in each shard.
        sample = {k: v for k, v in options.items() if k not in ("device", "device_capacity")}
        with (
            tempfile.TemporaryDirectory() as directory,
            forerun.Table(dim, dtype, path=Path(directory) / "rows", **sample) as table,
        ):
            dtype = table.dtype
        # Those that a table which runs already must have been made with.
        given: dict[str, Any] = {
            "path": str(Path(path).absolute()),
            "shards": shards,
            "backups": None if backups is None else str(Path(backups).absolute()),
            "nodes": None if nodes is None else tuple(nodes),
            "bind": bind,
            "num_cpus": num_cpus,
            "connections_max": connections_max,
        }
        arguments: dict[str, Any] = dict(DEFAULTS)
        arguments |= {name: value for name, value in given.items() if value is not None}
        config = TableConfig(
            name=name,
            namespace=namespace,
            dim=dim,
            dtype=dtype,
            options=options,
            **arguments,
        )
        self._create(config, create)
        self._attach(name, namespace, timeout_ms, transport)
        known = self._directory.config
        if (known.dim, known.dtype) != (dim, dtype):
            raise VersionError(
                f"table {name!r} has rows of {known.dim} x {known.dtype}, not of {dim} x {dtype}"
            )
        known.check_given({**given, **options}, self.shards)

    @staticmethod
    def _create(config: TableConfig, create: Create) -> None:
        try:
            ray.get_actor(coordinator_name(config.name), namespace=config.namespace)
        except ValueError:
            if create in (False, "never"):
                raise NotFoundError(f"no table {config.name!r} runs in the cluster") from None
        else:
            if create == "must_be_new":
                raise AlreadyExistsError(f"table {config.name!r} runs in the cluster already")
            return
        coordinator = remote_coordinator.options(
            name=coordinator_name(config.name),
            namespace=config.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=64,
            num_cpus=0,
            # Near the one who made the table. It needs no disk.
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            ),
        ).remote(config)
        try:
            ray.get(coordinator.describe.remote())
        except ray.exceptions.RayActorError as error:
            ray.kill(coordinator, no_restart=True)
            raise ServerError(f"table {config.name!r} cannot be started: {error}") from error

    @classmethod
    def attach(
        cls,
        name: str = "table",
        *,
        namespace: str = "forerun",
        timeout_ms: int = TIMEOUT_MS,
        transport: Literal["tcp", "actor"] = "tcp",
    ) -> ShardedTable:
        """A handle on a table that runs in the cluster."""
        check_connected()
        table = cls.__new__(cls)
        try:
            table._attach(name, namespace, timeout_ms, transport)
        except ValueError as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise NotFoundError(f"no table {name!r} runs in the cluster") from None
        return table

    def _attach(self, name: str, namespace: str, timeout_ms: int, transport: str) -> None:
        if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidArgumentError(
                f"`timeout_ms` must be from 1 to {TIMEOUT_MS_MAX}, not {timeout_ms}"
            )
        if transport not in ("tcp", "actor"):
            raise InvalidArgumentError(f"`transport` must be tcp or actor, not {transport!r}")
        self._timeout_ms = timeout_ms
        self._process = os.getpid()
        self._directory = Directory(name, namespace, transport)
        self._sessions = SessionPool(self._directory)

    def __reduce__(self) -> tuple[Any, ...]:
        directory = self._directory
        args = (directory.name, directory.namespace, self._timeout_ms, directory.transport)
        return _attached, args

    # Properties.

    @property
    def name(self) -> str:
        """The table's name."""
        return self._directory.name

    @property
    def dim(self) -> int:
        """The elements in a row."""
        return self._directory.config.dim

    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
        return self._directory.config.dtype

    @property
    def shards(self) -> int:
        """The number of shards, as this handle knows it."""
        return len(np.unique(self._directory.map.owners))

    @property
    def map_version(self) -> int:
        """The version of the map of buckets to shards, as this handle knows it."""
        return self._directory.map.version

    @property
    def closed(self) -> bool:
        """Whether the handle is closed."""
        return self._sessions.is_closed

    # Calls with keys.

    def _call(self, op: Op, batch: _ShardBatch) -> tuple[Any, Any]:
        """Returns rows and flags, of operations that have them."""
        deadline = time.monotonic() + self._timeout_ms / 1e3
        try:
            with self._sessions.session() as session:
                session.run(op, batch, deadline)
            return batch.results() if op in _WITH_RESULTS else (None, None)
        finally:
            # An exception keeps the frames that it went through. They must not keep the arrays of
            # the call, which the handler may use for another one.
            del batch

    def _batch(self, keys: Any, **arrays: Any) -> _ShardBatch:
        self._check_open()
        return _ShardBatch(keys, self.dim, self.dtype, **arrays)

    def find(self, keys: Any, out: Any = None, found: Any = None) -> tuple[Any, Any]:
        """Looks up keys. Returns the rows, in the shape of the keys with one more dimension, and
        which keys were found. Rows of missing keys are zero; in `out` they keep their content."""
        return self._call(Op.FIND, self._batch(keys, out=out, found=found, fills=True))

    def contains(self, keys: Any) -> Bools:
        """Returns which keys have a row."""
        flags: Bools = self._call(Op.CONTAINS, self._batch(keys))[1]
        return flags

    def insert(self, keys: Any, rows: Rows) -> None:
        """Writes rows and replaces any former rows of their keys. If a key repeats, its last row
        counts."""
        self._call(Op.INSERT, self._batch(keys, rows=rows))

    def assign(self, keys: Any, rows: Rows) -> Bools:
        """Replaces the rows of keys that exist. Returns which keys exist."""
        flags: Bools = self._call(Op.ASSIGN, self._batch(keys, rows=rows))[1]
        return flags

    def add_at(self, keys: Any, rows: Rows) -> Bools:
        """Adds to the rows of keys that exist, element by element, once. Returns which keys
        exist."""
        flags: Bools = self._call(Op.ADD_AT, self._batch(keys, rows=rows))[1]
        return flags

    def erase(self, keys: Any) -> None:
        """Deletes keys. A missing key is not an error."""
        self._call(Op.ERASE, self._batch(keys))

    def prefetch(self, keys: Any) -> None:
        """Promotes rows ahead of their use, in the background of their shards."""
        self._call(Op.PREFETCH, self._batch(keys))

    def __contains__(self, key: int) -> bool:
        return bool(self.contains(key))

    def get(self, key: int, default: Any = None) -> Any:
        """Returns the row of a key, or `default` if the key is missing."""
        rows, found = self.find(key)
        return rows if found else default

    def __getitem__(self, key: int) -> Array:
        rows, found = self.find(key)
        if not found:
            raise KeyError(key)
        row: Array = rows
        return row

    def __setitem__(self, key: int, row: Rows) -> None:
        self.insert(key, row)

    def __delitem__(self, key: int) -> None:
        if key not in self:
            raise KeyError(key)
        self.erase(key)

    # Calls without keys.

    def _ask_all(self, op: Op) -> list[bytes]:
        # Others may have added shards.
        self._refresh()
        deadline = time.monotonic() + self._timeout_ms / 1e3
        with self._sessions.session() as session:
            return session.ask_all(op, deadline)

    def flush(self) -> None:
        """Makes all written rows durable, on all shards."""
        self._ask_all(Op.FLUSH)

    def __len__(self) -> int:
        deadline = time.monotonic() + self._timeout_ms / 1e3
        while True:
            answers = self._ask_all(Op.COUNT)
            counted = [np.unpackbits(np.frombuffer(a[8:], np.uint8)) for a in answers]
            if (np.sum(counted, axis=0) == 1).all():
                return sum(int.from_bytes(answer[:8], "little") for answer in answers)
            # Buckets are between two shards.
            if time.monotonic() >= deadline:
                raise ServerError("the rows could not be counted in time: buckets are moving")
            time.sleep(PAUSE_S)

    def __bool__(self) -> bool:
        return len(self) > 0

    def stats(self) -> dict[str, Any]:
        """Returns a dict: `shards`, the statistics of each shard's table; `map_version`;
        `lost_writes` and `lost_keys`, what handles know to be lost with restored shards; and
        `recoveries`, the shards that were restored."""
        deadline = time.monotonic() + self._timeout_ms / 1e3
        while True:
            each = [json.loads(answer) for answer in self._ask_all(Op.STATS)]
            general = self._directory.stats(timeout=self._timeout_ms / 1e3)
            # If a shard was restored meanwhile, what is lost with it is not known before it is
            # asked.
            is_current = general["map_version"] <= self.map_version
            if is_current or time.monotonic() >= deadline:
                return {**general, "shards": each}

    def _refresh(self) -> None:
        self._check_open()
        known: ShardMap = self._directory.ask("current_map", timeout=self._timeout_ms / 1e3)
        self._directory.take(known)

    def export(self, batch: int = 8192) -> Iterator[tuple[NDArray[np.uint64], Array]]:
        """Iterates over all rows, as pairs of arrays: up to `batch` keys, and their rows. Each
        shard's rows are as of the call; rows that move between shards meanwhile appear once."""
        return self._export_of(np.ones(BUCKETS, np.bool_), batch)

    def _export_of(
        self, buckets: NDArray[np.bool_], batch: int
    ) -> Iterator[tuple[NDArray[np.uint64], Array]]:
        """Iterates over the rows of some buckets."""
        datasets.check_batch(batch)
        self._check_open()
        client = os.urandom(frames.CLIENT_BYTES)
        return self._exported(self._begin_export(buckets, batch, client), client)

    def _begin_export(
        self, buckets: NDArray[np.bool_], batch: int, client: bytes
    ) -> list[Connection]:
        """Connections to shards, whose exports together have each of these buckets once."""
        deadline = time.monotonic() + self._timeout_ms / 1e3
        pause, reason = PAUSE_S, "buckets are moving"
        while True:
            opened: list[Connection] = []
            try:
                self._refresh()
                owned = np.zeros(BUCKETS, np.int64)
                for shard in np.unique(self._directory.map.owners[buckets]).tolist():
                    endpoint, actor = self._directory.endpoint(shard, deadline)
                    wire = self._directory.wire(actor)
                    opened.append(Connection(endpoint, deadline, wire))
                    owned += opened[-1].export(buckets, min(batch, 1 << 31), client)
                if (owned == buckets).all():
                    return opened
            except (OSError, FrameError, ray.exceptions.RayError) as error:
                # A `NotFoundError` is an `OSError`: a shard without a map is restored soon.
                reason = repr(error)
            except BaseException:
                _close(opened, client)
                raise
            _close(opened, client)
            if time.monotonic() >= deadline:
                raise ServerError(f"no export could begin in time: {reason}")
            time.sleep(pause)

    def _exported(
        self, connections: list[Connection], client: bytes
    ) -> Iterator[tuple[NDArray[np.uint64], Array]]:
        try:
            for connection in connections:
                try:
                    for keys, rows in connection.exported(client, self._timeout_ms / 1e3):
                        yield keys, as_rows(rows, self.dim, self.dtype)
                except (OSError, FrameError) as error:
                    if isinstance(error, Error):
                        raise
                    raise ServerError(f"a shard ended during an export: {error!r}") from error
        finally:
            _close(connections, client)

    def items(self) -> Iterator[tuple[int, Array]]:
        """Iterates over `(key, row)` pairs."""
        for keys, rows in self.export():
            yield from zip(keys.tolist(), rows)

    def keys(self) -> Iterator[int]:
        """Iterates over the keys."""
        for keys, _ in self.export():
            yield from keys.tolist()

    def __iter__(self) -> Iterator[int]:
        return self.keys()

    def values(self) -> Iterator[Array]:
        """Iterates over the rows."""
        for _, rows in self.export():
            yield from rows

    # Datasets.

    def load(self, dataset: Any, *, key: str, row: str, batch: int = 8192) -> int:
        """Inserts the rows of a `ray.data.Dataset`: `key` is its column of integers, and `row` that
        of rows, each an array or a list of `dim` numbers. The tasks of the dataset write, on all
        nodes at once. Returns the number of rows. If a task is repeated, its rows are inserted
        again."""
        self._check_open()
        return datasets.load(self, dataset, key, row, batch)

    def to_dataset(self, *, key: str = "key", row: str = "row", batch: int = 8192) -> Any:
        """The rows as a `ray.data.Dataset` with the columns `key` and `row`. A task for each shard
        reads them when the dataset is used, up to `batch` at a time. Each shard's rows are as of
        the beginning of its task; rows that move meanwhile appear once."""
        self._refresh()
        return datasets.dump(self, self._directory.map.owners, key, row, batch)

    # Administration.

    def backup(self, keep: int = 3) -> list[int]:
        """Backs up every shard to the table's `backups`, and keeps the `keep` newest backups of
        each. Returns their numbers."""
        self._check_open()
        numbers: list[int] = self._directory.ask("backup", keep, timeout=24 * 3600)
        return numbers

    def reshard(self, shards: int) -> list[Move]:
        """Moves buckets until each of `shards` shards has its share, while calls go on. Shards are
        added as needed; those that are left without buckets stay. Returns a report for each
        move."""
        self._check_open()
        moves: list[Move] = self._directory.ask("reshard", shards, timeout=24 * 3600)
        self._refresh()
        return moves

    def shutdown(self) -> None:
        """Closes the handle, and ends the table's actors in the cluster. The rows stay on disk:
        the constructor with the same `name` and `path` opens them again."""
        check_connected()
        if not self._sessions.is_closed:
            self.close()
        self._directory.ask("shutdown", timeout=600)
        ray.kill(self._directory.coordinator, no_restart=True)

    def close(self) -> None:
        """Closes the handle. The table goes on."""
        if os.getpid() != self._process:
            return
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"forerun.ray.ShardedTable(name={self.name!r}, dim={self.dim}, dtype={self.dtype!r}, "
            f"shards={self.shards})"
        )

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this handle belongs to the parent process: make one with ShardedTable.attach"
            )
        if self._sessions.is_closed:
            raise ClosedError("the handle is closed")
        check_connected()


def _attached(name: str, namespace: str, timeout_ms: int, transport: Any) -> ShardedTable:
    return ShardedTable.attach(
        name, namespace=namespace, timeout_ms=timeout_ms, transport=transport
    )


def _close(connections: list[Connection], client: bytes) -> None:
    """Ends exports, and closes their connections."""
    for connection in connections:
        connection.end_export(client)
        connection.close()
