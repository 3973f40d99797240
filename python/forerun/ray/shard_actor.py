"""The actor of a shard: its process, its data port, and the orders of the coordinator."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

import forerun
from forerun.errors import Error
from forerun.ray import frames
from forerun.ray.connection import Connection, Endpoint
from forerun.ray.data_port import DataPort
from forerun.ray.frames import Op
from forerun.ray.shard import Shard, ShardConfig, ShardSession
from forerun.ray.shard_map import ShardMap

# How long the source of a copy may take for an answer.
COPY_S = 120.0
# Copies catch up until so few keys are left, or so many rounds are over; the rest is copied while
# the buckets are frozen.
CATCH_UP_KEYS = 512
CATCH_UP_ROUNDS = 50
# Sessions that are kept for calls of the actor. Only exports need them.
SESSIONS_MAX = 64


def node_address() -> str:
    """The address of this process's node."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class ShardActor:
    """A shard in a process of its own."""

    def __init__(self, config: ShardConfig) -> None:
        self._shard = Shard(config)
        bind = config.bind
        if bind == "node":
            bind = node_address()
        self._port = DataPort(self._shard, bind)
        host, port = self._port.address
        if host in ("0.0.0.0", "::"):
            host = node_address()
        self._endpoint = Endpoint(
            host, port, self._port.token, config.generation, self._shard.row_bytes
        )
        self._sessions: dict[bytes, ShardSession] = {}
        self._lock = threading.Lock()

    def endpoint(self) -> Endpoint:
        return self._endpoint

    def describe(self) -> dict[str, Any]:
        """What a coordinator asks a shard when it starts, and from time to time."""
        return {
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
        with self._lock:
            session = self._sessions.pop(request.client, None) or self._shard.session()
        answer = bytes(session.serve(request, body))
        with self._lock:
            # Only an export is kept for the next call.
            if request.op in (Op.EXPORT, Op.EXPORT_NEXT):
                self._sessions[request.client] = session
                while len(self._sessions) > SESSIONS_MAX:
                    self._sessions.pop(next(iter(self._sessions)))
        return answer

    def install(self, epoch: int, new: ShardMap) -> None:
        self._shard.install(epoch, new)

    def begin_move(self, epoch: int, buckets: NDArray[np.bool_]) -> None:
        self._shard.begin_move(epoch, buckets)

    def freeze(self, epoch: int, buckets: NDArray[np.bool_], version: int) -> None:
        self._shard.freeze(epoch, buckets, version)

    def sweep(self, epoch: int) -> int:
        return self._shard.sweep(epoch)

    def expect_foreign(self, epoch: int, current: ShardMap) -> None:
        self._shard.expect_foreign(epoch, current)

    def copy(self, source: Endpoint, buckets: NDArray[np.bool_]) -> int:
        """Copies rows from another shard into this one. Returns their number."""
        copied = 0
        with Connection(source, time.monotonic() + COPY_S) as connection:
            granted = connection.export(buckets, frames.FRAME_KEYS_MAX)
            if not (granted == buckets).all():
                raise Error("the source does not own all buckets that it is to give away")
            for keys, rows in connection.exported():
                self._shard.table.insert(keys, rows)
                copied += len(keys)
        self._shard.table.flush()
        return copied

    def catch_up(self, source: Endpoint, is_last: bool) -> int:
        """Copies what was written since. Returns the number of keys that are left."""
        with Connection(source, time.monotonic() + COPY_S) as connection:
            for _ in range(CATCH_UP_ROUNDS if not is_last else 1 << 30):
                keys, found, rows, left = connection.changes()
                rows = rows.reshape(len(keys), self._shard.row_bytes)
                if found.any():
                    self._shard.table.insert(keys[found], np.ascontiguousarray(rows[found]))
                if not found.all():
                    self._shard.table.erase(keys[~found])
                if len(keys) == 0 if is_last else left + len(keys) <= CATCH_UP_KEYS:
                    break
        # What was flushed in the source stays so.
        self._shard.table.flush()
        return left

    def backup(self, keep: int) -> dict[str, Any]:
        written = self._shard.keys_written
        self._shard.config.backup_directory.parent.mkdir(parents=True, exist_ok=True)
        with forerun.Backups(self._shard.config.backup_directory) as backups:
            backup = backups.create(self._shard.table)
            backups.purge_old(keep)
        return {"backup": backup.number, "keys_written": written}

    def close(self) -> None:
        self._port.close()
        self._shard.close()


remote_shard: Any = ray.remote(ShardActor)
