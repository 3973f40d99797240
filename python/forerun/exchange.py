"""Rows of a table that is spread over the processes of a group, as in training.

    process 0                          process 1
      keys ──split by bucket──> keys for 0 │ keys for 1
                                    └──── all-to-all ────┐
      keys that 0 owns <─────────────────────────────────┘  (of all processes)
      rows of them ──── all-to-all ────> each where it was asked for ──scatter──> out

Every process has a table of its own rows. Each call is collective: all processes of the group make
it, each with its own keys, or with none. The bytes travel through a function `all_to_all`, which
takes an array of bytes for each process and returns one from each. `forerun.torch` has one for
process groups of PyTorch. Buckets are those of `docs/guide/ray.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import Table
from forerun._forerun import _ShardBatch
from forerun.errors import InvalidArgumentError, PartialError

__all__ = ["GroupTable"]

Bytes = NDArray[np.uint8]
AllToAll = Callable[[list[Bytes]], list[Bytes]]

BUCKETS = 1024
FAILED = 2


class GroupTable:
    """The rows of all processes of a group. `table` has those of this process."""

    def __init__(
        self, table: Table, rank: int, processes: int, all_to_all: AllToAll, *, seed: int = 0
    ) -> None:
        if not 0 <= rank < processes <= BUCKETS:
            raise InvalidArgumentError(
                f"a group has 1 to {BUCKETS} processes, and {rank} of {processes} is not one"
            )
        self.table = table
        self.rank, self.processes, self.seed = rank, processes, seed
        self._all_to_all = all_to_all
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

    def _split(self, batch: _ShardBatch) -> tuple[list[Bytes], NDArray[np.uint64], list[slice]]:
        """The keys for each process, as bytes; their positions, and the part of each process."""
        keys, positions, starts = batch.split(self._map, self.seed, self.processes)
        parts = [slice(a, b) for a, b in zip(starts, starts[1:])]
        return [keys[part].view(np.uint8) for part in parts], positions, parts

    def _owned(self, parts: list[Bytes]) -> tuple[NDArray[np.uint64], list[slice]]:
        """Sends keys to their owners. Returns those that came, and the part of each process."""
        came = self._all_to_all(parts)
        ends = np.cumsum([0, *(len(part) // 8 for part in came)])
        keys = np.concatenate(came).view(np.uint64)
        return keys, [slice(int(a), int(b)) for a, b in zip(ends, ends[1:])]

    def find(
        self,
        keys: Any,
        out: Any = None,
        prepare: Callable[[NDArray[np.uint64]], None] | None = None,
    ) -> tuple[Any, NDArray[np.bool_]]:
        """Looks up this process's keys, wherever their rows are. Before a process looks up the keys
        that it owns, it calls `prepare` with them."""
        batch = _ShardBatch(keys, self.dim, self.dtype, out=out, fills=True)
        parts, positions, asked = self._split(batch)
        owned, askers = self._owned(parts)
        rows = np.zeros((len(owned), self._row_bytes), np.uint8)
        flags = np.zeros(len(owned), np.uint8)
        cause: Exception | None = None
        try:
            if prepare is not None:
                prepare(owned)
            self.table.find(owned, rows, flags.view(np.bool_))
        except PartialError as error:
            # The others wait for an answer. The askers of these keys raise the error.
            flags[error.positions] = FAILED
        except Exception as error:
            flags[:], cause = FAILED, error
        found = self._answers([flags[part] for part in askers])
        answers = self._answers([rows[part].reshape(-1) for part in askers])
        if cause is not None:
            raise cause
        failed = positions[found == FAILED]
        batch.scatter(positions, np.where(found == FAILED, np.uint8(0), found), answers)
        _raise(failed)
        return batch.results()

    def add_at(self, keys: Any, rows: Any) -> NDArray[np.bool_]:
        """Adds to rows wherever they are. Returns which keys exist. Rows of one key that several
        processes add are all added."""
        batch = _ShardBatch(keys, self.dim, self.dtype, rows=rows)
        parts, positions, asked = self._split(batch)
        owned, askers = self._owned(parts)
        gathered = batch.gather(positions)
        sent = [gathered[p.start * self._row_bytes : p.stop * self._row_bytes] for p in asked]
        added = np.concatenate(self._all_to_all(sent))
        flags = np.zeros(len(owned), np.uint8)
        cause: Exception | None = None
        try:
            try:
                flags[:] = self.table.add_at(owned, added)
            except PartialError as error:
                flags[:] = self.table.contains(owned)
                flags[error.positions] = FAILED
        except Exception as error:
            # The others wait for an answer.
            flags[:], cause = FAILED, error
        found = self._answers([flags[part] for part in askers])
        if cause is not None:
            raise cause
        failed = positions[found == FAILED]
        batch.scatter(positions, np.where(found == FAILED, np.uint8(0), found))
        _raise(failed)
        return batch.results()[1]

    def _answers(self, parts: list[Bytes]) -> Bytes:
        """Sends answers to those who asked. Returns those to this process, in the order of its
        split keys."""
        return np.concatenate(self._all_to_all(parts))


def _raise(failed: NDArray[np.uint64]) -> None:
    if len(failed):
        at = sorted(int(position) for position in failed)
        raise PartialError(f"{len(at)} keys failed in the process that owns them", at)
