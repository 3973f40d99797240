"""The types of arguments. The package has no such module: these are names for type checkers."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

# `Any` stands here for one thing only: the elements of an array, whose type is known when the
# program runs.
Array = NDArray[Any]
Bools = NDArray[np.bool_]

class Tensor(Protocol):
    """A tensor of any library, through DLPack."""

    def __dlpack__(self) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class TorchDtype(Protocol):
    """`torch.float32`."""

    @property
    def itemsize(self) -> int: ...
    @property
    def is_floating_point(self) -> bool: ...

class TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

# A stream of CUDA's: its handle, or an object that has one.
Stream = int | TorchStream | CupyStream

# `bytes`, or text that is encoded as UTF-8.
Bytes = bytes | bytearray | str
# Many keys: objects, the rows of an array of uint8, or integers. Each integer is eight bytes,
# big-endian.
ByteKeys = Iterable[Bytes] | NDArray[np.integer[Any]]
# Many values: objects, arrays, or the rows of an array of any type, as they are in memory.
Values = Iterable[Bytes | Array | Tensor] | Array | Tensor

class HasItems(Protocol):
    """A mapping, a store or a cache."""

    def items(self) -> Iterable[tuple[bytes | str, Bytes]]: ...

Entries = HasItems | Iterable[tuple[bytes | str, Bytes]]
Durability = Literal["buffered", "synced"]
# A number of bytes, or a text such as "2GiB".
Size = int | str
# Takes the bytes copied so far, and in total.
Progress = Callable[[int, int], object] | None
# True is "if_missing", False is "never".
Create = bool | Literal["if_missing", "never", "must_be_new"]
StrPath = str | PathLike[str]

# Rows: an array, a tensor through DLPack, or numbers that fit the table's type.
Memory = Array | Tensor
Rows = Memory | Sequence[float] | Sequence[Sequence[float]]
Indices = NDArray[np.int32] | NDArray[np.int64]
Pairs = (
    Indices
    | Tensor
    | Sequence[Sequence[int]]
    | tuple[Indices | Tensor | Sequence[int], Indices | Tensor | Sequence[int]]
)

# Integers of any width from 0 to 2**64 - 1, in any shape, or a tensor through DLPack. A negative
# integer is the key with the same 64 bits. Floats, text and booleans are refused.
Keys = NDArray[np.integer[Any]] | Tensor | Sequence[int] | Sequence[Sequence[int]]
# "float32", np.float32, np.dtype("float32"), torch.float32.
Dtype = DTypeLike | TorchDtype
# Flags for keys: an array of bool, or a tensor of bool through DLPack.
Flags = Bools | Tensor
