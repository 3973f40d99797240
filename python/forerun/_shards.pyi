"""The types of what `forerun.ray` takes from `forerun._forerun`."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from forerun._arguments import (
    Array as _Array,
    Bools as _Bools,
    Dtype as _Dtype,
    Flags as _Flags,
    Keys as _Keys,
    Memory as _Memory,
    Rows as _Rows,
    Size as _Size,
)

@final
class ShardBatch:
    def __new__(
        cls,
        keys: _Keys | int,
        dim: int,
        dtype: _Dtype,
        *,
        rows: _Rows | None = None,
        out: _Memory | None = None,
        found: _Flags | None = None,
        fills: bool = False,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def split(
        self,
        map: NDArray[np.uint16],
        seed: int,
        shards: int,
        positions: NDArray[np.uint64] | None = None,
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64], list[int]]: ...
    def gather(self, positions: NDArray[np.uint64]) -> NDArray[np.uint8]: ...
    def scatter(
        self,
        positions: NDArray[np.uint64],
        flags: NDArray[np.uint8],
        rows: NDArray[np.uint8] | None = None,
    ) -> None: ...
    def results(self) -> tuple[_Array | None, _Bools]: ...

def buckets(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint16]: ...
def size_bytes(size: _Size) -> int: ...
