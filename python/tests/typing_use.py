"""Uses of the package that type checkers must accept, with the types that they must infer.

It is checked, not run.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import forerun
import numpy as np
from forerun import aio
from forerun.events import DbEvent
from forerun.stats import DbStats
from numpy.typing import NDArray
from typing_extensions import assert_type


def stores(path: Path) -> None:
    with forerun.Db(path, create=False, cache_bytes="1GiB", durability="synced") as db:
        assert_type(db.get("key"), bytes | None)
        assert_type(db.get("key", 7), bytes | int)
        assert_type(db["key"], bytes)
        assert_type(db.pop("key"), bytes)
        assert_type(db.multi_get(["a", b"b"]), list[bytes | None])
        out = np.zeros((2, 4), np.uint8)
        assert_type(db.multi_get(np.arange(2), out=out), NDArray[np.bool_])
        db.put_many(np.arange(2), np.zeros((2, 16)))
        db.update({"a": b"1"})
        db.update({b"a": "1"})
        db.update([("a", b"1")])
        db.update(db)
        users = db.keyspace("users", ttl_seconds=60)
        with db.batch() as batch:
            batch["a"] = b"1"
            batch.put("b", b"2", keyspace=users)
            del batch["c"]
        with db.snapshot() as before:
            assert_type(before.keyspace(users), forerun.Snapshot)
            entries: Iterator[tuple[bytes, bytes]] = iter(before.items(prefix="a", reverse=True))
            assert_type(list(before), list[bytes])
            assert_type(before.keys() & {b"a"}, set[bytes])
            frozen: Mapping[bytes, bytes] = before
            print(frozen.get(b"a"))
        assert_type(dict(entries), dict[bytes, bytes])
        stats: DbStats = db.stats()
        assert_type(stats["levels_runs"], int)
        assert_type(db.setdefault("a", b"1"), bytes)
        assert_type(db.popitem(), tuple[bytes, bytes])
        changed: MutableMapping[bytes, bytes] = users
        changed.clear()
        assert_type(db.path, Path)


def events(path: Path) -> None:
    def listen(event: DbEvent) -> None:
        if event["event"] == "compaction_ended":
            assert_type(event["written_bytes"], int)
            assert_type(event["error"], Exception | None)
        elif event["event"] == "background_error":
            raise event["error"]

    forerun.Db(path, event_listener=listen).close()


def backups(db: forerun.Db, table: forerun.Table) -> list[str]:
    with forerun.Backups("backups", create="if_missing") as backups:
        assert_type(backups.create(db), forerun.Backup)
        newest = backups.create(table).number
        assert_type([backup.bytes for backup in backups.list().backups], list[int])
        backups.restore(Path("restored"), number=newest)
        return backups.verify().problems


def tables(keys: NDArray[np.int32], out: NDArray[np.float32]) -> None:
    with forerun.Table(16, np.float32, path="rows", memory="2GiB", create="never") as table:
        rows, found = table.find(keys)
        assert_type(found, NDArray[np.bool_])
        table.insert(keys, rows)
        table.insert([1, 2], [[0.0] * 16] * 2, scores=[1, 2])
        assert_type(table.add_at(keys, rows), NDArray[np.bool_])
        assert_type(table.find(keys, out)[0], NDArray[np.float32])
        pooled, counts = table.find_pooled(keys, [0, 2, 3], weights=out[0], mode="mean")
        assert_type(counts, NDArray[np.uint32])
        assert_type(table.find_pooled(keys, [0, 3], out=out)[0], NDArray[np.float32])
        table.insert([1, 2], pooled)
        for exported, _ in table.export(batch=1000):
            assert_type(exported, NDArray[np.uint64])
        assert_type(list(table), list[int])
        assert_type(table.path, Path | None)
        row = table.get(7)
        if row is not None:
            print(row.sum())


async def later(table: forerun.Table) -> int:
    _, found = await table.find_async([1, 2, 3])
    return int(found.sum())


def caches() -> None:
    cache = forerun.Cache("64MiB")
    assert_type(list(cache.items()), list[tuple[bytes, bytes]])
    assert_type(cache.setdefault("a", "1", ttl_seconds=60), bytes)
    assert_type(cache.multi_get(["a"]), list[bytes | None])
    assert_type(cache.set("a", b"1", ttl_seconds=60), int | None)
    versioned = cache.gets("a")
    if versioned is not None:
        value, version = versioned
        cache.compare_and_set("a", value, version)
    for gpu in forerun.device_info()["gpus"]:
        assert_type(gpu["memory_bytes"], int)


def clients(out: NDArray[np.float32]) -> None:
    with forerun.Client(["10.0.1.1", "10.0.1.2:11211:3"], ring="rendezvous") as client:
        assert_type(client.get("a"), bytes | None)
        assert_type(client.get("a", 7), bytes | int)
        assert_type(client.multi_get(["a", b"b"]), list[bytes | None])
        assert_type(client.multi_get(np.arange(2), out=out), NDArray[np.bool_])
        client.set_many(["a"], [b"1"], ttl_seconds=60)
        assert_type(client.delete_many(["a"]), int)
        versioned = client.gets("a")
        if versioned is not None:
            assert_type(client.compare_and_set("a", "2", versioned[1]), bool)
        assert_type(client.stats()["get_hits"], int)
        assert_type(client.servers, list[str])
    forerun.Client("/run/memcached.sock", tls_ca_file=Path("ca.pem"), on_failure="miss")


async def event_loops(out: NDArray[np.float32]) -> None:
    async with aio.Client(["10.0.1.1"], max_calls=16, protocol="meta") as client:
        assert_type(await client.get("a"), bytes | None)
        assert_type(await client.get("a", b""), bytes)
        assert_type(await client.multi_get(["a"]), list[bytes | None])
        assert_type(await client.multi_get(np.arange(2), out=out), NDArray[np.bool_])
        assert_type(await client.gets("a"), tuple[bytes, int] | None)
        assert_type(await client.increment("a"), int | None)
        await client.set_many(["a"], [b"1"])


def copies(host: NDArray[np.uint8], device: NDArray[np.uint8]) -> int:
    counts = forerun.gather(host, device, (np.arange(3), np.arange(3)))
    assert_type(counts, forerun.CopyCounts)
    return counts.rows
