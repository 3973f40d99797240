"""The actor of a shard: its process, its data port, and the orders of the coordinator."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

import forerun
from forerun.errors import Error
from forerun.ray import frames
from forerun.ray.bucket_lock import NO_KEYS
from forerun.ray.catch_up import CatchUp
from forerun.ray.connection import Connection, Endpoint
from forerun.ray.data_port import DataPort
from forerun.ray.frames import Op
from forerun.ray.shard import Shard, ShardSession
from forerun.ray.shard_map import ShardMap
from forerun.ray.table_config import ShardConfig

# How long the source of a copy may take for an answer.
COPY_S = 120.0
# Sessions that are kept for calls of the actor, and for how long. Only exports need them. An export
# keeps what it sees on the disk.
SESSIONS_MAX = 64
EXPORT_IDLE_S = 600.0
# File descriptors of a shard besides its connections: the store's files, Ray's.
OTHER_DESCRIPTORS = 1024


def node_address() -> str:
    """The address of this process's node."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _allow_descriptors(connections_max: int) -> None:
    """Raises the limit of this process, if it is too low for its connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class ShardActor:
    """A shard in a process of its own."""

    def __init__(self, config: ShardConfig) -> None:
        self._shard = Shard(config)
        _allow_descriptors(config.connections_max)
        bind = config.bind
        if bind == "node":
            bind = node_address()
        self._port = DataPort(self._shard, bind, config.connections_max)
        host, port = self._port.address
        if host in ("0.0.0.0", "::"):
            host = node_address()
        self._endpoint = Endpoint(
            host, port, self._port.token, config.generation, self._shard.row_bytes
        )
        self._sessions: dict[bytes, tuple[ShardSession, float]] = {}
        self._lock = threading.Lock()

    def endpoint(self) -> Endpoint:
        return self._endpoint

    def describe(self) -> dict[str, Any]:
        """What a coordinator asks a shard when it starts, and from time to time."""
        return {
            "config": self._shard.config,
            "state": self._shard.state,
            "restored": self._shard.restored,
            "token": self._port.token,
            "keys_written": self._shard.keys_written,
            "node": node_address(),
            "node_id": ray.get_runtime_context().get_node_id(),
        }

    def frame(self, data: bytes) -> bytes:
        """A request and its answer, without the data port."""
        head = frames.REQUEST.size
        request = frames.parse_request(data[:head], self._shard.row_bytes)
        # Copied, so that keys are aligned.
        body = np.frombuffer(data, np.uint8, offset=head).copy()
        if len(body) != request.body_bytes:
            raise frames.FrameError(f"a body of {len(body)} bytes, not {request.body_bytes}")
        is_export = request.op in (Op.EXPORT, Op.EXPORT_NEXT, Op.EXPORT_END)
        now = time.monotonic()
        with self._lock:
            # In the order of their last use. Their callers may have ended.
            for client, (_, used) in list(self._sessions.items()):
                if now - used > EXPORT_IDLE_S or len(self._sessions) > SESSIONS_MAX:
                    del self._sessions[client]
            kept = self._sessions.pop(request.client, None) if is_export else None
        session = self._shard.session() if kept is None else kept[0]
        answer = bytes(session.serve(request, body))
        if session.is_exporting:
            with self._lock:
                self._sessions[request.client] = session, time.monotonic()
        return answer

    def install(
        self, epoch: int, new: ShardMap, recoveries: list[dict[str, Any]] | None = None
    ) -> None:
        self._shard.install(epoch, new, recoveries)

    def begin_move(self, epoch: int, buckets: NDArray[np.bool_]) -> None:
        self._shard.begin_move(epoch, buckets)

    def freeze(
        self, epoch: int, buckets: NDArray[np.bool_], version: int, keys_max: int, drain_s: float
    ) -> bool:
        return self._shard.freeze(epoch, buckets, version, keys_max, drain_s)

    def thaw(self, epoch: int, version: int) -> None:
        self._shard.thaw(epoch, version)

    def sweep(self, epoch: int) -> int:
        return self._shard.sweep(epoch)

    def expect_foreign(self, epoch: int, current: ShardMap) -> int:
        return self._shard.expect_foreign(epoch, current)

    def copy(self, take: int, source: Endpoint, buckets: NDArray[np.bool_]) -> int:
        """Copies rows from another shard into this one. Returns their number."""
        copied = 0
        with Connection(source, time.monotonic() + COPY_S) as connection:
            granted = connection.export(buckets, frames.FRAME_KEYS_MAX)
            if not (granted == buckets).all():
                raise Error("the source does not own all buckets that it is to give away")
            for keys, rows in connection.exported():
                self._shard.take(take, keys, rows, NO_KEYS)
                copied += len(keys)
        self._shard.table.flush()
        return copied

    def catch_up(self, take: int, source: Endpoint) -> tuple[int, float]:
        """Copies what was written since, until little is left. Returns a number that replaces
        `take`, and how many keys a second were copied."""
        take, progress = self._shard.take_again(take), CatchUp()
        for counts in self._copied_changes(take, source):
            if progress.note(*counts):
                break
        # What was flushed in the source stays so.
        self._shard.table.flush()
        return take, progress.keys_per_s

    def copy_last(self, take: int, source: Endpoint) -> None:
        """Copies what is left, while nobody writes."""
        for counts in self._copied_changes(take, source):
            if not any(counts):
                break
        self._shard.table.flush()

    def _copied_changes(self, take: int, source: Endpoint) -> Iterator[tuple[int, int, int]]:
        """Copies what was written since, frame by frame. The numbers of keys: copied, left of the
        round, noted since it began."""
        with Connection(source, time.monotonic() + COPY_S) as connection:
            while True:
                keys, found, rows, left, noted = connection.changes()
                rows = rows.reshape(len(keys), self._shard.row_bytes)
                self._shard.take(
                    take, keys[found], np.ascontiguousarray(rows[found]), keys[~found]
                )
                yield len(keys), left, noted

    def backup(self, keep: int | None) -> dict[str, Any]:
        written = self._shard.keys_written
        self._shard.config.backup_directory.parent.mkdir(parents=True, exist_ok=True)
        with forerun.Backups(self._shard.config.backup_directory) as backups:
            backup = backups.create(self._shard.table)
            if keep is not None:
                backups.purge_old(keep)
        return {"backup": backup.number, "keys_written": written, "token": self._port.token}

    def close(self) -> None:
        self._port.close()
        self._shard.close()


remote_shard: Any = ray.remote(ShardActor)
