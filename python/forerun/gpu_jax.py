"""A `forerun.GpuTable` inside `jax.jit`, for tables in CPU memory.

>>> import jax, jax.numpy as jnp
>>> from forerun import GpuTable, gpu_jax
>>> table = GpuTable(1000, dim=2, device="cpu")
>>> @jax.jit
... def step(keys):
...     rows, found = gpu_jax.find(table, keys)
...     gpu_jax.insert_or_assign(table, keys, rows + 1)
...     return gpu_jax.find(table, keys)
>>> rows, found = step(jnp.array([7, 8]))
>>> rows.tolist(), found.tolist()
([[1.0, 1.0], [1.0, 1.0]], [True, True])

Each function is a callback of JAX, which it runs once, in the order of the calls: a lookup does not
change places with the changes before and after it. So they cannot be mapped with `jax.vmap`; pass
keys of any shape instead. Rows have no gradient. A call outside of JAX waits for those that JAX has
begun only after `jax.effects_barrier()`.

A callback has its arrays in host memory, to which JAX copies those of a GPU and back. Tables on a
GPU, whose arrays must not leave it, therefore need a handler of XLA's FFI, which does not exist
yet; outside of `jax.jit` they take JAX's arrays in place. Without `jax_enable_x64`, keys have 32
bits, which are widened with their sign; NumPy's that need more are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from forerun.errors import InvalidArgumentError
from forerun.gpu_table import GpuTable

__all__ = ["assign", "contains", "erase", "find", "find_or_insert", "insert_or_assign"]


def find(table: GpuTable, keys: Any) -> tuple[Any, Any]:
    """`GpuTable.find`: the rows, zeros for absent keys, and which keys were found."""
    keys = _keys(table, keys)
    rows, found = _rows_of(table, keys), _Answer(keys.shape, np.dtype(bool))

    def run(keys: Any) -> tuple[Any, ...]:
        return table.find(keys, rows.zeros(), found.zeros())

    found_rows, flags = _called(run, (rows, found), (keys,))
    return found_rows, flags


def contains(table: GpuTable, keys: Any) -> Any:
    """`GpuTable.contains`."""
    keys = _keys(table, keys)
    found = _Answer(keys.shape, np.dtype(bool))
    return _called(lambda keys: (table.contains(keys, found.zeros()),), (found,), (keys,))[0]


def find_or_insert(
    table: GpuTable, keys: Any, rows: Any, scores: Optional[Any] = None, *, epoch: int = 0
) -> tuple[Any, Any]:
    """`GpuTable.find_or_insert`: the rows, and the outcomes."""
    keys = _keys(table, keys)
    out, status = _rows_of(table, keys), _Answer(keys.shape, np.dtype("uint8"))

    def run(keys: Any, rows: Any, *scores: Any) -> tuple[Any, ...]:
        outcomes = status.zeros()
        found = table.find_or_insert(
            keys, rows, out.zeros(), scores=_first(scores), epoch=epoch, status=outcomes
        )
        return found, outcomes

    arrays = (keys, _rows(table, keys, rows), *_scores(keys, scores))
    found, outcomes = _called(run, (out, status), arrays)
    return found, outcomes


def insert_or_assign(
    table: GpuTable, keys: Any, rows: Any, scores: Optional[Any] = None, *, epoch: int = 0
) -> Any:
    """`GpuTable.insert_or_assign`: returns the outcomes."""
    return _written(table, table.insert_or_assign, keys, rows, scores, epoch)


def assign(
    table: GpuTable, keys: Any, rows: Any, scores: Optional[Any] = None, *, epoch: int = 0
) -> Any:
    """`GpuTable.assign`: returns the outcomes."""
    return _written(table, table.assign, keys, rows, scores, epoch)


def erase(table: GpuTable, keys: Any) -> Any:
    """`GpuTable.erase`: returns the outcomes."""
    keys = _keys(table, keys)
    status = _Answer(keys.shape, np.dtype("uint8"))

    def run(keys: Any) -> tuple[Any, ...]:
        outcomes = status.zeros()
        table.erase(keys, status=outcomes)
        return (outcomes,)

    return _called(run, (status,), (keys,))[0]


def _written(
    table: GpuTable,
    write: Callable[..., None],
    keys: Any,
    rows: Any,
    scores: Optional[Any],
    epoch: int,
) -> Any:
    keys = _keys(table, keys)
    status = _Answer(keys.shape, np.dtype("uint8"))

    def run(keys: Any, rows: Any, *scores: Any) -> tuple[Any, ...]:
        outcomes = status.zeros()
        write(keys, rows, scores=_first(scores), epoch=epoch, status=outcomes)
        return (outcomes,)

    arrays = (keys, _rows(table, keys, rows), *_scores(keys, scores))
    return _called(run, (status,), arrays)[0]


class _Answer:
    """What a callback returns: shape and type."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise InvalidArgumentError(f"rows of {dtype} need JAX's option `jax_enable_x64`")
        self.shape, self.dtype = shape, dtype

    def zeros(self) -> Any:
        return np.zeros(self.shape, self.dtype)


def _called(
    run: Callable[..., tuple[Any, ...]], answers: Sequence[_Answer], arrays: Sequence[Any]
) -> Sequence[Any]:
    # Some versions of JAX declare no types for it.
    described: Any = jax.ShapeDtypeStruct
    shapes = [described(answer.shape, answer.dtype) for answer in answers]

    def callback(*given: Any) -> list[Any]:
        return list(run(*(np.asarray(each, order="C") for each in given)))

    called: Sequence[Any] = io_callback(callback, shapes, *arrays, ordered=True)
    return called


def _keys(table: GpuTable, keys: Any) -> Any:
    if table.gpu is not None:
        raise InvalidArgumentError(
            "a table on a GPU cannot be used by `forerun.gpu_jax`, whose arrays are in host "
            "memory: call the table outside of `jax.jit`"
        )
    keys = _array("keys", keys)
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise InvalidArgumentError(f"keys must be integers, not {keys.dtype}")
    return keys


def _array(name: str, given: Any) -> Any:
    """JAX's array of integers. It has 32 bits without an option, and must not lose any."""
    if not isinstance(given, jax.Array):
        given = np.asarray(given)
        if given.dtype.kind in "iu" and given.size:
            limits = np.iinfo(jax.dtypes.canonicalize_dtype(given.dtype))
            if given.min() < limits.min or given.max() > limits.max:
                raise InvalidArgumentError(
                    f"`{name}` beyond 32 bits need JAX's option `jax_enable_x64`"
                )
    return jnp.asarray(given)


def _rows_of(table: GpuTable, keys: Any) -> _Answer:
    return _Answer((*keys.shape, table.dim), jnp.dtype(table.dtype))


def _rows(table: GpuTable, keys: Any, rows: Any) -> Any:
    rows, expected = jnp.asarray(rows), _rows_of(table, keys)
    if (rows.shape, rows.dtype) != (expected.shape, expected.dtype):
        raise InvalidArgumentError(
            f"`rows` must be {expected.dtype} of shape {expected.shape}, not {rows.dtype} of shape "
            f"{rows.shape}"
        )
    # A callback has no derivative.
    return jax.lax.stop_gradient(rows)


def _scores(keys: Any, scores: Optional[Any]) -> tuple[Any, ...]:
    if scores is None:
        return ()
    scores = _array("scores", scores)
    if scores.shape != keys.shape or not jnp.issubdtype(scores.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"`scores` must be integers of shape {keys.shape}, not {scores.dtype} of shape "
            f"{scores.shape}"
        )
    return (scores,)


def _first(scores: tuple[Any, ...]) -> Any:
    """The scores, if they were given, in 64 bits."""
    return scores[0].astype(np.int64) if scores else None
