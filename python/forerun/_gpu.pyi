"""The part of `forerun._forerun` for tables in GPU memory. The package has no such module: this is
for type checkers."""

from typing import Any, Literal, final

from typing_extensions import Self

from forerun._arguments import Dtype, Stream, StrPath

@final
class DeviceArray:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Stream | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...

@final
class GpuTableHandle:
    def __new__(
        cls,
        capacity: int,
        dim: int,
        dtype: Dtype | None = None,
        *,
        max_capacity: int | None = None,
        device: Literal["any", "cpu"] | int | None = None,
        width: int = 128,
        candidates: int = 1,
        evict_strategy: str = "lru",
        score_bytes: int = 8,
        device_row_bytes_max: int | None = None,
    ) -> Self: ...
    @property
    def capacity(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def gpu(self) -> int | None: ...
    def apply(
        self,
        operation: str,
        arrays: dict[str, Any],
        *,
        epoch: int = 0,
        stream: Stream | None = None,
    ) -> None: ...
    def find(
        self,
        arrays: dict[str, Any],
        *,
        beside_writers: bool = True,
        stream: Stream | None = None,
    ) -> None: ...
    def find_pooled(
        self, arrays: dict[str, Any], mode: str, dtype: Dtype, *, stream: Stream | None = None
    ) -> None: ...
    def pooled_sums_bytes(self, mode: str, dtype: Dtype, bags: int) -> int: ...
    def pooled_dim(self, mode: str, dtype: Dtype) -> int: ...
    def scan(
        self,
        scan: str,
        arrays: dict[str, Any],
        *,
        slots: tuple[int, int],
        scores: tuple[int, int],
        key_bits: tuple[int, int],
        stream: Stream | None = None,
    ) -> None: ...
    def clear(self, *, stream: Stream | None = None) -> None: ...
    def size(self, *, stream: Stream | None = None) -> int: ...
    def reserve(
        self,
        *,
        capacity: int | None = None,
        keys: int | None = None,
        stream: Stream | None = None,
    ) -> None: ...
    def set_max_capacity(self, max_capacity: int) -> None: ...
    def save(self, path: StrPath, *, stream: Stream | None = None) -> None: ...
    def load(self, path: StrPath, *, stream: Stream | None = None) -> int: ...
    def zeros(
        self, shape: list[int], dtype: Dtype, *, stream: Stream | None = None
    ) -> DeviceArray: ...
