"""A hash table in GPU memory, for arrays of PyTorch, CuPy, JAX and NumPy.

`GpuTable` maps 64-bit keys to rows and evicts by score when it is full. Keys and rows are where the
table is: on a GPU, tensors of that GPU, through DLPack, without a copy; on the CPU, arrays.

>>> import numpy as np
>>> from forerun import GpuTable
>>> table = GpuTable(1000, dim=2, device="cpu")
>>> table.insert_or_assign(np.array([7, 8]), np.array([[1, 2], [3, 4]], np.float32))
>>> rows, found = table.find(np.array([8, 9]))
>>> rows.tolist(), found.tolist()
([[3.0, 4.0], [0.0, 0.0]], [True, False])

On a GPU, a call puts one operation on a stream, by default the current one of the keys' library,
and returns; it can be captured into a CUDA graph. `len`, `reserve`, `save`, `load` and closing
wait. New arrays belong to the library of the keys. Keys in host memory do not move to the GPU by
themselves.

    torch     also under `torch.compile`: `forerun.gpu_operators`
    cupy      as it is
    jax       with `jax_enable_x64`; inside `jax.jit` on the CPU alone: `forerun.gpu_jax`
    others    new arrays are `DeviceArray`, which have `__dlpack__`

docs/guide/gpu-table.md describes the operations, and which may overlap on different streams.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

from forerun._forerun import DeviceArray, _GpuTable
from forerun._gpu_arrays import Array, as_integers, as_keys, given, length, stream_for, zeros
from forerun.errors import ClosedError, InvalidArgumentError

__all__ = ["DeviceArray", "Entries", "GpuTable", "Missed"]

_U64_MAX = 2**64 - 1

_numbers = itertools.count()
# The tables by their numbers, which operators of PyTorch take. A number is never used again.
tables: weakref.WeakValueDictionary[int, GpuTable] = weakref.WeakValueDictionary()


class Entries(NamedTuple):
    """Entries that left a table, or were exported. The first `count` places of each array are
    filled, in no order; `count` is an array of one integer, where the table is."""

    count: Array
    keys: Array
    rows: Array
    scores: Array
    # Of evicted entries: the position of the key that took their place. Of exported ones: the slot.
    positions: Array


class Missed(NamedTuple):
    """Keys without a row, and their positions: the first `count` of each array, in no order."""

    count: Array
    keys: Array
    positions: Array


class GpuTable:
    """A hash table from 64-bit keys to rows of `dim` elements of `dtype`, in the memory of a GPU.

    `capacity`: the number of slots. `max_capacity`: what `reserve` may grow it to. `device`: "any"
    (the first GPU, or the CPU without one), "cpu", or the number of a GPU. `width`, `candidates`:
    slots in a bucket (16, 32, 64 or 128), and buckets per key (1 or 2). `evict_strategy`: "lru",
    "lfu", "epoch_lru", "epoch_lfu" or "customized" (the caller's `scores`). `score_bytes`: 8, or 4
    for counts and given scores. `device_row_bytes_max`: more rows are in pinned host memory.
    """

    def __init__(
        self,
        capacity: int,
        dim: int,
        dtype: Any = "float32",
        *,
        max_capacity: int | None = None,
        device: Literal["any", "cpu"] | int = "any",
        width: int = 128,
        candidates: int = 1,
        evict_strategy: Literal["lru", "lfu", "epoch_lru", "epoch_lfu", "customized"] = "lru",
        score_bytes: int = 8,
        device_row_bytes_max: int | None = None,
    ) -> None:
        self._open: _GpuTable | None = _GpuTable(
            capacity,
            dim,
            dtype,
            max_capacity=max_capacity,
            device=device,
            width=width,
            candidates=candidates,
            evict_strategy=evict_strategy,
            score_bytes=score_bytes,
            device_row_bytes_max=device_row_bytes_max,
        )
        self._number = next(_numbers)
        tables[self._number] = self

    @property
    def _table(self) -> _GpuTable:
        if self._open is None:
            raise ClosedError("the table is closed")
        return self._open

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self._table.capacity

    @property
    def dim(self) -> int:
        """The elements in a row."""
        return self._table.dim

    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
        return self._table.dtype

    @property
    def gpu(self) -> int | None:
        """The number of its GPU; `None` if it is on the CPU."""
        return self._table.gpu

    # Lookups.

    def find(
        self,
        keys: Array,
        out: Array = None,
        found: Array = None,
        *,
        scores: Array = None,
        beside_writers: bool = True,
        stream: Any = None,
    ) -> tuple[Array, Array]:
        """Returns the rows of keys, in their shape with one more dimension, and which were found.
        Rows of absent keys are zeros; in `out` they stay as they are. `scores`, if given, gets the
        scores. `beside_writers=False` promises that no operation changes the table meanwhile."""
        keys = as_keys(keys)
        rows = self._new_rows(keys, stream) if out is None else out
        flags = self._new(keys, keys.shape, "bool", stream) if found is None else found
        self._find(
            {"keys": keys, "rows_out": rows, "status_out": flags, "scores_out": scores},
            beside_writers,
            stream,
        )
        return given(keys, rows), given(keys, flags)

    def find_missed(
        self, keys: Array, out: Array = None, *, stream: Any = None
    ) -> tuple[Array, Missed]:
        """Returns the rows of keys, and the keys that have none."""
        keys = as_keys(keys)
        rows = self._new_rows(keys, stream) if out is None else out
        n = length(keys.shape)
        missed = Missed(
            self._new(keys, (1,), "int64", stream),
            self._new(keys, (n,), "int64", stream),
            self._new(keys, (n,), "int64", stream),
        )
        arrays = {
            "keys": keys,
            "rows_out": rows,
            "entry_count": missed.count,
            "entry_keys": missed.keys,
            "entry_positions": missed.positions,
        }
        self._find(arrays, True, stream)
        return given(keys, rows), Missed(*(given(keys, each) for each in missed))

    def find_ptr(self, keys: Array, *, stream: Any = None) -> tuple[Array, Array]:
        """Returns the addresses of the keys' rows, 0 for absent keys, and which were found. An
        address is valid until its entry is erased or evicted, or the table is cleared or grown."""
        keys = as_keys(keys)
        pointers = self._new(keys, keys.shape, "int64", stream)
        found = self._new(keys, keys.shape, "bool", stream)
        self._find({"keys": keys, "pointers_out": pointers, "status_out": found}, True, stream)
        return given(keys, pointers), given(keys, found)

    def contains(self, keys: Array, found: Array = None, *, stream: Any = None) -> Array:
        """Returns which keys have a row."""
        keys = as_keys(keys)
        flags = self._new(keys, keys.shape, "bool", stream) if found is None else found
        self._find({"keys": keys, "status_out": flags}, True, stream)
        return given(keys, flags)

    def find_pooled(
        self,
        keys: Array,
        offsets: Array,
        *,
        weights: Array = None,
        mode: Literal["sum", "mean"] = "sum",
        dtype: Any = "float32",
        out: Array = None,
        stream: Any = None,
    ) -> tuple[Array, Array]:
        """Returns the sum or mean of the rows of each bag of keys, dequantized, and how many of its
        keys were found. Bag `b` has the keys from `offsets[b]` to `offsets[b + 1]`. Formats and
        arithmetic are those of `Table.find_pooled`."""
        keys, offsets = as_keys(keys), as_keys(offsets)
        bags = max(length(offsets.shape) - 1, 0)
        values = self._table.pooled_dim(mode, dtype)
        rows = self._new(keys, (bags, values), dtype, stream) if out is None else out
        found = self._new(keys, (bags,), "int32", stream)
        sums_bytes = self._table.pooled_sums_bytes(mode, dtype, bags)
        sums = self._new(keys, (sums_bytes // 4,), "float32", stream) if sums_bytes else None
        arrays = {
            "keys": keys,
            "offsets": offsets,
            "weights": weights,
            "rows_out": rows,
            "found_out": found,
            "sums": sums,
        }
        self._table.find_pooled(arrays, mode, dtype, stream=stream)
        return given(keys, rows), given(keys, found)

    # Operations that change entries. `status`, if given, gets the outcome for each key, a byte:
    # 0 absent, 1 found, 2 inserted, 3 inserted in place of another entry, 4 refused, 5 pinned.

    def insert_or_assign(
        self,
        keys: Array,
        rows: Array,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> None:
        """Inserts rows or replaces present ones. In full buckets it replaces the entry with the
        lowest score, unless that is greater. If a key repeats, one of its rows stays, whole."""
        self._write("insert_or_assign", keys, rows, scores, epoch, status, stream)

    def insert_and_evict(
        self,
        keys: Array,
        rows: Array,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> Entries:
        """`insert_or_assign` that returns what the table does not keep: evicted and refused
        entries."""
        keys = as_keys(keys)
        entries = self._new_entries(keys, length(keys.shape), stream)
        arrays = _entry_arrays(entries)
        self._write("insert_and_evict", keys, rows, scores, epoch, status, stream, **arrays)
        return Entries(*(given(keys, each) for each in entries))

    def find_or_insert(
        self,
        keys: Array,
        rows: Array = None,
        out: Array = None,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> Array:
        """Returns the rows of keys, after absent keys were inserted with `rows`, or with zeros."""
        keys = as_keys(keys)
        found = self._new_rows(keys, stream) if out is None else out
        self._write(
            "find_or_insert", keys, rows, scores, epoch, status, stream, rows_out=found
        )
        return given(keys, found)

    def accumulate_or_assign(
        self,
        keys: Array,
        rows: Array,
        flags: Array,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> None:
        """Adds rows to those of present keys whose flag is not 0, and inserts absent keys whose
        flag is 0."""
        flags = as_integers(flags)
        self._write(
            "accumulate_or_assign", keys, rows, scores, epoch, status, stream, flags=flags
        )

    def assign(
        self,
        keys: Array,
        rows: Array,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> None:
        """Replaces the rows of present keys, and updates their scores."""
        self._write("assign", keys, rows, scores, epoch, status, stream)

    def assign_rows(
        self, keys: Array, rows: Array, *, status: Array = None, stream: Any = None
    ) -> None:
        """Replaces the rows of present keys, and keeps their scores."""
        self._write("assign_rows", keys, rows, None, 0, status, stream)

    def assign_scores(
        self,
        keys: Array,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> None:
        """Updates the scores of present keys."""
        self._write("assign_scores", keys, None, scores, epoch, status, stream)

    def find_and_update(
        self,
        keys: Array,
        out: Array = None,
        *,
        scores: Array = None,
        epoch: int = 0,
        status: Array = None,
        stream: Any = None,
    ) -> Array:
        """Returns the rows of keys, and updates the scores of present ones."""
        keys = as_keys(keys)
        rows = self._new_rows(keys, stream) if out is None else out
        self._write("find_and_update", keys, None, scores, epoch, status, stream, rows_out=rows)
        return given(keys, rows)

    def lock(self, keys: Array, *, status: Array = None, stream: Any = None) -> None:
        """Pins entries: only `clear` changes, erases or evicts them until they are unlocked."""
        self._write("lock", keys, None, None, 0, status, stream)

    def unlock(self, keys: Array, *, status: Array = None, stream: Any = None) -> None:
        """Unpins entries."""
        self._write("unlock", keys, None, None, 0, status, stream)

    def erase(self, keys: Array, *, status: Array = None, stream: Any = None) -> None:
        """Erases entries that are not pinned."""
        self._write("erase", keys, None, None, 0, status, stream)

    def restore(
        self,
        keys: Array,
        rows: Array,
        scores: Array,
        *,
        status: Array = None,
        stream: Any = None,
    ) -> None:
        """`insert_or_assign` with these scores under every strategy."""
        self._write("restore", keys, rows, scores, 0, status, stream)

    # The whole table.

    def export_batch(
        self,
        first: int = 0,
        slots: int | None = None,
        *,
        scores: tuple[int, int] = (0, _U64_MAX),
        key_bits: tuple[int, int] = (0, 0),
        like: Array = None,
        stream: Any = None,
    ) -> Entries:
        """Returns the entries in a range of slots whose scores are in a range (both ends included)
        and whose keys `& key_bits[0]` are `key_bits[1]`. The arrays are of the library of `like`;
        otherwise NumPy's for a table on the CPU, and `DeviceArray` on a GPU."""
        end = self.capacity if slots is None else min(first + slots, self.capacity)
        entries = self._new_entries(like, max(end - first, 0), stream)
        self._table.scan(
            "export",
            _entry_arrays(entries),
            slots=(first, end),
            scores=scores,
            key_bits=key_bits,
            stream=stream_for(self._table, like, stream),
        )
        return Entries(*(given(like, each) for each in entries))

    def size_if(
        self,
        *,
        scores: tuple[int, int] = (0, _U64_MAX),
        key_bits: tuple[int, int] = (0, 0),
        like: Array = None,
        stream: Any = None,
    ) -> Array:
        """The number of entries that meet a condition, as an array of one integer."""
        return self._count("count", scores, key_bits, like, stream)

    def erase_if(
        self,
        *,
        scores: tuple[int, int] = (0, _U64_MAX),
        key_bits: tuple[int, int] = (0, 0),
        like: Array = None,
        stream: Any = None,
    ) -> Array:
        """Erases entries that meet a condition and are not pinned. Returns their number, as an
        array of one integer."""
        return self._count("erase", scores, key_bits, like, stream)

    def clear(self, *, stream: Any = None) -> None:
        """Removes all entries, also pinned ones."""
        self._table.clear(stream=stream_for(self._table, None, stream))

    def size(self, *, stream: Any = None) -> int:
        """The number of entries, after the work on the stream. Waits."""
        return self._table.size(stream=stream_for(self._table, None, stream))

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return self.size() > 0

    def reserve(self, capacity: int, *, stream: Any = None) -> None:
        """Grows the table to at least this many slots, up to `max_capacity`. Waits for the stream;
        no other stream may use the table meanwhile."""
        self._table.reserve(capacity=capacity, stream=stream_for(self._table, None, stream))

    def reserve_for(self, keys: int, *, stream: Any = None) -> None:
        """Grows the table if it may and this many new keys might fill a bucket. A table on the CPU
        does so by itself."""
        self._table.reserve(keys=keys, stream=stream_for(self._table, None, stream))

    def set_max_capacity(self, max_capacity: int) -> None:
        """Sets the capacity up to which the table may grow."""
        self._table.set_max_capacity(max_capacity)

    def save(self, path: str | os.PathLike[str], *, stream: Any = None) -> None:
        """Writes all entries to a file, after the work on the stream. Waits."""
        self._table.save(path, stream=stream_for(self._table, None, stream))

    def load(self, path: str | os.PathLike[str], *, stream: Any = None) -> int:
        """Inserts the entries of a saved table with their scores, and returns their number."""
        return self._table.load(path, stream=stream_for(self._table, None, stream))

    def close(self) -> None:
        """Frees the table. Waits for the work of the device."""
        self._open = None

    @property
    def closed(self) -> bool:
        """Whether the table is closed."""
        return self._open is None

    def __enter__(self) -> GpuTable:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            "a table in memory cannot be pickled: save it, and load the file elsewhere"
        )

    def __repr__(self) -> str:
        if self.closed:
            return "forerun.GpuTable(closed)"
        place = "cpu" if self.gpu is None else self.gpu
        return f"forerun.GpuTable({self.capacity} slots, {self.dim} x {self.dtype}, on {place})"

    # What the methods share.

    def _find(self, arrays: dict[str, Array], beside_writers: bool, stream: Any) -> None:
        self._table.find(arrays, beside_writers=beside_writers, stream=stream)

    def _write(
        self,
        operation: str,
        keys: Array,
        rows: Array,
        scores: Array,
        epoch: int,
        status: Array,
        stream: Any,
        **others: Array,
    ) -> None:
        arrays = {
            "keys": as_keys(keys),
            "rows": rows,
            "scores": as_integers(scores),
            "status_out": status,
            **others,
        }
        self._table.apply(operation, arrays, epoch=epoch, stream=stream)

    def _count(
        self,
        scan: str,
        scores: tuple[int, int],
        key_bits: tuple[int, int],
        like: Array,
        stream: Any,
    ) -> Array:
        count = self._new(like, (1,), "int64", stream)
        self._table.scan(
            scan,
            {"entry_count": count},
            slots=(0, _U64_MAX),
            scores=scores,
            key_bits=key_bits,
            stream=stream_for(self._table, like, stream),
        )
        return given(like, count)

    def _new(self, like: Array, shape: Sequence[int], dtype: Any, stream: Any) -> Array:
        return zeros(self._table, like, tuple(shape), dtype, stream)

    def _new_rows(self, keys: Array, stream: Any) -> Array:
        return self._new(keys, (*keys.shape, self.dim), self.dtype, stream)

    def _new_entries(self, like: Array, n: int, stream: Any) -> Entries:
        return Entries(
            self._new(like, (1,), "int64", stream),
            self._new(like, (n,), "int64", stream),
            self._new(like, (n, self.dim), self.dtype, stream),
            self._new(like, (n,), "int64", stream),
            self._new(like, (n,), "int64", stream),
        )


def _entry_arrays(entries: Entries) -> dict[str, Array]:
    return {
        "entry_count": entries.count,
        "entry_keys": entries.keys,
        "entry_rows": entries.rows,
        "entry_scores": entries.scores,
        "entry_positions": entries.positions,
    }
