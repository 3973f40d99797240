"""How every class of the package behaves as a Python object."""

import copy
import pickle
import re

import forerun
import numpy as np
import pytest
from forerun.stats import CacheStats, ClientStats, DbStats, TableStats


@pytest.fixture
def handles(tmp_path):
    db, table, cache = forerun.Db(tmp_path / "store"), forerun.Table(4), forerun.Cache(16 << 20)
    db["key"] = cache["key"] = b"value"
    table[7] = np.ones(4, np.float32)
    rows = np.zeros((2, 4))
    backups = forerun.Backups(tmp_path / "backups")
    pool = forerun.HotPool(np.zeros((1, 8, 4), "f4"), np.zeros((1, 4, 4), "f4"), slots=4)
    yield {
        "Backup": backups.create(db),
        "Backups": backups,
        "BackupList": backups.list(),
        "BackupVerifyReport": backups.verify(),
        "RemovedBackups": backups.purge_old(1),
        "Db": db,
        "Keyspace": db.keyspace("other"),
        "Snapshot": db.snapshot(),
        "WriteBatch": db.batch(),
        "Items": iter(db.items()),
        "Table": table,
        "Export": table.export(),
        "TableItems": table.items(),
        "GpuTable": forerun.GpuTable(100, 1, device="cpu"),
        "HotPool": pool,
        "HotPlan": pool.new_plan(),
        "HotPoolCounts": pool.counts(),
        "HostRows": forerun.HostRows(np.zeros((8, 16), "u1"), table),
        "Cache": cache,
        "CacheItems": iter(cache.items()),
        "Client": forerun.Client("127.0.0.1:1"),
        "CopyCounts": forerun.gather(rows, rows.copy(), np.zeros((1, 2), np.int64)),
        "RowCopy": forerun.RowCopy(),
    }
    backups.close()
    db.close()


def test_the_types_of_statistics_list_their_keys(handles):
    types = {"Db": DbStats, "Cache": CacheStats, "Client": ClientStats, "Table": TableStats}
    for name, of_type in types.items():
        metrics = handles[name].stats()
        assert list(metrics) == list(of_type.__annotations__)
        assert {type(value) for value in metrics.values()} == {int}


def test_pickling_a_handle_is_an_error(handles):
    classes = {name for name in forerun.__all__ if isinstance(getattr(forerun, name), type)}
    assert set(handles) == {
        name for name in classes if not issubclass(getattr(forerun, name), Exception)
    }
    for name, handle in handles.items():
        for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(forerun.errors.InvalidArgumentError, match="pickled"):
                refuse(handle)
                raise AssertionError(name)


def test_a_with_block_closes_its_handle(tmp_path):
    with (
        forerun.Db(tmp_path / "store") as db,
        db.snapshot() as before,
        forerun.Cache(16 << 20) as cache,
        forerun.Table(4) as table,
    ):
        handles = [db, before, cache, table]
        assert not any(handle.closed for handle in handles)
    assert all(handle.closed for handle in handles)
    for handle, key in zip(handles, ["key", "key", "key", 7]):
        for ask in (
            lambda: handle[key],
            lambda: key in handle,
            lambda: len(handle),
            lambda: next(iter(handle)),
        ):
            with pytest.raises(forerun.errors.ClosedError):
                ask()
        handle.close()
    assert repr(cache) == "forerun.Cache(closed)" and "closed" in repr(table)


def test_len_of_a_store_and_its_snapshot(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        other = db.keyspace("other")
        assert not db and len(db) == 0 and list(db) == []
        db.put_many([b"%d" % i for i in range(1000)], [b""] * 1000)
        before = db.snapshot()
        del db["7"]
        assert (len(db), len(before), len(other)) == (999, 1000, 0)
        assert db and before and not other


def test_a_table_is_a_dict_of_rows(tmp_path):
    for path in (None, tmp_path / "rows"):
        with forerun.Table(4, "int32", path=path) as table:
            assert not table and list(table) == []
            model = {key: np.full(4, key) for key in range(0, 3000, 3)}
            for key in list(model)[:10]:
                table[key] = model[key].astype(np.int32)
            rest = list(model)[10:]
            table.import_rows(rest, np.stack([model[key] for key in rest]).astype(np.int32))
            assert table and len(table) == 1000
            assert sorted(table) == sorted(table.keys()) == list(model)
            assert {key: row.tolist() for key, row in table.items()} == {
                key: row.tolist() for key, row in model.items()
            }
            assert sorted(row[0] for row in table.values()) == list(model)
            del table[3]
            assert 3 not in table and table.get(3) is None and table.get(3, "none") == "none"
            assert table.get(6).tolist() == table[6].tolist() == [6] * 4
            for missing in (lambda: table[3], lambda: table.__delitem__(3)):
                with pytest.raises(KeyError):
                    missing()
            invalid = forerun.errors.InvalidArgumentError
            with pytest.raises(invalid, match="1 x 4 elements of int32"):
                table[3] = np.zeros(5, np.int32)


def test_a_cache_can_be_iterated():
    with forerun.Cache(32 << 20) as cache:
        model = {b"key%d" % i: b"value%d" % i for i in range(5000)}
        cache.set_many(list(model), list(model.values()))
        assert dict(cache.items()) == model
        assert set(cache) == set(cache.keys()) == set(model)
        assert sorted(cache.values()) == sorted(model.values())
        entries = iter(cache.items())
    assert len(list(entries)) == 5000, "an iterator keeps its cache alive"


def test_a_repr_tells_what_the_object_is_and_never_an_address(tmp_path, handles):
    store = re.escape(f'"{tmp_path / "store"}"')
    expected = {
        "Db": rf"{store}, memtables_used_bytes=\d+, cache_used_bytes=\d+, runs=1, run_bytes=\d+",
        "Keyspace": '"other", memtable_bytes=0, runs=0, run_bytes=0',
        "Snapshot": r"sequence=\d+",
        "WriteBatch": rf"{store}, operations=0, bytes=\d+",
        "Items": 'of="store", part="items"',
        "Table": r'dim=4, dtype="float32", host_rows=1',
        "Export": 'of="table", dim=4, dtype="float32"',
        "TableItems": 'of="table", part="items", dim=4, dtype="float32"',
        "Cache": rf"memory_limit_bytes={16 << 20}, memory_bytes=\d+, items=1",
        "CacheItems": 'of="cache", part="items"',
        "Client": r'servers=\["127.0.0.1:1"\], ring="ketama"',
        "Backups": re.escape(f'"{tmp_path / "backups"}"'),
        "Backup": "number=1.*",
        "BackupList": "backups=.*",
        "BackupVerifyReport": "backups=1.*",
        "RemovedBackups": "backups=.*",
        "CopyCounts": "rows=1.*",
        "RowCopy": "max_multiprocessors=16, version=None",
        "GpuTable": "128 slots, 1 x float32, on cpu",
        "HotPool": 'device="cpu"',
        "HotPlan": 'device="cpu"',
        "HotPoolCounts": "hits=0, misses=0, absent=0",
        "HostRows": r"table=forerun\.Table\(.*\)",
    }
    assert set(expected) == set(handles)
    for name, handle in handles.items():
        assert re.fullmatch(rf"forerun\.{name}\({expected[name]}\)", repr(handle)), repr(handle)
    db, users = handles["Db"], handles["Db"].keyspace("users")
    with db.snapshot() as snapshot:
        of_users = snapshot.keyspace(users)
        assert repr(of_users).startswith('forerun.Snapshot("users", sequence=')
        views = [db.keys(prefix="a", reverse=True), users.items(), of_users.values()]
        assert all(" at 0x" not in repr(view) for view in views)
        assert repr(views[0]).endswith(", prefix=b'a', reverse=True)")
    assert repr(snapshot) == "forerun.Snapshot(closed)"
    for name in ("Db", "Cache", "Table"):
        handles[name].close()
        assert "closed)" in repr(handles[name])


@pytest.mark.parametrize("text", ["abc", b"abc", bytearray(b"abc")])
def test_one_text_is_not_many_keys_or_values(tmp_path, text):
    with forerun.Db(tmp_path / "store") as db, forerun.Cache(16 << 20) as cache:
        for ask in (
            lambda: db.multi_get(text),
            lambda: db.multi_get(text, out=np.zeros((3, 1), np.uint8)),
            lambda: cache.multi_get(text),
            lambda: db.put_many(text, [b"1"] * 3),
            lambda: db.put_many(["a", "b", "c"], text),
            lambda: cache.set_many(["a", "b", "c"], text),
        ):
            with pytest.raises(TypeError, match="not one"):
                ask()
        assert len(db) == len(cache) == 0


def test_a_missing_key_is_a_key_error_when_it_is_deleted_or_popped(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Cache(16 << 20) as cache:
        for handle in (db, db.keyspace("other"), cache):
            handle["key"] = b"value"
            with pytest.raises(KeyError, match="missing"):
                del handle["missing"]
            with pytest.raises(KeyError, match="missing"):
                handle.pop("missing")
            assert handle.pop("missing", 7) == 7 and handle.pop("missing", None) is None
            with pytest.raises(TypeError):
                handle.pop("missing", 1, 2)
            with pytest.raises(TypeError, match="at most one default"):
                handle.pop("key", 1, 2)
            assert handle.pop("key") == b"value" and "key" not in handle
            handle["key"] = b"value"
            del handle["key"]
            assert "key" not in handle
            handle.delete("missing")


def test_update_takes_a_mapping_or_pairs_and_the_last_value_of_a_key_counts(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Cache(16 << 20) as cache:
        for handle in (db, db.keyspace("other"), cache):
            handle.update({"a": b"1", "b": "two"})
            handle.update([("b", b"2"), ("c", b"3"), ("c", b"4")])
            assert dict(handle.items()) == {b"a": b"1", b"b": b"2", b"c": b"4"}
            handle.update({})
            handle.update([("d", b"1"), (b"d", b"2"), (bytearray(b"d"), b"3")])
            assert handle["d"] == b"3"
            with pytest.raises(TypeError, match="a key and a value"):
                handle.update([("d", b"1", b"2")])
            with pytest.raises(TypeError):
                handle.update(7)
        db.keyspace("copy").update(db)
        assert dict(db.keyspace("copy").items()) == dict(db.items())


def test_flags_without_an_array_for_the_values_are_refused(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Cache(16 << 20) as cache:
        for handle in (db, cache):
            with pytest.raises(forerun.errors.InvalidArgumentError, match="`out` is missing"):
                handle.multi_get(["a"], found=np.zeros(1, bool))


def test_every_argument_of_a_constructor_is_documented():
    import inspect

    for cls in (forerun.Db, forerun.Cache, forerun.Table):
        for name in inspect.signature(cls).parameters:
            assert f"`{name}`" in cls.__doc__, f"{cls.__name__}: {name}"
