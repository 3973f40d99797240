"""Rows from a `ray.data.Dataset`, and rows as one.

    dataset ──blocks──> tasks: insert ──frames──> shards
    shards ──frames──> tasks: export ──blocks──> dataset

Tasks read and write over the shards' own ports, on all nodes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import InvalidArgumentError

if TYPE_CHECKING:
    from forerun.ray.table import ShardedTable


def check_batch(batch: int) -> None:
    if not 1 <= batch <= 1 << 32:
        raise InvalidArgumentError(f"`batch` must be at least 1, not {batch}")


def load(table: ShardedTable, dataset: Any, key: str, row: str, batch: int) -> int:
    check_batch(batch)
    missing = {key, row} - set(dataset.columns())
    if missing:
        raise InvalidArgumentError(f"the dataset has no column {', '.join(sorted(missing))}")
    insert = _Loader(table, key, row)
    counts = dataset.map_batches(insert, batch_size=batch, batch_format="numpy")
    return int(counts.sum("rows") or 0)


def dump(
    table: ShardedTable, owners: NDArray[np.uint16], key: str, row: str, batch: int
) -> Any:
    import ray.data

    check_batch(batch)
    if key == row:
        raise InvalidArgumentError(f"two columns cannot both be {key!r}")
    parts = [owners == shard for shard in np.unique(owners)]
    numbers = ray.data.range(len(parts), override_num_blocks=len(parts))
    export = _Dumper(table, parts, key, row, batch)
    return numbers.map_batches(export, batch_size=1, batch_format="numpy")


class _Loader:
    """Inserts batches of a dataset, in the process of a task."""

    def __init__(self, table: ShardedTable, key: str, row: str) -> None:
        self._table, self._key, self._row = table, key, row

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        rows = batch[self._row]
        if rows.dtype == object:
            rows = np.stack(list(rows))
        dtype = "uint16" if self._table.dtype == "bfloat16" else self._table.dtype
        if rows.dtype != np.dtype(dtype):
            rows = rows.astype(dtype, casting="same_kind")
        self._table.insert(batch[self._key], np.ascontiguousarray(rows))
        return {"rows": np.array([len(rows)])}


class _Dumper:
    """Exports some buckets, in the process of a task."""

    def __init__(
        self,
        table: ShardedTable,
        parts: list[NDArray[np.bool_]],
        key: str,
        row: str,
        batch: int,
    ) -> None:
        self._table, self._parts, self._key, self._row, self._batch = table, parts, key, row, batch

    def __call__(self, batch: dict[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
        for part in batch["id"]:
            for keys, rows in self._table._export_of(self._parts[part], self._batch):
                yield {self._key: keys, self._row: rows}
