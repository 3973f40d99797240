"""Operators of PyTorch over a `forerun.GpuTable`, which `torch.compile` traces without a graph
break and CUDA graphs capture.

>>> import torch
>>> from forerun import GpuTable, gpu_operators
>>> table = GpuTable(1000, dim=2, device="cpu")
>>> keys = torch.tensor([7, 8])
>>> gpu_operators.insert_or_assign(table, keys, torch.ones(2, 2)).tolist()
[2, 2]
>>> rows, found = gpu_operators.find(table, torch.tensor([8, 9]))
>>> rows.tolist(), found.tolist()
([[1.0, 1.0], [0.0, 0.0]], [True, False])

Each function is an operator `torch.ops.forerun.gpu_table_...` that takes the table's number.
Tensors are where the table is. An operation that changes the table returns the outcome for each
key, a uint8 (see `GpuTable`). A compiler keeps the order of lookups and changes, and removes no
change; activation checkpoints make the operations inside again in backward. `torch.export` is
refused. Rows have no gradient: `forerun.torch` has modules with gradients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import torch
from torch import Tensor

from forerun.errors import ClosedError, InvalidArgumentError
from forerun.gpu_table import GpuTable, tables

__all__ = ["assign", "contains", "erase", "find", "find_or_insert", "insert_or_assign"]

# For each device, an empty tensor that all operators take and that those which change a table claim
# to change. So a compiler sees that a lookup before a change and one after it are not the same.
_orders: dict[str, Tensor] = {}

# Older versions of PyTorch do not have it.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


# A compiler must not make the tensor itself: it would see that a new one has no changes to keep.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _order_on(device: str) -> Tensor:
    if device not in _orders:
        # Made by another thread, which is in no mode. The tensor outlives the inference, the trace
        # or the transform that needs it first, and one that belongs to these fails elsewhere.
        with ThreadPoolExecutor(1) as other:
            made = other.submit(lambda: torch.zeros(0, device=device))
        _orders.setdefault(device, made.result())
    return _orders[device]


def _order_of(keys: Tensor) -> Tensor:
    if _is_exporting():
        raise InvalidArgumentError(
            "a program of torch.export cannot hold a GpuTable, which exists in this process alone"
        )
    order: Tensor = _order_on(str(keys.device))
    return order


def _table(number: int) -> GpuTable:
    table = tables.get(number)
    if table is None:
        raise ClosedError("the table of this operator does not exist any more")
    return table


@torch.library.custom_op("forerun::gpu_table_find", mutates_args=())
def _find(
    keys: Tensor, order: Tensor, table: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows = keys.new_zeros((*keys.shape, dim), dtype=dtype)
    found = keys.new_zeros(keys.shape, dtype=torch.bool)
    _table(table).find(keys.contiguous(), rows, found)
    return rows, found


@_find.register_fake
def _(
    keys: Tensor, order: Tensor, table: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    found = keys.new_empty(keys.shape, dtype=torch.bool)
    return keys.new_empty((*keys.shape, dim), dtype=dtype), found


@torch.library.custom_op("forerun::gpu_table_contains", mutates_args=())
def _contains(keys: Tensor, order: Tensor, table: int) -> Tensor:
    found = keys.new_zeros(keys.shape, dtype=torch.bool)
    _table(table).contains(keys.contiguous(), found)
    return found


@_contains.register_fake
def _(keys: Tensor, order: Tensor, table: int) -> Tensor:
    return keys.new_empty(keys.shape, dtype=torch.bool)


@torch.library.custom_op("forerun::gpu_table_find_or_insert", mutates_args=("order",))
def _find_or_insert(
    keys: Tensor, rows: Tensor, scores: Optional[Tensor], epoch: int, order: Tensor, table: int
) -> tuple[Tensor, Tensor]:
    out, status = torch.zeros_like(rows), keys.new_zeros(keys.shape, dtype=torch.uint8)
    _table(table).find_or_insert(
        keys.contiguous(), rows.contiguous(), out, scores=scores, epoch=epoch, status=status
    )
    return out, status


@_find_or_insert.register_fake
def _(
    keys: Tensor, rows: Tensor, scores: Optional[Tensor], epoch: int, order: Tensor, table: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), keys.new_empty(keys.shape, dtype=torch.uint8)


@torch.library.custom_op("forerun::gpu_table_write", mutates_args=("order",))
def _write(
    operation: str,
    keys: Tensor,
    rows: Optional[Tensor],
    scores: Optional[Tensor],
    epoch: int,
    order: Tensor,
    table: int,
) -> Tensor:
    status = keys.new_zeros(keys.shape, dtype=torch.uint8)
    rows = None if rows is None else rows.contiguous()
    _table(table)._write(operation, keys.contiguous(), rows, scores, epoch, status, None)
    return status


@_write.register_fake
def _(
    operation: str,
    keys: Tensor,
    rows: Optional[Tensor],
    scores: Optional[Tensor],
    epoch: int,
    order: Tensor,
    table: int,
) -> Tensor:
    return keys.new_empty(keys.shape, dtype=torch.uint8)


def find(table: GpuTable, keys: Tensor) -> tuple[Tensor, Tensor]:
    """`GpuTable.find`: the rows, zeros for absent keys, and which keys were found."""
    dtype = getattr(torch, table.dtype)
    found: tuple[Tensor, Tensor] = torch.ops.forerun.gpu_table_find(
        keys, _order_of(keys), table._number, table.dim, dtype
    )
    return found


def contains(table: GpuTable, keys: Tensor) -> Tensor:
    """`GpuTable.contains`."""
    found: Tensor = torch.ops.forerun.gpu_table_contains(keys, _order_of(keys), table._number)
    return found


def find_or_insert(
    table: GpuTable, keys: Tensor, rows: Tensor, scores: Optional[Tensor] = None, *, epoch: int = 0
) -> tuple[Tensor, Tensor]:
    """`GpuTable.find_or_insert`: the rows, and the outcomes."""
    found: tuple[Tensor, Tensor] = torch.ops.forerun.gpu_table_find_or_insert(
        keys, rows, scores, epoch, _order_of(keys), table._number
    )
    return found


def insert_or_assign(
    table: GpuTable, keys: Tensor, rows: Tensor, scores: Optional[Tensor] = None, *, epoch: int = 0
) -> Tensor:
    """`GpuTable.insert_or_assign`: returns the outcomes."""
    return _written("insert_or_assign", table, keys, rows, scores, epoch)


def assign(
    table: GpuTable, keys: Tensor, rows: Tensor, scores: Optional[Tensor] = None, *, epoch: int = 0
) -> Tensor:
    """`GpuTable.assign`: returns the outcomes."""
    return _written("assign", table, keys, rows, scores, epoch)


def erase(table: GpuTable, keys: Tensor) -> Tensor:
    """`GpuTable.erase`: returns the outcomes."""
    return _written("erase", table, keys, None, None, 0)


def _written(
    operation: str,
    table: GpuTable,
    keys: Tensor,
    rows: Optional[Tensor],
    scores: Optional[Tensor],
    epoch: int,
) -> Tensor:
    status: Tensor = torch.ops.forerun.gpu_table_write(
        operation, keys, rows, scores, epoch, _order_of(keys), table._number
    )
    return status
