"""`forerun.Db` against a dict, and what it says when asked for the impossible."""

import pickle
import random
import threading

import forerun
import numpy as np
import pytest


@pytest.fixture
def db(tmp_path):
    with forerun.Db(tmp_path / "store", memtable_bytes=1 << 20) as db:
        yield db


def test_agrees_with_a_dict_through_random_operations_and_a_reopening(tmp_path):
    random.seed(7)
    path = tmp_path / "store"
    model = {}
    for _ in range(3):
        with forerun.Db(path, memtable_bytes=1 << 20) as db:
            for _ in range(2000):
                key = b"key%03d" % random.randrange(300)
                match random.randrange(5):
                    case 0 | 1:
                        db[key] = model[key] = random.randbytes(random.randrange(40))
                    case 2:
                        db.delete(key)
                        model.pop(key, None)
                    case 3:
                        assert db.get(key) == model.get(key)
                        assert (key in db) == (key in model)
                    case 4:
                        keys = [b"key%03d" % random.randrange(300) for _ in range(20)]
                        assert db.multi_get(keys) == [model.get(key) for key in keys]
            assert dict(db.items()) == model
            db.flush()
            assert list(db) == sorted(model)
            assert list(db.values(reverse=True)) == [model[key] for key in sorted(model, reverse=True)]


def test_long_scans_are_fetched_in_parts_without_a_gap(db):
    keys = np.arange(10_000, dtype=np.uint64)
    db.put_many(keys, keys.view(np.uint8).reshape(-1, 8))
    in_order = [int(key).to_bytes(8, "big") for key in keys]
    assert list(db.keys()) == in_order
    assert list(db.keys(reverse=True)) == in_order[::-1]
    middle = list(db.keys(start=in_order[1234], end=in_order[5678]))
    assert middle == in_order[1234:5678]
    assert list(db.keys(prefix=b"\0" * 6 + b"\x01")) == in_order[256:512]


def test_values_are_copied_into_an_array_of_any_type(db):
    keys = np.arange(1000, dtype=np.uint64)
    rows = np.random.default_rng(1).random((1000, 16), dtype=np.float32)
    db.put_many(keys[:900], rows[:900].view(np.uint8))
    out = np.full((1000, 16), -1, dtype=np.float32)
    found = db.multi_get_into(keys[::-1].copy(), out)
    assert found.tolist() == [False] * 100 + [True] * 900
    assert (out[100:] == rows[:900][::-1]).all()
    assert (out[:100] == -1).all()
    again = np.zeros(1000, dtype=bool)
    assert db.multi_get_into(keys, out, found=again) is again
    assert again.sum() == 900


@pytest.mark.parametrize(
    "keys, out",
    [
        (np.arange(2, dtype=np.int32), np.zeros((2, 8), np.uint8)),
        ([b"a", 1], np.zeros((2, 8), np.uint8)),
        ([b"a", b"b"], np.zeros((3, 8), np.uint8)),
        ([b"a", b"b"], np.zeros((2, 7), np.uint8)),
        ([b"a", b"b"], np.zeros((8, 2), np.uint8).T),
        ([b"a", b"b"], "nothing"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_words(db, keys, out):
    db.put_many([b"a", b"b"], [b"12345678", b"12345678"])
    with pytest.raises(forerun.errors.InvalidArgumentError):
        db.multi_get_into(keys, out)


def test_a_batch_is_applied_whole_or_not_at_all(db):
    with db.batch() as batch:
        batch["one"] = b"1"
        batch.put("two", b"2")
        del batch["one"]
        assert len(batch) == 3
        assert "two" not in db
    assert dict(db.items()) == {b"two": b"2"}
    with pytest.raises(RuntimeError):
        with db.batch() as batch:
            batch.put("three", b"3")
            raise RuntimeError
    assert "three" not in db


def test_a_snapshot_stays_as_it_is(db):
    db["key"] = b"old"
    with db.snapshot() as snapshot:
        db["key"] = b"new"
        db.delete_range("a", "z")
        assert snapshot["key"] == b"old"
        assert list(snapshot.items()) == [(b"key", b"old")]
        assert list(db) == []
    with pytest.raises(forerun.errors.ClosedError):
        snapshot.get("key")


def test_keyspaces_are_apart_and_a_batch_goes_across_them(tmp_path):
    path = tmp_path / "store"
    with forerun.Db(path) as db:
        users, sessions = db.keyspace("users"), db.keyspace("sessions", ttl_seconds=3600)
        assert (users.name, db.keyspaces()) == ("users", ["users", "sessions"])
        with db.batch() as batch:
            batch.put("1", b"Ada", keyspace=users)
            batch.put("1", b"here", keyspace=sessions)
            batch.put("1", b"own")
        with db.snapshot() as before:
            users.put_many(["2", "3"], [b"Bob", b"Cid"])
            users["1"] = b"Ada L."
            assert before.keyspace(users).multi_get(["1", "2"]) == [b"Ada", None]
            assert before["1"] == b"own"
        assert dict(users.items()) == {b"1": b"Ada L.", b"2": b"Bob", b"3": b"Cid"}
        assert (db["1"], sessions["1"], len(list(db))) == (b"own", b"here", 1)
        db.drop_keyspace("sessions")
        with pytest.raises(forerun.Error, match="sessions"):
            sessions.get("1")
    with pytest.raises(forerun.errors.ClosedError):
        users.put("4", b"Dan")
    with forerun.Db(path) as db:
        assert db.keyspaces() == ["users"]
        assert db.keyspace("users")["2"] == b"Bob"


def test_failures_have_exceptions_of_their_own(tmp_path, db):
    with pytest.raises(forerun.errors.LockedError, match="open already"):
        forerun.Db(db.path)
    with pytest.raises(forerun.errors.NotFoundError):
        forerun.Db(tmp_path / "nowhere", create="never")
    with pytest.raises(forerun.errors.AlreadyExistsError):
        forerun.Db(db.path, create="must_be_new")
    with pytest.raises(KeyError):
        db["missing"]
    with pytest.raises(forerun.errors.InvalidArgumentError, match="at most"):
        db.put(b"k" * (1 << 20), b"")
    with pytest.raises(ValueError, match="durability"):
        db.batch(durability="later")
    with pytest.raises(ValueError, match="pickled"):
        pickle.dumps(db)
    with pytest.raises(forerun.errors.CorruptionError):
        path = tmp_path / "damaged"
        with forerun.Db(path) as damaged:
            damaged.put_many([b"%d" % i for i in range(100)], [b"value"] * 100)
            damaged.flush()
        run = next(path.glob("run-*"))
        run.write_bytes(b"\xff" * run.stat().st_size)
        with forerun.Db(path) as damaged:
            damaged.get("7")


def test_a_closed_store_says_so_and_can_be_closed_again(db):
    db.close()
    db.close()
    assert db.closed
    for use in (lambda: db.get("a"), lambda: db.put("a", b""), lambda: list(db), db.snapshot):
        with pytest.raises(forerun.errors.ClosedError, match="closed"):
            use()


def test_threads_read_and_write_at_once(db):
    def write(start):
        for i in range(start, 4000, 4):
            db.put(b"%05d" % i, b"%05d" % i)

    def read():
        for _ in range(50):
            keys = [b"%05d" % random.randrange(4000) for _ in range(64)]
            for key, value in zip(keys, db.multi_get(keys)):
                assert value in (None, key)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(db)) == 4000
