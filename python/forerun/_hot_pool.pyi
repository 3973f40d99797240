"""The part of `forerun._forerun` for hot pools. The package has no such module: this is for type
checkers."""

from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from forerun._arguments import (
    Array as _Array,
    Keys as _Keys,
    Memory as _Memory,
    Stream as _Stream,
)
from forerun._forerun import Table

@final
class HotPoolCounts:
    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def absent(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HotPlan: ...

# `host` and `rows` have layers, rows, and the dimensions of a row. On a GPU, every other array is a
# tensor on its device, `out` is needed, and a call puts one launch on the stream and returns.
@final
class HotPool:
    def __new__(
        cls,
        host: _Memory,
        rows: _Memory,
        *,
        slots: int,
        requests: int = 1,
        positions: int | None = None,
        count: int | None = None,
        layers_per_table: int = 1,
        eviction: Literal["lru", "clock"] = "lru",
        host_layout: Literal["layer_first", "row_first"] = "layer_first",
        host_rows: _Memory | None = None,
    ) -> Self: ...
    def resolve(
        self,
        layer: int,
        positions: _Memory,
        requests: _Memory | None = None,
        *,
        batch: _Memory | None = None,
        out: _Memory | None = None,
        plan: HotPlan | None = None,
        stream: _Stream | None = None,
    ) -> Any: ...
    def replay(
        self,
        plan: HotPlan,
        layers: tuple[int, int],
        *,
        batch: _Memory | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def new_plan(self) -> HotPlan: ...
    def clear(self, requests: _Memory, *, stream: _Stream | None = None) -> None: ...
    def counts(self, *, stream: _Stream | None = None) -> HotPoolCounts: ...

@final
class HostRows:
    def __new__(cls, host: _Array, table: Table) -> Self: ...
    def acquire(self, keys: _Keys) -> NDArray[np.int64]: ...
    def release(self, rows: _Array) -> None: ...
    @property
    def held(self) -> int: ...
