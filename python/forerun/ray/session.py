"""One call at a time of a sharded table: frames to all shards at once, answers as they come.

    batch ──split──> a queue of frames for each shard
      send the first frame of every queue
      a shard answers ──> scatter ──> send its next frame
      Moved           the frame's keys are split again, by the newer map
      no answer       a read is asked again; a write is sent again to the same shard, unchanged

A write is never sent to another shard before the first one has said that it did not apply it and
will not. So it is applied once, although its buckets move and processes die.
"""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray

from forerun._forerun import _ShardBatch
from forerun.errors import Error, PartialError, ServerError
from forerun.ray import frames
from forerun.ray.connected import DisconnectedError
from forerun.ray.connection import Connection, Endpoint, error_of, wait_for_answers
from forerun.ray.frames import FrameError, Op, Status
from forerun.ray.given_up import GivenUpWrites
from forerun.ray.shard_map import ShardMap

if TYPE_CHECKING:
    from forerun.ray.directory import Directory

# An answer that has arrived is taken, although another shard has used up the time.
GRACE_S = 0.25
# Between attempts to reach a shard.
PAUSE_S = 0.02
PAUSE_MAX_S = 0.5
# An attempt to reach one shard must not keep the answers of the others waiting for long. Where
# everything is slow, each attempt gets twice the time of the one before.
CONNECT_S = 2.0
CONNECT_MAX_S = 16.0

_FAILURES = (OSError, FrameError, ray.exceptions.RayError)


class LostWritesWarning(UserWarning):
    """A shard was restored from a backup without writes that this process knows were
    acknowledged."""


@dataclass
class Frame:
    """Some keys of a call, for one shard."""

    keys: NDArray[np.uint64]
    positions: NDArray[np.uint64]
    # Of a write. It stays the same however often the frame is sent.
    sequence: int = 0
    rows: NDArray[np.uint8] | None = None


@dataclass
class Link:
    """A session's way to one shard."""

    shard: int
    connection: Connection | None = None
    generation: int = -1
    # The last write.
    sequence: int = 0
    # A write that was sent and may still be applied.
    in_doubt: int = 0
    # Of the writes that the shard acknowledged: the last one, and their keys.
    acknowledged: int = 0
    keys: int = 0
    # Later writes, and some earlier ones, that the shard did not acknowledge, as ranges: the writes
    # of an outage take one.
    unacknowledged: list[range] = field(default_factory=list)
    pause_s: float = PAUSE_S
    retry_at: float = 0.0
    connect_s: float = field(default_factory=lambda: CONNECT_S)
    # Why there is no connection. Not the exception: its traceback would keep the call's arrays.
    error: str = ""

    def give_up(self, sequence: int) -> None:
        """Notes a write that the shard did not acknowledge."""
        if self.unacknowledged and self.unacknowledged[-1].stop == sequence:
            self.unacknowledged[-1] = range(self.unacknowledged[-1].start, sequence + 1)
        else:
            self.unacknowledged.append(range(sequence, sequence + 1))

    def unacknowledged_after(self, sequence: int) -> int:
        """How many writes after this one, up to the last that the shard acknowledged, it did not
        acknowledge."""
        first, end = sequence + 1, self.acknowledged + 1
        return sum(
            len(range(max(part.start, first), min(part.stop, end))) for part in self.unacknowledged
        )

    def reset(self, error: Exception) -> None:
        """Gives up the connection, and waits a little before the next one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.error = repr(error)
        self.retry_at = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)

    def note_answer(self) -> None:
        self.pause_s, self.connect_s = PAUSE_S, CONNECT_S


class Session:
    """A client of all shards, for one call at a time."""

    def __init__(self, directory: Directory, given_up: GivenUpWrites | None = None) -> None:
        self.directory = directory
        self.given_up = given_up or GivenUpWrites()
        self.process = os.getpid()
        self.client = secrets.token_bytes(frames.CLIENT_BYTES)
        self.links: dict[int, Link] = {}
        # That of the call that runs. It has the caller's arrays, which must be free once the call
        # has ended, so it is here alone: an exception, even one that was handled, may keep the
        # frames that it went through, and their variables, for a while.
        self._running: _ShardBatch | None = None

    def close(self) -> None:
        for link in self.links.values():
            if link.connection is None:
                continue
            try:
                if link.acknowledged:
                    deadline = time.monotonic() + 1
                    link.connection.ask(Op.FORGET, deadline=deadline, client=self.client)
            except (*_FAILURES, Error):
                # The shard forgets it later by itself.
                pass
            link.connection.close()
        self.links.clear()

    def drop(self) -> None:
        """Closes without a word: a call was interrupted, and answers may be under way."""
        for link in self.links.values():
            if link.connection is not None:
                link.connection.close()
        self.links.clear()

    # Connections.

    def link(self, shard: int) -> Link:
        link = self.links.get(shard)
        if link is None:
            link = self.links[shard] = Link(shard)
        return link

    def connect(self, link: Link, deadline: float) -> Connection:
        """The connection to a shard, made again if there is none, or if the shard was restored
        elsewhere. Its former process may still answer, until Ray ends it."""
        if link.connection is not None:
            if link.generation >= self.directory.map.places[link.shard].generation:
                return link.connection
            link.connection.close()
            link.connection = None
        wait = min(link.retry_at, deadline) - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"no answer in time: {link.error}")
        attempt_s, link.connect_s = link.connect_s, min(2 * link.connect_s, CONNECT_MAX_S)
        endpoint, actor = self.directory.endpoint(link.shard, min(deadline, now + attempt_s))
        wire = self.directory.wire(actor)
        until = min(deadline, time.monotonic() + attempt_s)
        connection = Connection(endpoint, until, wire)
        try:
            self._check_lost(link, connection, endpoint, until)
        except BaseException:
            connection.close()
            raise
        link.connection = connection
        return connection

    def _check_lost(
        self, link: Link, connection: Connection, endpoint: Endpoint, deadline: float
    ) -> None:
        """Compares what a restored shard has of this client's writes with what was acknowledged."""
        if endpoint.generation != link.generation and link.acknowledged:
            _, body = connection.ask(Op.APPLIED, deadline=deadline, client=self.client)
            has = int.from_bytes(body[:8], "little")
            keys = int.from_bytes(body[8:16], "little")
            if has < link.acknowledged:
                writes = link.acknowledged - has - link.unacknowledged_after(has)
                lost = max(link.keys - keys, 0)
                self.directory.report_lost(self.client.hex(), link.shard, writes, lost)
                warnings.warn(
                    f"shard {link.shard} was restored from a backup: {writes} writes of {lost} "
                    "keys that this handle had written there are lost",
                    LostWritesWarning,
                    stacklevel=2,
                )
                link.acknowledged, link.keys = has, keys
        link.generation = endpoint.generation

    # Calls with keys.

    def run(self, op: Op, batch: _ShardBatch, deadline: float) -> None:
        """Does a call for all keys of a batch. Raises `PartialError` for those that failed."""
        self._running = batch
        del batch
        try:
            self._run(op, deadline)
        except BaseException:
            for link in self.links.values():
                if link.in_doubt:
                    self.given_up.add(link.shard, self.client, link.in_doubt)
                    link.in_doubt = 0
            raise
        finally:
            self._running = None

    def _fence(self, link: Link, connection: Connection, deadline: float) -> None:
        """Makes a shard refuse what the handle has given up there."""
        for client, sequence in self.given_up.of(link.shard):
            until = min(deadline, time.monotonic() + link.connect_s)
            connection.ask(Op.FENCE, deadline=until, client=client, sequence=sequence)
            self.given_up.remove(link.shard, client, sequence)

    def fence_all(self, deadline: float) -> None:
        """Makes all shards refuse what the handle has given up. One that does not answer drops it
        by itself, because its connection was closed."""
        for shard in self.given_up.shards():
            link = self.link(shard)
            try:
                self._fence(link, self.connect(link, deadline), deadline)
            except (*_FAILURES, Error) as error:
                link.reset(error)

    @property
    def _batch(self) -> _ShardBatch:
        assert self._running is not None
        return self._running

    def _run(self, op: Op, deadline: float) -> None:
        failed: list[NDArray[np.uint64]] = []
        causes: list[Exception] = []
        positions: NDArray[np.uint64] | None = None
        shard_map = self.directory.map
        while True:
            moved = self._run_once(op, positions, shard_map, deadline, failed, causes)
            if len(moved) == 0:
                break
            positions = moved
            if time.monotonic() >= deadline:
                failed.append(moved)
                causes.append(TimeoutError("their buckets are moving to another shard"))
                break
            try:
                shard_map = self.directory.newer_map(shard_map, deadline)
            except DisconnectedError:
                raise
            except (*_FAILURES, Error) as error:
                failed.append(moved)
                causes.append(error)
                break
        for part in failed:
            self._batch.scatter(part, np.zeros(len(part), np.uint8))
        if failed:
            at = sorted(int(position) for part in failed for position in part)
            raise PartialError(f"{len(at)} keys failed: {causes[0]}", at) from causes[0]

    def _run_once(
        self,
        op: Op,
        positions: NDArray[np.uint64] | None,
        shard_map: ShardMap,
        deadline: float,
        failed: list[NDArray[np.uint64]],
        causes: list[Exception],
    ) -> NDArray[np.uint64]:
        """Returns the positions of keys whose buckets are elsewhere."""
        shards = len(shard_map.places)
        keys, order, starts = self._batch.split(shard_map.owners, shard_map.seed, shards, positions)
        queues: dict[int, deque[Frame]] = {}
        size = frames.frame_keys(self.directory.row_bytes)
        for shard in range(shards):
            for at in range(starts[shard], starts[shard + 1], size):
                part = slice(at, min(at + size, starts[shard + 1]))
                queues.setdefault(shard, deque()).append(Frame(keys[part], order[part]))
        moved: list[NDArray[np.uint64]] = []
        # Shards that have a frame and owe an answer.
        asked: set[int] = set()
        while queues:
            # Shards that answer come first, so that they do not wait for one that is away.
            idle = sorted(queues.keys() - asked, key=lambda n: self.link(n).connection is None)
            for shard in idle:
                link, frame = self.link(shard), queues[shard][0]
                if self._send(op, link, frame, shard_map.version, deadline, len(asked)):
                    asked.add(shard)
            for shard in self._answering(asked, queues.keys() - asked, deadline):
                asked.discard(shard)
                link, frame = self.link(shard), queues[shard][0]
                before = len(moved)
                if self._receive(op, link, frame, deadline, moved, failed, causes):
                    queues[shard].popleft()
                if len(moved) > before:
                    # The rest follows, so that writes of one key keep their order.
                    moved.extend(frame.positions for frame in queues[shard])
                    queues[shard].clear()
            for shard in [shard for shard, queue in queues.items() if not queue]:
                del queues[shard]
            if queues and time.monotonic() >= deadline:
                for shard, queue in queues.items():
                    self._give_up(self.link(shard), queue, shard in asked, failed, causes)
                break
            # A shard that is restored elsewhere keeps its number, so frames stay with it.
        return np.concatenate(moved) if moved else np.empty(0, np.uint64)

    def _answering(self, asked: set[int], waiting: set[int], deadline: float) -> list[int]:
        """The shards whose answer arrives next. It is none if it is time to try one again that was
        away, or if the call's time is over."""
        shards = sorted(asked)
        if len(shards) <= 1 and not waiting:
            return shards
        until = min([deadline, *(self.link(shard).retry_at for shard in waiting)])
        connections = [c for c in (self.link(shard).connection for shard in shards) if c]
        return [shards[at] for at in wait_for_answers(connections, until)] if connections else []

    def _give_up(
        self,
        link: Link,
        queue: deque[Frame],
        is_asked: bool,
        failed: list[NDArray[np.uint64]],
        causes: list[Exception],
    ) -> None:
        """Ends a call without a shard's answer."""
        if is_asked:
            # The answer may still come.
            link.reset(TimeoutError("no answer came in time"))
        error = ServerError(f"shard {link.shard} did not answer in time: {link.error}")
        causes.append(error)
        failed.extend(frame.positions for frame in queue)
        for frame in queue:
            if frame.sequence:
                link.give_up(frame.sequence)

    def _send(
        self,
        op: Op,
        link: Link,
        frame: Frame,
        version: int,
        deadline: float,
        asked: int,
    ) -> bool:
        if link.connection is None and asked > 0 and link.retry_at > time.monotonic():
            # Others have answers to receive meanwhile.
            return False
        if op in frames.WRITES and frame.sequence == 0:
            link.sequence += 1
            frame.sequence = link.sequence
            if op in frames.WITH_ROWS:
                frame.rows = self._batch.gather(frame.positions)
        body = [frame.keys.data.cast("B")] if len(frame.keys) else []
        if frame.rows is not None and len(frame.rows):
            body.append(frame.rows.data)
        try:
            connection = self.connect(link, deadline)
            if op in frames.WRITES:
                self._fence(link, connection, deadline)
                link.in_doubt = frame.sequence
            connection.send(
                op,
                body,
                len(frame.keys),
                map_version=version,
                client=self.client,
                sequence=frame.sequence,
            )
        except DisconnectedError:
            raise
        except (*_FAILURES, Error) as error:
            link.reset(error)
            return False
        return True

    def _receive(
        self,
        op: Op,
        link: Link,
        frame: Frame,
        deadline: float,
        moved: list[NDArray[np.uint64]],
        failed: list[NDArray[np.uint64]],
        causes: list[Exception],
    ) -> bool:
        """Whether the frame is answered, for better or worse."""
        assert link.connection is not None
        count = len(frame.keys)
        try:
            answer, body = link.connection.receive(max(deadline, time.monotonic() + GRACE_S))
            if answer.keys > count or len(body) < answer.keys:
                raise FrameError(f"{answer.keys} flags for {count} keys")
            if answer.status == Status.OK and op in (Op.FIND, Op.CONTAINS, *frames.WRITES):
                if answer.keys != count:
                    raise FrameError(f"{answer.keys} flags for {count} keys")
            if op in frames.WRITES:
                # Calls that ran at the same time may have given up something meanwhile. The answer
                # has no body, so that of the write stays.
                self._fence(link, link.connection, max(deadline, time.monotonic() + GRACE_S))
        except _FAILURES as error:
            link.reset(error)
            return False
        link.note_answer()
        done = answer.keys
        flags, rest = body[:done], frame.positions[done:]
        if op in frames.WRITES:
            if answer.status != Status.FAILED:
                # It was applied, or is refused from now on.
                link.in_doubt = 0
            if done or answer.status == Status.OK:
                link.acknowledged = frame.sequence
                link.keys += done
            else:
                link.give_up(frame.sequence)
        if answer.status == Status.OK:
            rest_at = frames.padded(done) if op is Op.FIND else done
            self._take(op, frame, flags, body[rest_at:], failed, causes)
            return True
        self._batch.scatter(frame.positions[:done], flags)
        if answer.status == Status.MOVED:
            moved.append(rest)
            if answer.map_version == 0:
                # It has no map: its directory has vanished.
                self.directory.suspect(link.shard)
            return True
        causes.append(error_of(bytes(body[done:])))
        failed.append(rest)
        return True

    def _take(
        self,
        op: Op,
        frame: Frame,
        flags: NDArray[np.uint8],
        rest: NDArray[np.uint8],
        failed: list[NDArray[np.uint64]],
        causes: list[Exception],
    ) -> None:
        if op is Op.PREFETCH:
            return
        if op is not Op.FIND:
            self._batch.scatter(frame.positions, flags)
            return
        row_bytes = self.directory.row_bytes * len(flags)
        rows, text = rest[:row_bytes], rest[row_bytes:]
        if len(text):
            is_failed = flags == 2
            flags = np.where(is_failed, np.uint8(0), flags)
            failed.append(frame.positions[is_failed])
            causes.append(error_of(bytes(text)))
        self._batch.scatter(frame.positions, flags, rows)

    # Calls without keys.

    def ask_all(self, op: Op, deadline: float) -> list[bytes]:
        """Asks every shard, all at once."""
        answers: dict[int, bytes] = {}
        shards = range(len(self.directory.map.places))
        while len(answers) < len(shards):
            sent: list[Link] = []
            for shard in shards:
                link = self.link(shard)
                if shard in answers:
                    continue
                try:
                    self.connect(link, deadline).send(op, [], 0, client=self.client)
                    sent.append(link)
                except DisconnectedError:
                    raise
                except (*_FAILURES, Error) as error:
                    link.reset(error)
            refused: Exception | None = None
            for link in sent:
                try:
                    assert link.connection is not None
                    until = max(deadline, time.monotonic() + GRACE_S)
                    answer, body = link.connection.receive(until)
                except _FAILURES as error:
                    link.reset(error)
                    continue
                link.note_answer()
                if answer.status == Status.FAILED:
                    refused = error_of(bytes(body[answer.keys :]))
                answers[link.shard] = bytes(body)
            if refused is not None:
                raise refused
            if len(answers) < len(shards) and time.monotonic() >= deadline:
                away = [shard for shard in shards if shard not in answers]
                raise ServerError(
                    f"shards {away} did not answer in time: {self.link(away[0]).error}"
                )
        return [answers[shard] for shard in shards]


def as_rows(body: NDArray[np.uint8], dim: int, dtype: str) -> NDArray[Any]:
    """Bytes as rows of a table."""
    name = "uint16" if dtype == "bfloat16" else dtype
    rows: NDArray[Any] = body.view(name).reshape(-1, dim)
    return rows
