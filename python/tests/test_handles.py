"""What every class of the package does as a Python object."""

import copy
import pickle

import forerun
import numpy as np
import pytest


@pytest.fixture
def handles(tmp_path):
    db, table, cache = forerun.Db(tmp_path / "store"), forerun.Table(4), forerun.Cache(16 << 20)
    db["key"] = cache["key"] = b"value"
    table[7] = np.ones(4, np.float32)
    rows = np.zeros((2, 4))
    yield {
        "Db": db,
        "Keyspace": db.keyspace("other"),
        "Snapshot": db.snapshot(),
        "WriteBatch": db.batch(),
        "Items": db.items(),
        "Table": table,
        "Export": table.export(),
        "TableItems": table.items(),
        "Cache": cache,
        "CacheItems": cache.items(),
        "CopyCounts": forerun.gather(rows, rows.copy(), np.zeros((1, 2), np.int64)),
    }
    db.close()


def test_no_handle_can_be_pickled_and_each_says_so(handles):
    classes = {name for name in forerun.__all__ if isinstance(getattr(forerun, name), type)}
    assert set(handles) == {name for name in classes if not issubclass(getattr(forerun, name), Exception)}
    for name, handle in handles.items():
        for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(forerun.errors.InvalidArgumentError, match="pickled"):
                refuse(handle)
                raise AssertionError(name)


def test_whatever_can_be_closed_is_closed_by_its_block(tmp_path):
    with forerun.Db(tmp_path / "store") as db, db.snapshot() as before, forerun.Cache(16 << 20) as cache, forerun.Table(4) as table:
        handles = [db, before, cache, table]
        assert not any(handle.closed for handle in handles)
    assert all(handle.closed for handle in handles)
    for handle, key in zip(handles, ["key", "key", "key", 7]):
        for ask in (lambda: handle[key], lambda: key in handle, lambda: len(handle), lambda: next(iter(handle))):
            with pytest.raises(forerun.errors.ClosedError):
                ask()
        handle.close()
    assert repr(cache) == "forerun.Cache(closed)" and "closed" in repr(table)


def test_a_store_and_its_snapshot_know_how_much_they_hold(tmp_path):
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
            table.load(rest, np.stack([model[key] for key in rest]).astype(np.int32))
            assert table and len(table) == 1000
            assert sorted(table) == sorted(table.keys()) == list(model)
            assert {key: row.tolist() for key, row in table.items()} == {key: row.tolist() for key, row in model.items()}
            assert sorted(row[0] for row in table.values()) == list(model)
            del table[3]
            assert 3 not in table and table.get(3) is None and table.get(3, "none") == "none"
            assert table.get(6).tolist() == table[6].tolist() == [6] * 4
            for missing in (lambda: table[3], lambda: table.__delitem__(3)):
                with pytest.raises(KeyError):
                    missing()
            with pytest.raises(forerun.errors.InvalidArgumentError, match="4 int32"):
                table[3] = np.zeros(5, np.int32)


def test_a_cache_can_be_gone_through():
    with forerun.Cache(32 << 20) as cache:
        model = {b"key%d" % i: b"value%d" % i for i in range(5000)}
        cache.set_many(list(model), list(model.values()))
        assert dict(cache.items()) == model
        assert set(cache) == set(cache.keys()) == set(model)
        assert sorted(cache.values()) == sorted(model.values())
        entries = cache.items()
    assert len(list(entries)) == 5000, "an iterator keeps what it goes through"
