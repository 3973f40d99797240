"""A shard: a `Table` in a directory of its node, the buckets that it owns, and the operations of
its data port."""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import forerun
from forerun._forerun import _buckets
from forerun.errors import (
    ClosedError,
    Error,
    InvalidArgumentError,
    LockedError,
    NotFoundError,
    PartialError,
    VersionError,
)
from forerun.ray import frames
from forerun.ray.frames import FrameError, Op, Request, Status
from forerun.ray.bucket_lock import NO_KEYS, BucketLock, Changes
from forerun.ray.shard_map import BUCKETS, ShardMap, ShardState
from forerun.ray.table_config import ShardConfig

log = logging.getLogger("forerun.ray")

Buffer = NDArray[np.uint8]

# A client repeats a write within its time-out, which is far shorter.
CLIENT_RETENTION_S = 24 * 3600
# How often records of old clients are removed.
FORGET_EVERY_S = 3600.0
# How long an opening waits for the lock that a process that has just died still holds.
LOCK_S = 10.0

MOVE_HAS_ENDED = "the move that copies these rows has ended"

WRITE_NAMES = {Op.INSERT: "insert", Op.ASSIGN: "assign", Op.ADD_AT: "add_at", Op.ERASE: "erase"}


class Shard:
    """The rows of some buckets. Any number of threads may call it."""

    def __init__(self, config: ShardConfig) -> None:
        self.config = config
        self.lock = threading.Lock()
        self.state, self.restored = self._open_state()
        self.table = self._open_table()
        self.numpy_type = np.dtype(_numpy_name(config.dtype))
        self.row_bytes = self.table.dim * self.numpy_type.itemsize
        self.bucket_lock = BucketLock()
        self.changes: Changes | None = None
        self.keys_written = 0
        # The version of the map with which buckets came from another shard.
        self._gained = 0 if self.state.map is None else self.state.map.version
        self._taking = threading.Lock()
        self._take: int | None = None
        # Freezes up to this version have ended.
        self._thawed = 0
        self._is_closing = threading.Event()
        self._serve_map()
        threading.Thread(target=self._forget_clients, name="forerun-forget", daemon=True).start()

    def _open_state(self) -> tuple[ShardState, dict[str, Any] | None]:
        """The state on disk, or that of a new shard. A new shard owns nothing until it gets a map,
        so one whose directory has vanished does not pretend to be empty."""
        config = self.config
        state = ShardState.load(config.directory)
        if state is None:
            config.directory.mkdir(parents=True, exist_ok=True)
            (config.directory / "shard.json.new").unlink(missing_ok=True)
            if any(config.directory.iterdir()):
                raise InvalidArgumentError(
                    f"{config.directory} is not empty and holds no shard of a table"
                )
            state = ShardState(
                table=config.table,
                shard=config.shard,
                dim=config.dim,
                dtype=config.dtype,
                is_restoring=config.restores,
            )
            state.save(config.directory)
        mine = (config.table, config.shard, config.dim, config.dtype)
        if (state.table, state.shard, state.dim, state.dtype) != mine:
            raise VersionError(
                f"{config.directory} holds shard {state.shard} of table {state.table!r}, rows of "
                f"{state.dim} x {state.dtype}, not shard {config.shard} of {config.table!r}, rows "
                f"of {config.dim} x {config.dtype}"
            )
        restored = self._restore(state) if state.is_restoring else None
        return state, restored

    def _restore(self, state: ShardState) -> dict[str, Any]:
        """Fills the directory from the newest backup."""
        rows = self.config.directory / "rows"
        if rows.exists():
            # Of a restoration that did not end.
            shutil.rmtree(rows)
        with forerun.Backups(self.config.backup_directory, create="never") as backups:
            backup = backups.restore(rows)
        state.is_restoring = False
        state.needs_sweep = True
        state.save(self.config.directory)
        return {"backup": backup.number, "created_unix": backup.created_unix}

    def _open_table(self) -> forerun.Table:
        config, deadline = self.config, time.monotonic() + LOCK_S
        while True:
            try:
                return forerun.Table(
                    config.dim,
                    config.dtype,
                    path=config.directory / "rows",
                    writes="through",
                    **config.options,
                )
            except LockedError:
                # The kernel may still be ending the process that was here before.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _forget_clients(self) -> None:
        """Removes the records of clients that ended without a word, now and from time to time."""
        while True:
            try:
                self.table._forget_clients(CLIENT_RETENTION_S)
            except ClosedError:
                return
            except Error as error:
                log.warning("the records of old clients are not removed: %s", error)
            if self._is_closing.wait(FORGET_EVERY_S):
                return

    # Buckets.

    def _serve_map(self, timeout_s: float | None = None) -> bool:
        """Serves what the state says, and waits for the requests that run. Returns whether they
        have ended."""
        state = self.state
        owned = np.zeros(BUCKETS, np.bool_)
        if state.map is not None:
            owned = state.map.owned_by(self.config.shard)
        self.bucket_lock.set(owned & ~state.frozen, self._gained)
        return self.bucket_lock.wait(timeout_s)

    @property
    def seed(self) -> int:
        known = self.state.map
        return 0 if known is None else known.seed

    @property
    def known_version(self) -> int:
        """The version of the map that a refused client needs."""
        version = 0 if self.state.map is None else self.state.map.version
        return max(version, self.state.frozen_version)

    def check_epoch(self, epoch: int) -> None:
        """Refuses a coordinator that another has replaced. The caller holds the lock."""
        if epoch < self.state.epoch:
            raise Error(f"coordinator {epoch} was replaced by {self.state.epoch}")
        self.state = replace(self.state, epoch=epoch)

    def change(self, **fields: Any) -> None:
        """Changes the state on disk, then in memory. The caller holds the lock."""
        state = replace(self.state, **fields)
        state.save(self.config.directory)
        self.state = state

    def install(
        self, epoch: int, new: ShardMap, recoveries: list[dict[str, Any]] | None = None
    ) -> None:
        """Takes over a map, for good. It ends every move that this shard takes part in. A map older
        than the shard's, or than that of its move, changes nothing."""
        with self.lock:
            self.check_epoch(epoch)
            state = self.state
            known_version = 0 if state.map is None else state.map.version
            # A late order must not serve buckets that were frozen since it was given.
            if new.version < max(known_version, state.frozen_version):
                return
            with self._taking:
                self._take = None
            before = np.zeros(BUCKETS, np.bool_)
            if state.map is not None:
                before = state.map.owned_by(self.config.shard)
            owned = new.owned_by(self.config.shard)
            if state.map is not None and (owned & ~before).any():
                self._gained = new.version
            self.change(
                map=new,
                frozen=np.zeros(BUCKETS, np.bool_),
                frozen_version=0,
                needs_sweep=state.needs_sweep or bool((before & ~owned).any()),
                recoveries=state.recoveries if recoveries is None else recoveries,
            )
            self.changes = None
            self._serve_map()

    def freeze(
        self, epoch: int, buckets: NDArray[np.bool_], version: int, keys_max: int, drain_s: float
    ) -> bool:
        """Refuses requests of buckets that leave, until a map is installed, or until `thaw`.
        Requests that run have ended when this returns true. Returns false, and serves the buckets,
        if they run longer, or if more than `keys_max` keys are still to be copied."""
        with self.lock:
            self.check_epoch(epoch)
            known = 0 if self.state.map is None else self.state.map.version
            if version <= max(known, self._thawed):
                raise Error("the move that freezes these buckets has ended")
            if self._is_behind(keys_max):
                return False
            self.change(frozen=buckets, frozen_version=version)
            if self._serve_map(drain_s) and not self._is_behind(keys_max):
                return True
            self._thaw()
            return False

    def thaw(self, epoch: int, version: int) -> None:
        """Serves the buckets of a freeze again, and goes on noting their keys. A freeze that comes
        late is refused."""
        with self.lock:
            self.check_epoch(epoch)
            self._thawed = max(self._thawed, version)
            if self.state.frozen_version == version:
                self._thaw()

    def _is_behind(self, keys_max: int) -> bool:
        return self.changes is not None and self.changes.is_more_than(keys_max)

    def _thaw(self) -> None:
        self.change(frozen=np.zeros(BUCKETS, np.bool_), frozen_version=0)
        self._serve_map(0.0)

    def begin_move(self, epoch: int, buckets: NDArray[np.bool_]) -> None:
        """Notes the keys of these buckets that are written from now on."""
        with self.lock:
            self.check_epoch(epoch)
            self.changes = Changes(buckets)
            # Writes that run have not seen `changes`.
            self._serve_map()

    def sweep(self, epoch: int | None = None) -> int:
        """Erases the rows of buckets that the shard does not own. Returns their number."""
        with self.lock:
            if epoch is not None:
                self.check_epoch(epoch)
            if not self.state.needs_sweep or self.state.map is None:
                return 0
            owned, erased = self.state.map.owned_by(self.config.shard), 0
            for keys, _ in self.table.export(frames.FRAME_KEYS_MAX):
                foreign = keys[~owned[_buckets(keys, self.seed)]]
                if len(foreign):
                    self.table.erase(foreign)
                    erased += len(foreign)
            # The rows must not come back after a power failure.
            self.table.flush()
            self.change(needs_sweep=False)
            return erased

    def expect_foreign(self, epoch: int, current: ShardMap) -> int:
        """Prepares for rows of buckets that the shard does not own yet. There are none before.
        Returns a number for `take`: copies of earlier moves, which may still run after their
        coordinator has ended, take nothing more."""
        with self.lock:
            self.check_epoch(epoch)
            with self._taking:
                self._take = take = secrets.randbits(62)
            self.change(map=self.state.map or current, needs_sweep=True)
            self._serve_map()
        self.sweep(epoch)
        with self.lock:
            self.change(needs_sweep=True)
        return take

    def take_again(self, take: int) -> int:
        """A new number for `take`, in place of a copy's whose answers may be late."""
        with self._taking:
            if take != self._take:
                raise Error(MOVE_HAS_ENDED)
            self._take = secrets.randbits(62)
            return self._take

    def take(
        self, take: int, keys: NDArray[np.uint64], rows: Buffer, gone: NDArray[np.uint64]
    ) -> None:
        """Takes rows of buckets that come, and erases keys that are gone, unless the move has
        ended."""
        with self._taking:
            if take != self._take:
                raise Error(MOVE_HAS_ENDED)
            if len(keys):
                self.table.insert(keys, rows)
            if len(gone):
                self.table.erase(gone)

    # Rows.

    def rows_of_buckets(
        self, buckets: NDArray[np.bool_], batch: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[Any]]]:
        """The rows of some buckets as of now, batch by batch; a batch may be empty."""
        for keys, rows in self.table.export(batch):
            wanted = buckets[_buckets(keys, self.seed)]
            yield (keys, rows) if wanted.all() else (keys[wanted], rows[wanted])

    def count(self) -> tuple[int, NDArray[np.bool_]]:
        """The number of rows of the buckets that it owns, and these buckets."""
        with self.lock:
            state = self.state
            if state.map is None:
                return 0, np.zeros(BUCKETS, np.bool_)
            owned = state.map.owned_by(self.config.shard)
            if not state.needs_sweep:
                return len(self.table), owned
            batches = self.rows_of_buckets(owned, frames.FRAME_KEYS_MAX)
            # The rows are those of now, when no map is installed.
            rows = len(next(batches, (NO_KEYS,))[0])
        return rows + sum(len(keys) for keys, _ in batches), owned

    def stats(self) -> dict[str, Any]:
        version = 0 if self.state.map is None else self.state.map.version
        return {**self.table.stats(), "map_version": version, "keys_written": self.keys_written}

    def session(self) -> ShardSession:
        return ShardSession(self)

    def close(self) -> None:
        self._is_closing.set()
        self.table.close()


def _numpy_name(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


class ShardSession:
    """The operations of one connection."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._answer = np.empty(0, np.uint8)
        self._export: Iterator[tuple[NDArray[np.uint64], NDArray[Any]]] | None = None

    def close(self) -> None:
        self._export = None

    def release(self) -> None:
        self._answer = np.empty(0, np.uint8)

    @property
    def is_exporting(self) -> bool:
        return self._export is not None

    def serve(self, request: Request, body: Buffer) -> Buffer:
        op = Op(request.op)
        try:
            if op in frames.WITH_KEYS:
                keys = body[: 8 * request.keys].view("<u8")
                buckets = _buckets(keys, self.shard.seed)
                if op in frames.WRITES:
                    return self._write(request, op, keys, buckets, body[8 * request.keys :])
                return self._read(request, op, keys, buckets)
            return self._other(request, op, body)
        except PartialError as error:
            done = min(error.positions, default=0)
            return self._failed(request, error, self._flags_done(request, done))
        except Error as error:
            return self._failed(request, error, np.empty(0, np.uint8))

    def _room(self, request: Request, status: Status, count: int, body_bytes: int) -> Buffer:
        """Memory for an answer, with its head."""
        size = frames.ANSWER.size + body_bytes
        if size > len(self._answer):
            self._answer = np.empty(size, np.uint8)
        answer = self._answer[:size]
        head = frames.Answer(body_bytes, status, request.id, self.shard.known_version, count)
        answer[: frames.ANSWER.size] = np.frombuffer(head.pack(), np.uint8)
        return answer

    def _reply(
        self, request: Request, status: Status, count: int, *parts: Buffer | bytes
    ) -> Buffer:
        arrays = [
            np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part for part in parts
        ]
        answer = self._room(request, status, count, sum(map(len, arrays)))
        if arrays:
            np.concatenate(arrays, out=answer[frames.ANSWER.size :])
        return answer

    def _failed(self, request: Request, error: Exception, flags: Buffer) -> Buffer:
        name = type(error).__name__
        text = f"{name}: {error}".encode()[: frames.TEXT_BYTES_MAX]
        return self._reply(request, Status.FAILED, len(flags), flags, text)

    def _flags_done(self, request: Request, done: int) -> Buffer:
        applied = self.shard.table._applied(request.client)
        if applied is None or applied[0] != request.sequence:
            return np.empty(0, np.uint8)
        return applied[2][:done]

    def _read(
        self, request: Request, op: Op, keys: NDArray[np.uint64], buckets: NDArray[np.uint16]
    ) -> Buffer:
        shard, count = self.shard, request.keys
        generation = shard.bucket_lock.enter(buckets, map_version=request.map_version)
        if generation is None:
            return self._reply(request, Status.MOVED, 0)
        try:
            if op is Op.PREFETCH:
                shard.table.prefetch(keys)
                return self._reply(request, Status.OK, 0)
            if op is Op.CONTAINS:
                flags = shard.table.contains(keys).view(np.uint8)
                return self._reply(request, Status.OK, count, flags)
            rows_at = frames.padded(count)
            answer = self._room(request, Status.OK, count, rows_at + count * shard.row_bytes)
            body = answer[frames.ANSWER.size :]
            # Aligned, so that the table need not look at them as bytes.
            rows = body[rows_at:].view(shard.numpy_type)
            try:
                shard.table.find(keys, rows, body[:count].view(np.bool_))
            except PartialError as error:
                body[error.positions] = 2
                text = f"{type(error).__name__}: {error}".encode()[: frames.TEXT_BYTES_MAX]
                return self._reply(request, Status.OK, count, body.copy(), text)
            body[count:rows_at] = 0
            return answer
        finally:
            shard.bucket_lock.leave(generation)

    def _write(
        self,
        request: Request,
        op: Op,
        keys: NDArray[np.uint64],
        buckets: NDArray[np.uint16],
        rows: Buffer,
    ) -> Buffer:
        shard, client, sequence = self.shard, request.client, request.sequence
        if not any(client) or sequence == 0:
            raise FrameError("a write needs a client and a sequence")
        generation = shard.bucket_lock.enter(buckets, client, sequence, request.map_version)
        if generation is not None:
            changes = shard.changes
            try:
                given = rows if op in frames.WITH_ROWS else None
                flags = shard.table._write_once(client, sequence, WRITE_NAMES[op], keys, given)
            finally:
                if changes is not None:
                    changes.note(keys.copy(), buckets)
                shard.bucket_lock.leave(generation, client)
            shard.keys_written += len(keys)
            return self._reply(request, Status.OK, request.keys, flags)
        # It may have been applied before the buckets left.
        shard.bucket_lock.refuse(client, sequence)
        applied = shard.table._applied(client)
        if applied is None or applied[0] != sequence:
            return self._reply(request, Status.MOVED, 0)
        flags = applied[2]
        status = Status.OK if len(flags) == request.keys else Status.MOVED
        return self._reply(request, status, len(flags), flags)

    def _other(self, request: Request, op: Op, body: Buffer) -> Buffer:
        shard = self.shard
        match op:
            case Op.FLUSH:
                shard.table.flush()
                return self._reply(request, Status.OK, 0)
            case Op.COUNT:
                count, owned = shard.count()
                return self._reply(
                    request, Status.OK, 0, count.to_bytes(8, "little"), np.packbits(owned)
                )
            case Op.STATS:
                stats = json.dumps(shard.stats()).encode()
                return self._reply(request, Status.OK, 0, stats)
            case Op.APPLIED:
                applied = shard.table._applied(request.client)
                sequence, keys = (0, 0) if applied is None else (applied[0], applied[3])
                parts = sequence.to_bytes(8, "little") + keys.to_bytes(8, "little")
                return self._reply(request, Status.OK, 0, parts)
            case Op.FORGET:
                shard.bucket_lock.end(request.client)
                shard.table._forget_client(request.client)
                return self._reply(request, Status.OK, 0)
            case Op.FENCE:
                shard.bucket_lock.refuse(request.client, request.sequence)
                return self._reply(request, Status.OK, 0)
            case Op.EXPORT:
                return self._begin_export(request, body)
            case Op.EXPORT_NEXT:
                return self._next_of_export(request)
            case Op.EXPORT_END:
                self._export = None
                return self._reply(request, Status.OK, 0)
            case Op.CHANGES:
                return self._take_changes(request)
        raise FrameError(f"operation {op.name} has no keys")

    def _begin_export(self, request: Request, body: Buffer) -> Buffer:
        """Answers with the buckets that will be exported: of those asked for, the ones owned."""
        shard = self.shard
        asked = np.unpackbits(body).view(np.bool_)
        # No map is installed between the two, so the rows are those of these buckets.
        with shard.lock:
            if shard.state.map is None:
                raise NotFoundError("the shard has no map")
            buckets = asked & shard.state.map.owned_by(shard.config.shard)
            limit = frames.frame_keys(shard.row_bytes)
            self._export = shard.rows_of_buckets(buckets, min(max(request.argument, 1), limit))
            first = next(self._export, None)
        rest = self._export
        if first is not None:
            self._export = _chain(first, rest)
        return self._reply(request, Status.OK, 0, np.packbits(buckets))

    def _next_of_export(self, request: Request) -> Buffer:
        """Answers with keys and rows; with none at the end."""
        if self._export is None:
            raise NotFoundError("no export is open on this connection")
        for keys, rows in self._export:
            if len(keys):
                return self._keys_and_rows(request, keys, rows)
        self._export = None
        return self._reply(request, Status.OK, 0)

    def _keys_and_rows(
        self, request: Request, keys: NDArray[np.uint64], rows: NDArray[Any], *more: Buffer
    ) -> Buffer:
        as_bytes = np.ascontiguousarray(keys).view(np.uint8)
        rows_bytes = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        return self._reply(request, Status.OK, len(keys), as_bytes, *more, rows_bytes)

    def _take_changes(self, request: Request) -> Buffer:
        """Answers with keys that were written since the move began, flags, their rows as of now,
        and how many keys are left of the round, and were noted since."""
        shard, changes = self.shard, self.shard.changes
        if changes is None:
            raise NotFoundError("no buckets are leaving this shard")
        if changes.has_overflowed:
            raise Error(f"more than {Changes.KEYS_MAX} keys were written during the copy")
        keys, left, noted = changes.take(frames.frame_keys(shard.row_bytes), self)
        rows = np.zeros(len(keys) * shard.row_bytes, np.uint8)
        _, found = shard.table.find(keys, rows)
        flags = found.view(np.uint8)
        counts = np.array([left, noted], "<u8").view(np.uint8)
        return self._reply(
            request, Status.OK, len(keys), keys.view(np.uint8), flags, rows, counts
        )


def _chain(first: Any, rest: Any) -> Iterator[Any]:
    yield first
    yield from rest
