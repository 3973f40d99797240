"""The arrays of `forerun.gpu_table`: what callers give, and new ones of the same library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from forerun._forerun import _GpuTable
from forerun.errors import InvalidArgumentError

# An array or a tensor of any library.
Array = Any


def library_of(array: Array) -> str:
    return type(array).__module__.partition(".")[0]


def length(shape: Sequence[int]) -> int:
    """The elements of an array of this shape."""
    elements = 1
    for extent in shape:
        elements *= int(extent)
    return elements


def as_keys(keys: Array) -> Array:
    """The keys as an array. A list becomes one of NumPy's."""
    if isinstance(keys, np.ndarray):
        if keys.dtype.kind in "iu" and keys.dtype.itemsize < 8:
            return keys.astype(np.int64)
        # Not `ascontiguousarray`, which gives a single key a dimension.
        return keys if keys.flags.c_contiguous else keys.copy()
    if hasattr(keys, "__dlpack__"):
        return keys
    array = np.asarray(keys)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"keys must be integers, not {array.dtype}")
    return array if array.dtype.itemsize == 8 else array.astype(np.int64)


def as_integers(numbers: Array) -> Array:
    """Scores or flags. A list becomes an array of NumPy's."""
    if not isinstance(numbers, (list, tuple)):
        return numbers
    array = np.asarray(numbers)
    return array if array.dtype == bool else as_keys(array)


def zeros(
    table: _GpuTable, like: Array, shape: tuple[int, ...], dtype: Any, stream: Any
) -> Array:
    """An array of zeros where the table is, of the library of `like` if it can be written."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    library = library_of(like)
    if library == "torch":
        import torch

        return torch.zeros(shape, dtype=getattr(torch, name), device=like.device)
    if library == "cupy":
        import cupy

        return cupy.zeros(shape, "uint16" if name == "bfloat16" else name)
    if table.gpu is None:
        return np.zeros(shape, "uint16" if name == "bfloat16" else name)
    # A `DeviceArray` has the types of rows.
    name = "uint8" if name == "bool" else name
    return table.zeros(list(shape), name, stream=stream_for(table, like, stream))


def given(like: Array, array: Array) -> Array:
    """The array as one of the library of `like`, without a copy."""
    if library_of(like) in ("jax", "jaxlib") and library_of(array) in ("numpy", "forerun"):
        import jax

        return jax.dlpack.from_dlpack(array)
    return array


def stream_for(table: _GpuTable, like: Array, stream: Any) -> Any:
    """The stream of a call that has no arrays, or makes them: the given one, or the current one of
    the library of `like`, of PyTorch or of CuPy."""
    if stream is not None or table.gpu is None:
        return stream
    library = library_of(like)
    torch = sys.modules.get("torch")
    if torch is not None and library != "cupy" and torch.cuda.is_initialized():
        return cast(Any, torch).cuda.current_stream(table.gpu)
    cupy = sys.modules.get("cupy")
    if cupy is not None and library != "torch":
        return cast(Any, cupy).cuda.get_current_stream()
    return None
