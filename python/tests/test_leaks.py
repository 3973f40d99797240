"""Calls leak nothing, neither Python objects nor memory of the process.

FORERUN_LEAK_CALLS sets how many calls of each kind are made; 1_000_000 take a minute or two.
"""

import gc
import os
import sys

import forerun
import numpy as np
import pytest

CALLS = int(os.environ.get("FORERUN_LEAK_CALLS", "10000"))
# Memory that may come and go for other reasons: allocators keep some of what was freed.
SLACK_BYTES = 6 << 20
SLACK_BLOCKS = 500


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def refused(call, *arguments):
    try:
        call(*arguments)
    except forerun.Error:
        return
    raise AssertionError("the call was not refused")


def kinds(directory):
    """The calls, by name."""
    keys, other = np.arange(64, dtype=np.uint64), np.arange(64, 128)
    rows, out, found = (
        np.ones((64, 16), np.float32),
        np.empty((64, 16), np.float32),
        np.empty(64, bool),
    )
    table = forerun.Table(16, host_capacity=1000)
    table.insert(keys, rows)
    db = forerun.Db(directory / "store")
    names = [b"key%d" % key for key in keys]
    db.put_many(names, rows.view(np.uint8))
    cache = forerun.Cache(16 << 20)
    for nth in range(1000):  # the cache allocates memory as it uses it, so use all of it now
        cache.set(b"filling%d" % nth, b"x" * 40_000)
    cache.set_many(names, rows.view(np.uint8))
    # Nothing listens there, so the server is left out after the first calls.
    client = forerun.Client("127.0.0.1:1", retry_interval_ms=3_600_000)
    pairs, wrong = np.stack([other - 64, other - 64], axis=1), np.empty((64, 15), np.float32)
    return {
        "Table.find": lambda: table.find(keys),
        "Table.find of missing keys, out and found given": lambda: table.find(other, out, found),
        "Table.find refused": lambda: refused(table.find, keys, wrong),
        "Table.insert": lambda: table.insert(keys, rows),
        "Table.add_at": lambda: table.add_at(keys, rows),
        "Table.contains": lambda: table.contains(keys),
        "Table.get": lambda: table.get(7),
        "Table.items": lambda: next(iter(table.items())),
        "Db.get": lambda: db.get(b"key7"),
        "Db.multi_get": lambda: db.multi_get(names),
        "Db.multi_get(out)": lambda: db.multi_get(names, out=out),
        "Db.items": lambda: next(iter(db.items(prefix="key"))),
        "Db.keys": lambda: (len(db.keys(prefix="key")), b"key7" in db.keys()),
        "Db.snapshot": lambda: db.snapshot().close(),
        "Cache.get": lambda: cache.get(b"key7"),
        "Cache.set": lambda: cache.set(b"key7", b"value"),
        "Cache.multi_get": lambda: cache.multi_get(names),
        "Client.multi_get refused": lambda: refused(client.multi_get, names),
        "Client.set_many refused": lambda: refused(client.set_many, names, names),
        "gather": lambda: forerun.gather(rows, out, pairs),
        "gather refused": lambda: refused(forerun.gather, rows, out, other),
    }


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"),
    reason="the system does not report how much memory is in use",
)
def test_calls_leak_nothing(tmp_path):
    grown = {}
    for name, call in kinds(tmp_path).items():
        for _ in range(CALLS // 10):  # one-time allocations happen here
            call()
        gc.collect()
        blocks, resident = sys.getallocatedblocks(), resident_bytes()
        for _ in range(CALLS):
            call()
        gc.collect()
        blocks, resident = sys.getallocatedblocks() - blocks, resident_bytes() - resident
        if blocks > SLACK_BLOCKS or resident > SLACK_BYTES:
            grown[name] = f"{blocks} objects, {resident} bytes after {CALLS} calls"
    assert not grown


def test_a_leak_would_be_detected():
    kept, blocks = [], sys.getallocatedblocks()
    for _ in range(CALLS):
        kept.append(np.empty(1))
    assert sys.getallocatedblocks() - blocks > SLACK_BLOCKS
