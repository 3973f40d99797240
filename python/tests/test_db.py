"""`forerun.Db` compared with a dict, and its errors for impossible requests."""

import pickle
import random
import subprocess
import sys
import textwrap
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
            assert list(db.values(reverse=True)) == [
                model[key] for key in sorted(model, reverse=True)
            ]


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
    found = db.multi_get(keys[::-1].copy(), out=out)
    assert found.tolist() == [False] * 100 + [True] * 900
    assert (out[100:] == rows[:900][::-1]).all()
    assert (out[:100] == -1).all()
    again = np.zeros(1000, dtype=bool)
    assert db.multi_get(keys, out=out, found=again) is again
    assert again.sum() == 900


@pytest.mark.parametrize(
    "keys, out",
    [
        (np.arange(2, dtype=np.float32), np.zeros((2, 8), np.uint8)),
        ([b"a", 1], np.zeros((2, 8), np.uint8)),
        ([b"a", b"b"], np.zeros((3, 8), np.uint8)),
        ([b"a", b"b"], np.zeros((2, 7), np.uint8)),
        ([b"a", b"b"], np.zeros((8, 2), np.uint8).T),
        ([b"a", b"b"], "nothing"),
    ],
)
def test_mismatched_arrays_are_refused_with_a_message(db, keys, out):
    db.put_many([b"a", b"b"], [b"12345678", b"12345678"])
    with pytest.raises(forerun.errors.InvalidArgumentError):
        db.multi_get(keys, out=out)


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


def test_the_durability_of_a_store_is_the_default_of_all_its_writes(tmp_path):
    # Without a log no write can be synced, so every write that asks for it is refused.
    with forerun.Db(tmp_path / "synced", durability="synced", wal=False) as db:
        users = db.keyspace("users")
        for handle in (db, users):
            writes = [
                lambda: handle.put("a", b"1"),
                lambda: handle.put_many(["a"], [b"1"]),
                lambda: handle.update({"a": b"1"}),
                lambda: handle.setdefault("a", b"1"),
                lambda: handle.delete("a"),
                lambda: handle.delete_range("a", "b"),
            ]
            for write in writes:
                with pytest.raises(forerun.errors.InvalidArgumentError, match="log"):
                    write()
            handle.put_many(["a"], [b"1"], durability="buffered")
            handle.update({"b": b"2"}, durability="buffered")
            for write in (handle.clear, handle.popitem, lambda: handle.pop("a")):
                with pytest.raises(forerun.errors.InvalidArgumentError, match="log"):
                    write()
            assert dict(handle) == {b"a": b"1", b"b": b"2"}
        with pytest.raises(forerun.errors.InvalidArgumentError, match="log"), db.batch() as batch:
            batch["c"] = b"3"
        with db.batch(durability="buffered") as batch:
            batch["c"] = b"3"
        assert "c" in db
    with forerun.Db(tmp_path / "buffered", wal=False) as db:
        db.update({"a": b"1"})
        with pytest.raises(forerun.errors.InvalidArgumentError, match="log"):
            db.update({"a": b"1"}, durability="synced")


def test_a_store_without_a_log_keeps_what_was_flushed(tmp_path):
    with forerun.Db(tmp_path / "store", wal=False) as db:
        db["flushed"] = b"1"
        db.flush()
        db["lost"] = b"2"
    with forerun.Db(tmp_path / "store", create=False) as db:
        assert list(db) == [b"flushed"]
    assert "wal=False" in forerun.Db.close.__doc__


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


def test_a_store_opened_for_reading_only_is_read_and_left_alone(tmp_path):
    path = tmp_path / "store"
    with forerun.Db(path) as db:
        db["key"] = b"value"
        db.flush()
        db["other"] = b"in the log"
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with forerun.Db(path, read_only=True) as db, forerun.Db(path, read_only=True) as again:
        assert (
            dict(db.items()) == dict(again.items()) == {b"key": b"value", b"other": b"in the log"}
        )
        for change in (
            lambda: db.put("key", b""),
            db.flush,
            db.compact,
            lambda: db.keyspace("new"),
        ):
            with pytest.raises(forerun.errors.ReadOnlyError, match="opened read-only"):
                change()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_time_to_live_is_a_number_of_seconds_that_a_keyspace_keeps(tmp_path):
    path = tmp_path / "store"
    for ttl in (0, 0.5, -1):
        with pytest.raises(forerun.errors.InvalidArgumentError):
            forerun.Db(path, ttl_seconds=ttl)
    with forerun.Db(path) as db:
        with pytest.raises(forerun.errors.InvalidArgumentError, match="ttl"):
            db.keyspace("sessions", ttl_seconds=0)
        db.keyspace("sessions", ttl_seconds=60)
        db.keyspace("users")
    with forerun.Db(path) as db:
        db.keyspace("sessions")
        db.keyspace("sessions", ttl_seconds=60)
        for name in ("sessions", "users"):
            with pytest.raises(forerun.errors.InvalidArgumentError, match="time to live"):
                db.keyspace(name, ttl_seconds=30)


def test_failures_have_exceptions_of_their_own(tmp_path, db):
    with pytest.raises(forerun.errors.LockedError, match="already open"):
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


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.uint32, np.int32, np.uint16, np.int16])
def test_integers_of_any_width_are_the_same_keys(db, dtype):
    numbers = np.array([0, 1, 258, 32767])
    db.put_many(numbers.astype(dtype), [b"a", b"b", b"c", b"d"])
    assert list(db.keys()) == [int(number).to_bytes(8, "big") for number in numbers]
    assert db.multi_get(numbers.astype(np.int64)[::-1]) == [b"d", b"c", b"b", b"a"]


def test_a_negative_number_is_no_key_and_is_named(db):
    with pytest.raises(ValueError, match="position 2 is -5"):
        db.multi_get(np.array([1, 2, -5]))
    for array in [np.array([1.0, 2.0]), np.arange(3, dtype=np.uint8), np.zeros((2, 2), np.int64)]:
        with pytest.raises(ValueError, match="array of keys"):
            db.multi_get(array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint64, np.int16, np.uint8, bool])
def test_values_are_rows_of_any_type_and_come_back_as_they_were(db, dtype):
    rows = (np.arange(60).reshape(5, 3, 4) % 2).astype(dtype)
    keys = np.arange(5)
    for given in [rows, rows[::-1][::-1], np.asfortranarray(rows), list(rows)]:
        db.put_many(keys, given)
        out = np.empty_like(rows, order="C")
        assert db.multi_get(keys, out=out).all()
        assert (out == rows).all()
    scalars = rows[:, 0, 1].copy()
    db.put_many(keys, scalars)
    out = np.empty_like(scalars)
    assert db.multi_get(keys, out=out).all() and (out == scalars).all()


def test_large_batches_are_looked_up_in_pieces_that_see_one_moment(db):
    keys = np.arange(30_000)
    db.put_many(keys, keys.astype(np.float64))
    stop = threading.Event()

    def overwrite():
        turn = 1
        while not stop.is_set():
            db.put_many(keys[[0, -1]], np.full(2, float(turn)))
            turn += 1

    db.put_many(keys[[0, -1]], np.zeros(2))
    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(10):
            out = np.full(30_000, -1.0)
            assert db.multi_get(keys, out=out).all()
            assert out[0] == out[-1]
            assert (out[1:-1] == keys[1:-1]).all()
            assert db.multi_get(keys)[777] == np.float64(777).tobytes()
    finally:
        stop.set()
        writer.join()


def interrupted(code, tmp_path):
    """Seconds from SIGINT to KeyboardInterrupt in code that signals itself 0.3 s after its last
    statement begins."""
    program = f"""
import forerun, numpy as np, os, signal, threading, time
db = forerun.Db({str(tmp_path / "interrupted")!r})
sent = []
def send():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
def soon():
    threading.Timer(0.3, send).start()
# A shell makes its background programs ignore this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
{textwrap.indent(textwrap.dedent(code), "    ")}
except KeyboardInterrupt:
    print("heard", time.monotonic() - sent[0])
db.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0 and ran.stdout.startswith("heard"), (ran.stdout, ran.stderr)
    return float(ran.stdout.split()[1])


@pytest.mark.parametrize(
    "long_call",
    [
        "while True: db.multi_get(keys)",
        "while True: db.compact(); db.put_many(keys[:100_000], rows[:100_000])",
        "while True: db.put_many(keys, rows)",
        "while True: len(db)",
    ],
)
def test_control_c_interrupts_long_calls(long_call, tmp_path):
    code = f"""
keys = np.arange(400_000)
rows = np.random.default_rng(1).random((400_000, 32), dtype=np.float32)
db.put_many(keys, rows)
soon()
{long_call}
"""
    # The engine checks every 50 ms; the rest allows for a loaded machine.
    assert interrupted(code, tmp_path) < 2


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.int32])
def test_integer_keys_may_have_any_layout(db, dtype):
    numbers = np.array([7, 8, 9], dtype)
    db.put_many(numbers, [b"seven", b"eight", b"nine"])
    memory = np.empty(numbers.nbytes + 1, np.uint8)
    unaligned = memory[1:].view(dtype)
    unaligned[:] = numbers
    fields = np.zeros(3, [("key", dtype), ("other", "S1")])
    fields["key"] = numbers
    for keys in (
        unaligned,
        fields["key"],
        numbers[::-1][::-1],
        numbers.astype(numbers.dtype.newbyteorder()),
    ):
        assert db.multi_get(keys) == [b"seven", b"eight", b"nine"]


def test_an_array_of_objects_is_no_value(db):
    for values in (
        [np.array([object()])],
        [np.zeros(1, [("object", object)])],
        np.array([[object()]]),
        np.zeros(1, [("object", object)]),
    ):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="object"):
            db.put_many([b"key"], values)
        with pytest.raises(forerun.errors.InvalidArgumentError, match="object"):
            forerun.Cache(16 << 20).set_many([b"key"], values)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="object"):
        db.multi_get([b"key"], out=np.array([[object()]]))
    assert b"key" not in db


def test_memory_that_cannot_be_filled_is_refused_by_name(db):
    refused = forerun.errors.InvalidArgumentError
    with pytest.raises(refused, match="`found` is not C-contiguous"):
        db.multi_get([b"a", b"b"], out=np.zeros((2, 2), np.uint8), found=np.zeros(4, bool)[::2])
    with pytest.raises(refused, match="`out` has 0 dimensions"):
        db.multi_get([b"a"], out=np.array(0))


def test_invalid_and_missing_keyspaces_raise_different_errors(db):
    with pytest.raises(forerun.errors.InvalidArgumentError):
        db.keyspace("")
    with pytest.raises(forerun.errors.NotFoundError):
        db.drop_keyspace("none")


def test_operations_are_timed_for_stats_and_prometheus(tmp_path):
    with forerun.Db(tmp_path / "store", stats_level="all") as db:
        db.put("a", b"1")
        for _ in range(10):
            assert db["a"] == b"1"
        db.flush()
        stats = db.stats()
        assert (stats["get_calls"], stats["write_calls"], stats["flush_calls"]) == (10, 1, 1)
        assert 0 < stats["get_min_ns"] <= stats["get_p50_ns"] <= stats["get_max_ns"]
        lines = db.prometheus_text("store").splitlines()
        assert "store_get_seconds_count 10" in lines
        assert 'store_get_seconds_bucket{le="+Inf"} 10' in lines
        assert "store_tree_flushes_total 1" in lines
    with pytest.raises(ValueError, match="stats_level"):
        forerun.Db(tmp_path / "store", stats_level="none")
