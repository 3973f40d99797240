"""SGLang's hot buffer of sparse attention: its two calls, on its own tables.

`load_cache_to_device_buffer_mla` and `copy_cache_planned_mla` take the arguments of SGLang 0.5.23
(`sglang.kernels.ops.kvcache.hisparse`) and change the same tables in the same way, so a server can
use one or the other. On a GPU, each call puts one launch on PyTorch's current stream and returns;
on the CPU, where SGLang has none, arrays of NumPy are accepted too.

A token that does not exist is answered with -1, and a token that is asked for twice is fetched
once. The layout of DeepSeek V4, whose rows are in two parts, is not supported, and neither are the
calls for several speculative steps. SGLang's relayout of pages needs no kernel here: the staged
functions of `forerun.hicache` copy without it.

>>> import numpy as np
>>> tokens, locs = np.full((1, 5), -1, np.int32), np.arange(5, dtype=np.int32)[None]
>>> host, device = np.arange(80, dtype=np.uint8).reshape(10, 8), np.zeros((5, 8), np.uint8)
>>> answers = np.full((1, 2), -1, np.int32)
>>> load_cache_to_device_buffer_mla(
...     np.array([[7, 2]], np.int32), tokens, np.arange(10)[None], locs, host, device, answers,
...     np.array([0]), np.array([9]), np.arange(4, dtype=np.int16)[None], 8, 2, 4)
>>> answers, device[answers[0, 0], 0]
(array([[0, 1]], dtype=int32), np.uint8(56))
"""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, NamedTuple

import numpy as np

from forerun._forerun import _copy_planned, _swap_in
from forerun.errors import InvalidArgumentError

__all__ = ["copy_cache_planned_mla", "load_cache_to_device_buffer_mla"]

# Address, rows, columns, elements from one row to the next, bytes of an element.
_Given = tuple[int, int, int, int, int]


class _Tables(NamedTuple):
    top_k_tokens: _Given
    device_buffer_tokens: _Given
    host_cache_locs: _Given
    device_buffer_locs: _Given
    top_k_device_locs: _Given
    req_pool_indices: _Given
    seq_lens: _Given
    lru_slots: _Given
    hot_buffer_size: int


class _Planned(NamedTuple):
    miss_src: _Given
    miss_dst: _Given
    miss_count: _Given
    num_real_reqs: int
    host_cache: tuple[int, int]
    device_buffer: tuple[int, int]
    item_size_bytes: int


class _Memory(NamedTuple):
    """An array of NumPy, or a tensor of PyTorch."""

    address: int
    shape: tuple[int, ...]
    # In elements.
    strides: tuple[int, ...]
    dtype: str
    element_bytes: int
    # The number of its CUDA device, or None.
    device: int | None


_WRITTEN = {
    "device_buffer",
    "device_buffer_tokens",
    "lru_slots",
    "miss_count",
    "miss_dst",
    "miss_src",
    "top_k_device_locs",
}


def _memory(name: str, array: Any) -> _Memory:
    if isinstance(array, np.ndarray):
        size = array.itemsize
        if not array.dtype.isnative or any(stride % size for stride in array.strides):
            raise InvalidArgumentError(f"`{name}` must have whole elements in the byte order here")
        if name in _WRITTEN and not array.flags.writeable:
            raise InvalidArgumentError(f"`{name}` is read-only")
        strides = tuple(stride // size for stride in array.strides)
        address = array.ctypes.data
        return _Memory(address, array.shape, strides, array.dtype.name, size, None)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        kind = type(array).__qualname__
        raise InvalidArgumentError(f"`{name}` must be a tensor or an array, not {kind}")
    if array.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"`{name}` is on {array.device}, which is neither CPU nor CUDA")
    device = array.get_device() if array.is_cuda else None
    dtype = str(array.dtype).removeprefix("torch.")
    shape, strides = tuple(array.shape), tuple(array.stride())
    return _Memory(array.data_ptr(), shape, strides, dtype, array.element_size(), device)


def _integers(
    name: str, array: Any, dimensions: int, dtypes: tuple[str, ...], device: int | None
) -> _Given:
    memory = _memory(name, array)
    if memory.dtype not in dtypes:
        raise InvalidArgumentError(
            f"`{name}` must have elements of {' or '.join(dtypes)}, not {memory.dtype}"
        )
    if len(memory.shape) != dimensions:
        raise InvalidArgumentError(
            f"`{name}` must have {dimensions} dimensions, not the shape {memory.shape}"
        )
    if memory.device != device:
        places = (memory.device, device)
        here, there = ("CPU memory" if at is None else f"cuda:{at}" for at in places)
        raise InvalidArgumentError(f"`{name}` is in {here}, but `device_buffer` in {there}")
    rows = memory.shape[0]
    columns = memory.shape[1] if dimensions == 2 else 1
    step = memory.strides[0] if rows > 1 else columns
    if (dimensions == 2 and columns > 1 and memory.strides[1] != 1) or step < columns:
        raise InvalidArgumentError(f"`{name}` must have contiguous rows")
    if dimensions == 1 and rows > 1 and step != 1:
        raise InvalidArgumentError(f"`{name}` must be contiguous")
    return memory.address, rows, columns, step, memory.element_bytes


def _rows(name: str, array: Any) -> tuple[tuple[int, int], int | None]:
    """The address and size of a pool, and its device."""
    memory = _memory(name, array)
    elements = math.prod(memory.shape)
    expected = 1
    for extent, stride in zip(reversed(memory.shape), reversed(memory.strides)):
        if extent > 1 and stride != expected:
            raise InvalidArgumentError(f"`{name}` must be contiguous")
        expected *= extent
    return (memory.address, elements * memory.element_bytes), memory.device


def _stream(device: int | None) -> Any:
    if device is None:
        return None
    import torch

    return torch.cuda.current_stream(device).cuda_stream


def _planned(
    miss_src: Any,
    miss_dst: Any,
    miss_count: Any,
    num_real_reqs: Any,
    host_cache: Any,
    device_buffer: Any,
    item_size_bytes: int,
) -> tuple[_Planned, int | None]:
    host, on_device = _rows("host_cache", host_cache)
    if on_device is not None:
        raise InvalidArgumentError("`host_cache` must be in host memory, pinned for a GPU")
    rows, device = _rows("device_buffer", device_buffer)
    real = 0
    if num_real_reqs is not None:
        given = _integers("num_real_reqs", num_real_reqs, 1, ("int32",), device)
        if given[1] < 1:
            raise InvalidArgumentError("`num_real_reqs` must have an element")
        real = given[0]
    planned = _Planned(
        _integers("miss_src", miss_src, 2, ("int64",), device),
        _integers("miss_dst", miss_dst, 2, ("int32",), device),
        _integers("miss_count", miss_count, 1, ("int32",), device),
        real,
        host,
        rows,
        operator.index(item_size_bytes),
    )
    return planned, device


def _empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype)
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def load_cache_to_device_buffer_mla(
    top_k_tokens: Any,
    device_buffer_tokens: Any,
    host_cache_locs: Any,
    device_buffer_locs: Any,
    host_cache: Any,
    device_buffer: Any,
    top_k_device_locs: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    lru_slots: Any,
    item_size_bytes: int,
    num_top_k: int,
    hot_buffer_size: int,
    page_size: int = 1,
    block_size: int = 256,
    num_real_reqs: Any = None,
    miss_src: Any = None,
    miss_dst: Any = None,
    miss_count: Any = None,
    skip_io: bool = False,
) -> None:
    """Finds the device row of each token, and fetches the rows that are missing.

    With `miss_src`, `miss_dst` and `miss_count`, what is fetched is recorded for
    `copy_cache_planned_mla`. `page_size` and `block_size` are accepted and not used: the launch
    chooses its blocks.
    """
    del page_size, block_size
    if skip_io:
        raise InvalidArgumentError("`skip_io` is for measurements of SGLang's kernel")
    batch = len(top_k_tokens)
    if miss_src is None:
        miss_src = _empty(device_buffer_tokens, (batch, num_top_k), "int64")
        miss_dst = _empty(device_buffer_tokens, (batch, num_top_k), "int32")
        miss_count = _empty(device_buffer_tokens, (batch,), "int32")
    planned, device = _planned(
        miss_src, miss_dst, miss_count, num_real_reqs, host_cache, device_buffer, item_size_bytes
    )
    tokens = _integers("top_k_tokens", top_k_tokens, 2, ("int32",), device)
    if tokens[2] != num_top_k:
        raise InvalidArgumentError(
            f"`top_k_tokens` has {tokens[2]} tokens per request, but `num_top_k` is {num_top_k}"
        )
    either = ("int32", "int64")
    tables = _Tables(
        tokens,
        _integers("device_buffer_tokens", device_buffer_tokens, 2, ("int32",), device),
        _integers("host_cache_locs", host_cache_locs, 2, ("int64",), device),
        _integers("device_buffer_locs", device_buffer_locs, 2, ("int32",), device),
        _integers("top_k_device_locs", top_k_device_locs, 2, ("int32",), device),
        _integers("req_pool_indices", req_pool_indices, 1, either, device),
        _integers("seq_lens", seq_lens, 1, either, device),
        _integers("lru_slots", lru_slots, 2, ("int16",), device),
        operator.index(hot_buffer_size),
    )
    _swap_in(tables, planned, device, _stream(device))


def copy_cache_planned_mla(
    *,
    miss_src: Any,
    miss_dst: Any,
    miss_count: Any,
    num_real_reqs: Any,
    host_cache: Any,
    device_buffer: Any,
    item_size_bytes: int,
    num_blocks: int = 4,
    block_size: int = 1024,
    is_dsv4_layout: bool = False,
    skip_io: bool = False,
) -> None:
    """Fetches the rows of a recorded plan for another layer that reads the same tokens.

    `num_blocks` and `block_size` are accepted and not used.
    """
    del num_blocks, block_size
    if is_dsv4_layout or skip_io:
        raise InvalidArgumentError("`is_dsv4_layout` and `skip_io` are not supported")
    planned, device = _planned(
        miss_src, miss_dst, miss_count, num_real_reqs, host_cache, device_buffer, item_size_bytes
    )
    _copy_planned(planned, device, _stream(device))
