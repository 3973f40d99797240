from asyncio import Future
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from forerun._arguments import (
    Array as _Array,
    Bools as _Bools,
    ByteKeys as _ByteKeys,
    Bytes as _Bytes,
    Create as _Create,
    Dtype as _Dtype,
    Durability as _Durability,
    Entries as _Entries,
    Flags as _Flags,
    Keys as _Keys,
    Memory as _Memory,
    Pairs as _Pairs,
    Progress as _Progress,
    StrPath as _PathLike,
    Rows as _Rows,
    Size as _Size,
    Stream as _Stream,
    Values as _Values,
)
from forerun._backups import Backup, BackupList, Backups, BackupVerifyReport, RemovedBackups
from forerun._client import Client, ClientCalls, PendingCall
from forerun._gpu import DeviceArray, GpuTableHandle
from forerun._hot_pool import HostRows, HotPlan, HotPool, HotPoolCounts
from forerun._shards import ShardBatch, buckets, size_bytes
from forerun.events import DbEvent
from forerun.stats import CacheStats, DbStats, TableStats
from forerun.views import ItemsView, KeysView, ValuesView

__all__ = [
    "Backup",
    "BackupList",
    "Backups",
    "Cache",
    "CacheItems",
    "Client",
    "ClientCalls",
    "BackupVerifyReport",
    "CopyCounts",
    "Db",
    "DeviceArray",
    "Export",
    "HostRows",
    "HotPlan",
    "HotPool",
    "HotPoolCounts",
    "Items",
    "Keyspace",
    "PendingCall",
    "Reader",
    "RemovedBackups",
    "RowCopy",
    "Snapshot",
    "Table",
    "TableItems",
    "WriteBatch",
    "__version__",
    "device_info",
    "gather",
    "out_of_range_count",
    "scatter",
]

_T = TypeVar("_T")

__version__: str

@final
class CopyCounts:
    @property
    def rows(self) -> int: ...
    @property
    def zeroed(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def out_of_range(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

# A copy between arrays returns its counts. One to or from a GPU is put on the stream, returns None,
# and takes no `threads`; with `wait`, it has run. A stream is a handle, or an object that has one.
@overload
def gather(
    host: _Memory,
    device: _Array,
    pairs: _Pairs,
    *,
    absent: Literal["skip", "zero"] = "skip",
    threads: int = 1,
    stream: None = None,
    wait: bool = False,
) -> CopyCounts: ...
@overload
def gather(
    host: _Memory,
    device: _Memory,
    pairs: _Pairs,
    *,
    absent: Literal["skip", "zero"] = "skip",
    threads: int = 1,
    stream: _Stream | None = None,
    wait: bool = False,
) -> CopyCounts | None: ...
@overload
def scatter(
    device: _Array,
    host: _Memory,
    pairs: _Pairs,
    *,
    absent: Literal["skip", "zero"] = "skip",
    threads: int = 1,
    stream: None = None,
    wait: bool = False,
) -> CopyCounts: ...
@overload
def scatter(
    device: _Memory,
    host: _Memory,
    pairs: _Pairs,
    *,
    absent: Literal["skip", "zero"] = "skip",
    threads: int = 1,
    stream: _Stream | None = None,
    wait: bool = False,
) -> CopyCounts | None: ...

def out_of_range_count(device: int = 0) -> int: ...
@final
class RowCopy:
    def __new__(
        cls, max_multiprocessors: int | None = 16, version: str | None = None
    ) -> Self: ...
    def __call__(
        self,
        host: _Memory,
        device: _Memory,
        slot_map: _Memory | None,
        pairs: _Pairs,
        *,
        count: _Memory | None = None,
        out_of_range: _Memory | None = None,
        stream: _Stream | None = None,
        wait: bool = False,
    ) -> None: ...

# For forerun.hisparse.
def _swap_in(tables: Any, planned: Any, device: int | None, stream: Any) -> None: ...
def _copy_planned(planned: Any, device: int | None, stream: Any) -> None: ...

# For forerun.kvcacheio.
def _transfer_rows(
    source: Any,
    destination: Any,
    row_bytes: int,
    source_indices: tuple[int, int, int | None],
    destination_indices: tuple[int, int, int | None],
    threads: int,
    device: int,
    stream: int | None,
    kept: object,
) -> None: ...

class _Gpu(TypedDict):
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    pci_address: str

class _DeviceInfo(TypedDict):
    isa: str
    gpus: list[_Gpu]
    no_gpu_because: str | None

def device_info() -> _DeviceInfo: ...
@final
class Items(Iterator[_T], Generic[_T]):
    def __next__(self) -> _T: ...
    def __iter__(self) -> Self: ...

@disjoint_base
class Reader(Mapping[bytes, bytes]):
    @overload
    def get(self, key: _Bytes, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: _Bytes, default: bytes) -> bytes: ...
    @overload
    def get(self, key: _Bytes, default: _T) -> bytes | _T: ...
    @overload
    def multi_get(
        self, keys: _ByteKeys, *, out: None = None, found: None = None
    ) -> list[bytes | None]: ...
    @overload
    def multi_get(
        self, keys: _ByteKeys, *, out: _Array, found: _Bools | None = None
    ) -> _Bools: ...
    def items(
        self,
        *,
        start: _Bytes | None = None,
        end: _Bytes | None = None,
        prefix: _Bytes | None = None,
        reverse: bool = False,
    ) -> ItemsView: ...
    def keys(
        self,
        *,
        start: _Bytes | None = None,
        end: _Bytes | None = None,
        prefix: _Bytes | None = None,
        reverse: bool = False,
    ) -> KeysView: ...
    def values(
        self,
        *,
        start: _Bytes | None = None,
        end: _Bytes | None = None,
        prefix: _Bytes | None = None,
        reverse: bool = False,
    ) -> ValuesView: ...
    def __getitem__(self, key: _Bytes, /) -> bytes: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Items[bytes]: ...
    def __reversed__(self) -> Items[bytes]: ...
    @property
    def closed(self) -> bool: ...

@disjoint_base
class Keyspace(Reader, MutableMapping[bytes, bytes]):
    @property
    def name(self) -> str: ...
    def put(self, key: _Bytes, value: _Bytes) -> None: ...
    def put_many(
        self, keys: _ByteKeys, values: _Values, *, durability: _Durability | None = None
    ) -> None: ...
    def delete(self, key: _Bytes) -> None: ...
    def delete_range(self, start: _Bytes, end: _Bytes) -> None: ...
    @overload
    def pop(self, key: _Bytes, /) -> bytes: ...
    @overload
    def pop(self, key: _Bytes, default: bytes, /) -> bytes: ...
    @overload
    def pop(self, key: _Bytes, default: _T, /) -> bytes | _T: ...
    def popitem(self) -> tuple[bytes, bytes]: ...
    def setdefault(self, key: _Bytes, default: _Bytes, /) -> bytes: ...
    def clear(self) -> None: ...
    def update(  # type: ignore[override]  # Takes no keys as keyword arguments.
        self, other: _Entries, /, *, durability: _Durability | None = None
    ) -> None: ...
    def flush(self) -> None: ...
    def compact(self) -> None: ...
    def __setitem__(self, key: _Bytes, value: _Bytes, /) -> None: ...
    def __delitem__(self, key: _Bytes, /) -> None: ...

@final
class Db(Keyspace):
    def __new__(
        cls,
        path: _PathLike,
        *,
        create: _Create = "if_missing",
        durability: _Durability = "buffered",
        wal: bool = True,
        memory_limit_bytes: _Size | None = None,
        memtable_bytes: _Size | None = None,
        cache_bytes: _Size | None = None,
        background_threads: int | None = None,
        use_direct_reads: bool = False,
        scrub_rate_bytes: _Size | None = None,
        compression: str | None = None,
        bottommost_compression: str | None = None,
        ttl_seconds: float | None = None,
        read_only: bool = False,
        stats_level: Literal["sampled", "all"] = "sampled",
        event_listener: Callable[[DbEvent], object] | None = None,
    ) -> Self: ...
    @property
    def path(self) -> Path: ...
    def keyspace(self, name: str, *, ttl_seconds: float | None = None) -> Keyspace: ...
    def keyspaces(self) -> list[str]: ...
    def drop_keyspace(self, name: str) -> None: ...
    def batch(self, *, durability: _Durability | None = None) -> WriteBatch: ...
    def snapshot(self) -> Snapshot: ...
    def compact(self) -> None: ...
    def wait_idle(self) -> None: ...
    def sync(self) -> None: ...
    def checkpoint(
        self, into: _PathLike, *, rate_bytes: _Size | None = None, progress: _Progress = None
    ) -> None: ...
    def stats(self) -> DbStats: ...
    def prometheus_text(self, prefix: str = "forerun_db") -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Snapshot(Reader):
    def keyspace(self, keyspace: Keyspace) -> Snapshot: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class WriteBatch:
    def put(self, key: _Bytes, value: _Bytes, *, keyspace: Keyspace | None = None) -> None: ...
    def delete(self, key: _Bytes, *, keyspace: Keyspace | None = None) -> None: ...
    def delete_range(
        self, start: _Bytes, end: _Bytes, *, keyspace: Keyspace | None = None
    ) -> None: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: _Bytes, value: _Bytes, /) -> None: ...
    def __delitem__(self, key: _Bytes, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class CacheItems(Iterator[_T], Generic[_T]):
    def __next__(self) -> _T: ...
    def __iter__(self) -> Self: ...

@final
class Cache(MutableMapping[bytes, bytes]):
    def __new__(
        cls, memory_limit_bytes: _Size = 67108864, *, max_item_bytes: _Size | None = None
    ) -> Self: ...
    @overload
    def get(self, key: _Bytes, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: _Bytes, default: bytes) -> bytes: ...
    @overload
    def get(self, key: _Bytes, default: _T) -> bytes | _T: ...
    def gets(self, key: _Bytes) -> tuple[bytes, int] | None: ...
    @overload
    def multi_get(
        self, keys: _ByteKeys, *, out: None = None, found: None = None
    ) -> list[bytes | None]: ...
    @overload
    def multi_get(
        self, keys: _ByteKeys, *, out: _Array, found: _Bools | None = None
    ) -> _Bools: ...
    def set(self, key: _Bytes, value: _Bytes, *, ttl_seconds: int | None = None) -> int | None: ...
    def add(self, key: _Bytes, value: _Bytes, *, ttl_seconds: int | None = None) -> int | None: ...
    def replace(
        self, key: _Bytes, value: _Bytes, *, ttl_seconds: int | None = None
    ) -> int | None: ...
    def compare_and_set(
        self, key: _Bytes, value: _Bytes, version: int, *, ttl_seconds: int | None = None
    ) -> int | None: ...
    def set_many(
        self, keys: _ByteKeys, values: _Values, *, ttl_seconds: int | None = None
    ) -> None: ...
    def delete(self, key: _Bytes) -> bool: ...
    @overload
    def pop(self, key: _Bytes, /) -> bytes: ...
    @overload
    def pop(self, key: _Bytes, default: bytes, /) -> bytes: ...
    @overload
    def pop(self, key: _Bytes, default: _T, /) -> bytes | _T: ...
    def popitem(self) -> tuple[bytes, bytes]: ...
    def setdefault(
        self, key: _Bytes, default: _Bytes, /, *, ttl_seconds: int | None = None
    ) -> bytes: ...
    def update(  # type: ignore[override]  # Takes no keys as keyword arguments.
        self, other: _Entries, /, *, ttl_seconds: int | None = None
    ) -> None: ...
    def touch(self, key: _Bytes, ttl_seconds: int | None = None) -> bool: ...
    def increment(self, key: _Bytes, delta: int = 1) -> int | None: ...
    def decrement(self, key: _Bytes, delta: int = 1) -> int | None: ...
    def clear(self) -> None: ...
    def stats(self) -> CacheStats: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def keys(self) -> KeysView: ...
    def values(self) -> ValuesView: ...
    def items(self) -> ItemsView: ...
    def __iter__(self) -> CacheItems[bytes]: ...
    __reversed__: ClassVar[None]
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: _Bytes, /) -> bytes: ...
    def __setitem__(self, key: _Bytes, value: _Bytes, /) -> None: ...
    def __delitem__(self, key: _Bytes, /) -> None: ...

_Given = TypeVar("_Given", bound=_Memory)

@final
class Export(Iterator[tuple[NDArray[np.uint64], _Array]]):
    def __next__(self) -> tuple[NDArray[np.uint64], _Array]: ...
    def __iter__(self) -> Self: ...

@final
class TableItems(Iterator[_T], Generic[_T]):
    def __next__(self) -> _T: ...
    def __iter__(self) -> Self: ...

@final
class Table:
    def __new__(
        cls,
        dim: int,
        dtype: _Dtype = "float32",
        *,
        path: _PathLike | None = None,
        memory: _Size | None = None,
        host_capacity: int | None = None,
        host_bytes: _Size | None = None,
        cache_bytes: _Size | None = None,
        compression: str | None = None,
        device_capacity: int = 0,
        device: Literal["any", "cpu"] | int | None = None,
        evict_strategy: Literal["lru", "lfu", "customized"] = "lfu",
        admission: Literal["always", "second_touch", "by_score"] = "second_touch",
        writes: Literal["through", "back"] = "through",
        when_full: Literal["refuse", "evict"] | None = None,
        create: _Create = "if_missing",
        read_only: bool = False,
    ) -> Self: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def gpu(self) -> int | None: ...
    @property
    def closed(self) -> bool: ...
    @overload
    def find(
        self, keys: _Keys, out: None = None, found: _Flags | None = None, *, stream: None = None
    ) -> tuple[_Array, _Bools]: ...
    @overload
    def find(
        self,
        keys: _Keys,
        out: _Given,
        found: _Flags | None = None,
        *,
        stream: _Stream | None = None,
    ) -> tuple[_Given, _Bools]: ...
    @overload
    def find_async(
        self, keys: _Keys, out: None = None, *, stream: None = None
    ) -> Future[tuple[_Array, _Bools]]: ...
    @overload
    def find_async(
        self, keys: _Keys, out: _Given, *, stream: _Stream | None = None
    ) -> Future[tuple[_Given, _Bools]]: ...
    @overload
    def find_pooled(
        self,
        keys: _Keys,
        offsets: _Keys,
        *,
        weights: _Memory | None = None,
        mode: Literal["sum", "mean"] = "sum",
        dtype: _Dtype = "float32",
        out: None = None,
    ) -> tuple[_Array, NDArray[np.uint32]]: ...
    @overload
    def find_pooled(
        self,
        keys: _Keys,
        offsets: _Keys,
        *,
        weights: _Memory | None = None,
        mode: Literal["sum", "mean"] = "sum",
        dtype: _Dtype = "float32",
        out: _Given,
    ) -> tuple[_Given, NDArray[np.uint32]]: ...
    def contains(self, keys: _Keys) -> _Bools: ...
    def insert(self, keys: _Keys, rows: _Rows, *, scores: _Keys | None = None) -> None: ...
    def import_rows(self, keys: _Keys, rows: _Rows, *, scores: _Keys | None = None) -> None: ...
    def assign(self, keys: _Keys, rows: _Rows) -> _Bools: ...
    def add_at(self, keys: _Keys, rows: _Rows) -> _Bools: ...
    def erase(self, keys: _Keys) -> None: ...
    def prefetch(self, keys: _Keys) -> None: ...
    def wait_idle(self) -> None: ...
    def export(self, batch: int = 65536) -> Export: ...
    def flush(self) -> None: ...
    def checkpoint(
        self, into: _PathLike, *, rate_bytes: _Size | None = None, progress: _Progress = None
    ) -> None: ...
    def stats(self) -> TableStats: ...
    def close(self) -> None: ...
    def keys(self) -> TableItems[int]: ...
    def values(self) -> TableItems[_Array]: ...
    def items(self) -> TableItems[tuple[int, _Array]]: ...
    def __iter__(self) -> TableItems[int]: ...
    __reversed__: ClassVar[None]
    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    @overload
    def get(self, key: int) -> _Array | None: ...
    @overload
    def get(self, key: int, default: _T) -> _Array | _T: ...
    def __getitem__(self, key: int, /) -> _Array: ...
    def __setitem__(self, key: int, row: _Rows, /) -> None: ...
    def __delitem__(self, key: int, /) -> None: ...
    # For forerun.torch and forerun.exchange.
    def _add_marked(self, keys: _Keys, rows: _Rows, marks: NDArray[np.uint8]) -> None: ...
    def _metadata(self, name: str) -> bytes | None: ...
    def _put_metadata(self, name: str, value: bytes) -> None: ...
    # For forerun.ray.
    def _write_once(
        self, client: bytes, sequence: int, op: str, keys: _Keys, rows: _Rows | None
    ) -> NDArray[np.uint8]: ...
    def _applied(self, client: bytes) -> tuple[int, int, NDArray[np.uint8], int] | None: ...
    def _forget_client(self, client: bytes) -> bool: ...
    def _forget_clients(self, older_than_seconds: int) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

# For the package's own benchmark.
def _find_seconds(table: Table, batches: Sequence[_Keys], out: _Memory, found: _Flags) -> float: ...

# For forerun.gpu_table and forerun.ray.
_GpuTable = GpuTableHandle
_ShardBatch = ShardBatch
_buckets = buckets
_size_bytes = size_bytes
