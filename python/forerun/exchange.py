"""Rows of a table that is spread over the processes of a group, as in training.

    process 0                          process 1
      keys ──split by bucket──> keys for 0 │ keys for 1
                                    └──── all-to-all ────┐
      keys that 0 owns <─────────────────────────────────┘  (of all processes)
      rows of them ──── all-to-all ────> each where it was asked for ──scatter──> out

    bodies of messages   find: keys                 answer: flags, zeros to a multiple of 8, rows
                         add_at: keys, then rows    answer: marks

Every process has a table of its own rows. Each call is collective: all processes of the group make
it, each with its own keys, or with none. The bytes travel through a function `all_to_all`, which
takes an array of bytes for each process and returns one from each. `forerun.torch` has one for
process groups of PyTorch. Buckets are those of `forerun.ray`.

If one process fails in a call, all processes raise. Before anything was done, the others raise
`GroupError`, which names the process and has its error. Later, when other keys have been served or
changed, they raise `PartialError`. Its positions are those of this process's keys that failed,
which may be none.

The store of each process records which rows of the group it has, in the metadata
`forerun.exchange` (JSON: `version` 1, `process`, `processes`, `seed`, `name`). Other processes
would not find its rows, and would begin new ones, so a store with another record is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import Table
from forerun._collective import AllToAll, Bytes, Call, CollectiveCalls, Message
from forerun._files import sync_directory
from forerun._forerun import _buckets, _ShardBatch
from forerun.errors import (
    AlreadyExistsError,
    CorruptionError,
    GroupError,
    InvalidArgumentError,
    NotFoundError,
    PartialError,
    ReadOnlyError,
    VersionError,
)

__all__ = ["GroupTable"]

BUCKETS = 1024
FAILED = 2
METADATA = "forerun.exchange"

# Marks of `Table._add_marked`.
LEFT, ADDED, MISSING = 0, 1, 2

# The number of the next table of a group. The processes agree on it, so that two tables without
# names are distinguished, too.
_next_number = 0
_numbering = threading.Lock()


class GroupTable:
    """The rows of all processes of a group. `table` has those of this process.

    A `name`, the same in all processes, distinguishes several tables of a group: see `check_same`.
    """

    def __init__(
        self,
        table: Table,
        rank: int,
        processes: int,
        all_to_all: AllToAll,
        *,
        seed: int = 0,
        name: str = "",
    ) -> None:
        if not 0 <= rank < processes <= BUCKETS:
            raise InvalidArgumentError(
                f"a group has 1 to {BUCKETS} processes, and {rank} of {processes} is not one"
            )
        self.table = table
        self.rank, self.processes, self.seed, self.name = rank, processes, seed, name
        # Whether the store has been one of this group before.
        self.is_resumed = False
        self._calls = CollectiveCalls(
            rank,
            processes,
            all_to_all,
            same=(table.dim, table.dtype, seed, processes),
            table=repr(name) if name else "",
        )
        self._is_checked = False
        self._map = (np.arange(BUCKETS) * processes // BUCKETS).astype(np.uint16)
        dtype = "uint16" if table.dtype == "bfloat16" else table.dtype
        self._row_bytes = table.dim * np.dtype(dtype).itemsize

    @property
    def dim(self) -> int:
        """The elements in a row."""
        return self.table.dim

    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
        return self.table.dtype

    @property
    def gpu(self) -> None:
        """Rows of other processes arrive in CPU memory."""
        return None

    def check_same(self) -> None:
        """Checks that all processes have rows of the same size and type, the same seed and name,
        and the stores that they had before; new stores are recorded as theirs. The first call does
        it, if this is not called before."""
        global _next_number
        if self._is_checked:
            return
        record = {
            "version": 1,
            "process": self.rank,
            "processes": self.processes,
            "seed": self.seed,
            "name": self.name,
        }
        path, is_new = self.table.path, self.table.path is not None

        def read() -> None:
            nonlocal is_new
            before = self.table._metadata(METADATA) if path is not None else None
            if before is not None:
                is_new = _check_record(path, before, record)
                self.is_resumed = True

        def write() -> None:
            if is_new:
                try:
                    self.table._put_metadata(METADATA, json.dumps(record).encode())
                except ReadOnlyError:
                    # It stays as it is, so no rows can be lost.
                    pass

        with _numbering:
            proposed = _next_number
        bodies = self._calls.agree(Call.CONSTRUCT, read, proposed.to_bytes(8, "little"))
        number = max(int.from_bytes(body.tobytes(), "little") for body in bodies)
        with _numbering:
            _next_number = max(_next_number, number + 1)
        self._calls.table = f"table {number}" + (f" {self.name!r}" if self.name else "")
        self._calls.agree(Call.CONSTRUCT, write)
        self._is_checked = True

    def joining(self, call: Call) -> AbstractContextManager[None]:
        """Inside, this process prepares a call. If it fails before the call, the others raise
        `GroupError` instead of waiting for it."""
        return self._calls.joining(call)

    def find(
        self,
        keys: Any,
        out: Any = None,
        prepare: Callable[[NDArray[np.uint64]], None] | None = None,
    ) -> tuple[Any, NDArray[np.bool_]]:
        """Looks up this process's keys, wherever their rows are. Before a process looks up the keys
        that it owns, it calls `prepare` with them."""
        self.check_same()

        def ask() -> tuple[tuple[_ShardBatch, _Split], list[list[Bytes]]]:
            batch = _ShardBatch(keys, self.dim, self.dtype, out=out, fills=True)
            split = _Split(batch, self._map, self.seed, self.processes)
            return (batch, split), [[split.keys(part)] for part in split.parts]

        (batch, split), came = self._calls.begin(Call.FIND, ask)
        error: BaseException | None = None
        bodies: list[list[Bytes]] = [[] for _ in came]
        try:
            counts = [len(body) // 8 for body in came]
            owned = np.concatenate(came).view(np.uint64)
            rows = np.zeros((len(owned), self._row_bytes), np.uint8)
            flags = np.zeros(len(owned), np.uint8)
            if prepare is not None:
                prepare(owned)
            try:
                self.table.find(owned, rows, flags.view(np.bool_))
            except PartialError as raised:
                flags[raised.positions], error = FAILED, raised
            bodies = [
                [flags[part], np.zeros(-len(flags[part]) % 8, np.uint8), rows[part].reshape(-1)]
                for part in _parts(counts)
            ]
        except BaseException as raised:
            # The others wait for an answer. None of their keys has one.
            error = raised
        answers = self._calls.exchange(Call.FIND, bodies, error)
        if error is not None and not isinstance(error, PartialError):
            raise error
        flags = np.full(split.count, FAILED, np.uint8)
        rows = np.zeros((split.count, self._row_bytes), np.uint8)
        for rank, (answer, part) in enumerate(zip(answers, split.parts)):
            count = part.stop - part.start
            rows_at = count + -count % 8
            if _has_answers(rank, answer, rows_at + count * self._row_bytes):
                flags[part] = answer.body[:count]
                rows[part] = answer.body[rows_at:].reshape(count, self._row_bytes)
        batch.scatter(
            split.positions, np.where(flags == FAILED, np.uint8(0), flags), rows.reshape(-1)
        )
        _raise(split.positions[flags == FAILED], answers, error)
        return batch.results()

    def add_at(self, keys: Any, rows: Any) -> NDArray[np.bool_]:
        """Adds to rows wherever they are. Returns which keys exist. Rows of one key that several
        processes add are all added. What `PartialError` does not list was added."""
        return self._add(keys, rows, None)

    def _add_marked(self, keys: Any, rows: Any, marks: NDArray[np.uint8]) -> None:
        """`add_at` that marks each key as `ADDED` or `MISSING`, as `Table._add_marked` does. If it
        is interrupted while other processes add, it does not learn whether they have, and all keys
        are marked."""
        self._add(keys, rows, marks)

    def _add(
        self, keys: Any, rows: Any, marks_out: NDArray[np.uint8] | None
    ) -> NDArray[np.bool_]:
        self.check_same()

        def ask() -> tuple[tuple[_ShardBatch, _Split], list[list[Bytes]]]:
            batch = _ShardBatch(keys, self.dim, self.dtype, rows=rows)
            split = _Split(batch, self._map, self.seed, self.processes)
            # One message has keys and rows: between two, a process might fail.
            gathered = batch.gather(split.positions)
            size = self._row_bytes
            return (batch, split), [
                [split.keys(part), gathered[part.start * size : part.stop * size]]
                for part in split.parts
            ]

        (batch, split), came = self._calls.begin(Call.ADD_AT, ask)
        if marks_out is not None:
            marks_out[:] = ADDED
        error: BaseException | None = None
        bodies: list[list[Bytes]] = [[] for _ in came]
        try:
            counts = [len(body) // (8 + self._row_bytes) for body in came]
            owned = np.concatenate([body[: 8 * n] for body, n in zip(came, counts)])
            added = np.concatenate([body[8 * n :] for body, n in zip(came, counts)])
            marks = np.zeros(sum(counts), np.uint8)
            bodies = [[marks[part]] for part in _parts(counts)]
            self.table._add_marked(owned.view(np.uint64), added, marks)
        except BaseException as raised:
            # The others learn which of their rows were added all the same.
            error = raised
        answers = self._calls.exchange(Call.ADD_AT, bodies, error)
        marks = np.full(split.count, LEFT, np.uint8)
        for rank, (answer, part) in enumerate(zip(answers, split.parts)):
            if _has_answers(rank, answer, part.stop - part.start):
                marks[part] = answer.body
        batch.scatter(split.positions, (marks == ADDED).astype(np.uint8))
        if marks_out is not None:
            marks_out[split.positions] = marks
        if error is not None and not isinstance(error, Exception):
            raise error
        # Also in the process that failed: other processes have added its rows.
        _raise(split.positions[marks == LEFT], answers, error)
        return batch.results()[1]

    def checkpoint(self, directory: str | os.PathLike[str], tag: str) -> str:
        """Writes this process's rows as a store, in a directory that names the tag, the process and
        the number of processes. Returns the directory. If a process fails, all raise, and none
        keeps what it wrote.

        A store that is being written has the suffix `.partial`. It is renamed when all processes
        have written theirs."""
        self.check_same()
        into = Path(directory) / f"{tag}-{self.rank:04}-of-{self.processes:04}"
        partial = into.with_name(f"{into.name}.partial")

        def begin() -> None:
            if os.path.lexists(into):
                raise AlreadyExistsError(f"{into} exists already")
            # Of a process that was killed.
            _remove(partial)

        self._agree_on_tag(Call.CHECKPOINT, begin, tag)
        written = partial

        def name() -> None:
            nonlocal written
            os.rename(partial, into)
            written = into
            sync_directory(into.parent)

        try:
            self._calls.agree(Call.CHECKPOINT, lambda: self.table.checkpoint(partial))
            self._calls.agree(Call.CHECKPOINT, name)
        except BaseException:
            # A part of a checkpoint must not be taken for all of it.
            _remove(written)
            raise
        return str(into)

    def load(self, directory: str | os.PathLike[str], tag: str) -> None:
        """Inserts the rows of a checkpoint into the tables of the group, which must be empty. It
        may be that of another number of processes, with another seed: each process reads all of
        `directory` and inserts the rows that it owns. If a process fails, all raise, and some rows
        may have been inserted."""
        self.check_same()
        parts: list[Path] = []

        def begin() -> None:
            if self.table:
                raise InvalidArgumentError(
                    "the table has rows, but a checkpoint needs empty tables"
                )
            parts.extend(_parts_of_checkpoint(Path(directory), tag))

        # The store needs no memory for rows that are imported.
        insert = self.table.insert if self.table.path is None else self.table.import_rows

        def copy() -> None:
            for part in parts:
                with Table(self.dim, self.dtype, path=part, read_only=True) as table:
                    for keys, rows in table.export():
                        is_own = self._map[_buckets(keys, self.seed)] == self.rank
                        insert(keys[is_own], rows[is_own])

        self._agree_on_tag(Call.LOAD, begin, tag)
        self._calls.agree(Call.LOAD, copy)

    def _agree_on_tag(self, call: Call, act: Callable[[], None], tag: str) -> None:
        for rank, other in enumerate(self._calls.agree(call, act, tag.encode())):
            if other.tobytes() != tag.encode():
                words = other.tobytes().decode(errors="replace")
                raise InvalidArgumentError(f"process {rank} has the tag {words!r}, not {tag!r}")


def _check_record(path: Path | None, found: bytes, now: dict[str, Any]) -> bool:
    """Checks that the rows of a store are those of this process. Returns whether its record lacks
    the name."""
    try:
        before = json.loads(found)
        version = before["version"]
        parts = {part: before[part] for part in now} if version == 1 else {}
    except (ValueError, KeyError, TypeError):
        raise CorruptionError(f"the store at {path} has a damaged record of its group") from None
    if version != 1:
        raise VersionError(f"a newer release wrote the record of its group to the store at {path}")
    # A table may get a name later.
    names = {"name"} if not (parts["name"] and now["name"]) else set()
    if any(parts[part] != now[part] for part in now.keys() - names):
        was, is_now = (
            f"process {each['process']} of {each['processes']} with seed {each['seed']}"
            + (f" and name {each['name']!r}" if each["name"] else "")
            for each in (parts, now)
        )
        raise InvalidArgumentError(
            f"the store at {path} has the rows of {was}, but this is {is_now}: give each process "
            "the store that it had, or `load` a checkpoint of the group into empty tables, which "
            "any number of processes can"
        )
    return bool(now["name"]) and not parts["name"]


def _parts_of_checkpoint(directory: Path, tag: str) -> list[Path]:
    """The parts of a checkpoint, one of each process that wrote it."""
    pattern = re.compile(re.escape(tag) + r"-(\d{4})-of-(\d{4})")
    matches = [pattern.fullmatch(name) for name in sorted(os.listdir(directory))]
    parts = [(int(m[1]), int(m[2]), directory / m[0]) for m in matches if m is not None]
    if not parts:
        raise NotFoundError(f"{directory} has no checkpoint {tag!r}")
    processes = parts[0][1]
    if [part[:2] for part in parts] != [(rank, processes) for rank in range(processes)]:
        names = ", ".join(part[2].name for part in parts)
        raise InvalidArgumentError(
            f"{directory} does not have the parts of one checkpoint {tag!r}, but {names}"
        )
    return [part[2] for part in parts]


class _Split:
    """The keys of a batch by the process that owns them."""

    def __init__(
        self, batch: _ShardBatch, owners: NDArray[np.uint16], seed: int, processes: int
    ) -> None:
        self._keys, self.positions, starts = batch.split(owners, seed, processes)
        self.count = len(self._keys)
        self.parts = [slice(a, b) for a, b in zip(starts, starts[1:])]

    def keys(self, part: slice) -> Bytes:
        return self._keys[part].view(np.uint8)


def _parts(counts: list[int]) -> list[slice]:
    """Where the keys of each process are among those of all."""
    ends = np.cumsum([0, *counts]).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:])]


def _has_answers(rank: int, answer: Message, size: int) -> bool:
    """Whether a process has answered for the keys that it owns. One that failed may not have."""
    if answer.failure is not None and len(answer.body) == 0:
        return False
    if len(answer.body) != size:
        raise GroupError(f"process {rank} answered {len(answer.body)} bytes, not {size}", rank)
    return True


def _raise(
    failed: NDArray[np.uint64], answers: list[Message], error: BaseException | None
) -> None:
    """Raises if a process has failed, also if it owns none of this process's keys."""
    for rank, answer in enumerate(answers):
        if answer.failure is not None:
            at = sorted(int(position) for position in failed)
            words = f"process {rank} failed for keys that it owns, {len(at)} of them from here"
            raise PartialError(f"{words}: {answer.failure}", at) from error


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
