"""Forerun: a key-value engine built for batched lookups.

>>> import forerun, tempfile
>>> with forerun.Db(tempfile.mkdtemp() + "/towns") as db:
...     db["oslo"] = b"59.91,10.75"
...     db.put_many(["bern", "bonn"], [b"46.95,7.45", b"50.73,7.10"])
...     db.multi_get(["bonn", "lyon", "oslo"])
[b'50.73,7.10', None, b'59.91,10.75']
"""

from collections.abc import Mapping, MutableMapping

from forerun import errors, views
from forerun._forerun import (
    Backup,
    BackupList,
    Backups,
    Cache,
    CacheItems,
    Client,
    BackupVerifyReport,
    CopyCounts,
    Db,
    Export,
    HostRows,
    HotPlan,
    HotPool,
    HotPoolCounts,
    Items,
    Keyspace,
    RemovedBackups,
    RowCopy,
    Snapshot,
    Table,
    TableItems,
    WriteBatch,
    __version__,
    device_info,
    gather,
    out_of_range_count,
    scatter,
)
from forerun._forerun import Reader as _Reader
from forerun.errors import Error, ForkedError
from forerun.gpu_table import GpuTable

__all__ = [
    "Backup",
    "BackupList",
    "Backups",
    "Cache",
    "CacheItems",
    "Client",
    "BackupVerifyReport",
    "CopyCounts",
    "Db",
    "Error",
    "Export",
    "ForkedError",
    "GpuTable",
    "HostRows",
    "HotPlan",
    "HotPool",
    "HotPoolCounts",
    "Items",
    "Keyspace",
    "RemovedBackups",
    "RowCopy",
    "Snapshot",
    "Table",
    "TableItems",
    "WriteBatch",
    "__version__",
    "device_info",
    "errors",
    "gather",
    "out_of_range_count",
    "scatter",
    "views",
]

# Unlike two dicts, two handles are equal only if they are the same object: comparing contents would
# read both stores.
Mapping.register(_Reader)  # pyright: ignore[reportAttributeAccessIssue]
MutableMapping.register(Keyspace)  # pyright: ignore[reportAttributeAccessIssue]
MutableMapping.register(Cache)  # pyright: ignore[reportAttributeAccessIssue]
