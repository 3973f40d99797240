"""How stores and tables are opened: sizes, limits, missing directories, reading only."""

import os

import forerun
import numpy as np
import pytest
from forerun import errors

MIB = 1 << 20


@pytest.mark.parametrize(
    "size", [64 * MIB, "64MiB", "64 mib", "64Mi", "65536KiB", str(64 * MIB), np.int64(64 * MIB)]
)
def test_sizes_are_numbers_or_texts(tmp_path, size):
    with forerun.Db(tmp_path / "store", memory_limit_bytes=size, cache_bytes=size) as db:
        assert db.stats()["cache_capacity_bytes"] == db.stats()["memtables_limit_bytes"] == 64 * MIB
    with forerun.Cache(size) as cache:
        assert cache.stats()["limit_bytes"] == 64 * MIB
    with forerun.Table(16, path=tmp_path / "rows", host_bytes=size, cache_bytes=size) as table:
        assert table.stats()["store_cache_capacity_bytes"] == 64 * MIB
        assert table.stats()["host_bytes"] <= 64 * MIB


@pytest.mark.parametrize("size", ["2 apples", "", "-1", -1, 1.5, True, "1.5", 1 << 64])
def test_invalid_sizes_are_refused_with_a_message(tmp_path, size):
    for call in (
        lambda: forerun.Db(tmp_path / "store", cache_bytes=size),
        lambda: forerun.Table(4, memory=size),
        lambda: forerun.Table(4, host_bytes=size),
        lambda: forerun.Cache(size),
    ):
        with pytest.raises(errors.InvalidArgumentError, match="size"):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("writes", ["through", "back"])
def test_one_budget_holds_for_rows_index_and_pages(tmp_path, writes):
    dim = 500
    with forerun.Table(dim, path=tmp_path / "rows", memory="8MiB", writes=writes) as table:
        limit = table.stats()["memory_limit_bytes"]
        assert 6 * MIB < limit <= 8 * MIB
        count = 8 * MIB // (4 * dim)
        for start in range(0, count, 1_000):
            keys = np.arange(start, min(count, start + 1_000))
            table.insert(keys, np.repeat(keys[:, None], dim, axis=1).astype(np.float32))
            assert table.stats()["memory_bytes"] <= limit
        for start in [*range(0, count, 1_000)] * 2:
            keys = np.arange(start, min(count, start + 1_000))
            rows, found = table.find(keys)
            assert found.all() and (rows == keys[:, None].astype(np.float32)).all()
        table.wait_idle()
        stats = table.stats()
        assert stats["memory_bytes"] <= stats["memory_limit_bytes"] == limit
        limits = ["host_bytes", "store_cache_capacity_bytes", "store_memtables_limit_bytes"]
        assert sum(stats[name] for name in limits) == limit
        assert (
            'memory="8MiB"' in repr(table)
            and "host_capacity=" in repr(table)
            and str(tmp_path) in repr(table)
        )


def test_an_automatic_budget_is_half_of_what_the_process_may_use(tmp_path):
    limits = {}
    for memory in ("auto", "50%"):
        with forerun.Table(1024, path=tmp_path / memory, memory=memory) as table:
            limits[memory] = table.stats()["memory_limit_bytes"]
            assert 'memory="' in repr(table)
    assert abs(limits["auto"] - limits["50%"]) < MIB
    with pytest.raises(errors.InvalidArgumentError, match="leave out `host_bytes`"):
        forerun.Table(4, memory="auto", host_bytes="1MiB")


def test_a_budget_without_a_store_is_all_for_rows():
    with forerun.Table(16, memory="1MiB", when_full="evict") as table:
        rows = np.zeros((50_000, 16), np.float32)
        table.insert(np.arange(50_000), rows)
        table.wait_idle()
        stats = table.stats()
        assert stats["memory_bytes"] <= stats["memory_limit_bytes"] <= MIB
        assert stats["host_capacity_rows"] > 5000
    with (
        forerun.Table(16, memory="1MiB") as table,
        pytest.raises(errors.PartialError, match="full"),
    ):
        table.insert(np.arange(50_000), rows)


def test_a_budget_excludes_the_sizes_of_its_parts(tmp_path):
    for part in ({"host_capacity": 10}, {"host_bytes": "1MiB"}, {"cache_bytes": "1MiB"}):
        with pytest.raises(errors.InvalidArgumentError, match=f"leave out `{next(iter(part))}`"):
            forerun.Table(4, path=tmp_path / "rows", memory="1GiB", **part)
    with pytest.raises(errors.InvalidArgumentError, match="needs at least"):
        forerun.Table(4, path=tmp_path / "rows", memory="1KiB")
    with pytest.raises(errors.InvalidArgumentError, match="cache_bytes"):
        forerun.Table(4, cache_bytes="1MiB")
    assert os.listdir(tmp_path) == []


def test_a_number_of_rows_is_not_a_size():
    for given in "10%", "2GiB":
        words = f"number of rows, not '{given}'; `memory` takes a size"
        with pytest.raises(TypeError, match=words):
            forerun.Table(4, host_capacity=given)
    with pytest.raises(errors.InvalidArgumentError, match="`host_capacity` must be an integer"):
        forerun.Table(4, host_capacity=-1)


@pytest.mark.parametrize("read_only", [False, True])
def test_an_open_store_says_how_to_read_it(tmp_path, read_only):
    path, copy = tmp_path / "rows", tmp_path / "checkpoint"
    with forerun.Table(4, path=path) as table:
        table[7] = [1, 2, 3, 4]
        with pytest.raises(errors.LockedError, match="already open.* checkpoint .*read_only=True"):
            forerun.Table(4, path=path, read_only=read_only)
        table.checkpoint(copy)
        with (
            forerun.Table(4, path=copy, read_only=True) as one,
            forerun.Table(4, path=copy, read_only=True) as other,
        ):
            assert one[7].tolist() == other[7].tolist() == [1, 2, 3, 4]
    with (
        forerun.Table(4) as table,
        pytest.raises(errors.InvalidArgumentError, match="give the table a `path`"),
    ):
        table.checkpoint(copy)


def test_a_mistyped_path_is_an_error_if_nothing_is_to_be_created(tmp_path):
    forerun.Db(tmp_path / "store").close()
    forerun.Table(4, path=tmp_path / "rows").close()
    for create in (False, "never"):
        for opened in (
            lambda path, **options: forerun.Db(path, **options),
            lambda path, **options: forerun.Table(4, path=path, **options),
        ):
            with pytest.raises(errors.NotFoundError, match="rwos"):
                opened(tmp_path / "rwos", create=create)
        forerun.Db(tmp_path / "store", create=create).close()
        forerun.Table(4, path=tmp_path / "rows", create=create).close()
    assert sorted(os.listdir(tmp_path)) == ["rows", "store"]
    with pytest.raises(errors.AlreadyExistsError):
        forerun.Table(4, path=tmp_path / "rows", create="must_be_new")
    for create in (False, "never", "must_be_new"):
        with pytest.raises(errors.InvalidArgumentError, match="`create` is for the store"):
            forerun.Table(4, create=create)
    for path in (tmp_path / "rows", tmp_path / "store", tmp_path / "none"):
        with pytest.raises(errors.InvalidArgumentError, match="for reading only cannot be new"):
            forerun.Table(4, path=path, read_only=True, create="must_be_new")
        with pytest.raises(errors.InvalidArgumentError, match="for reading only cannot be new"):
            forerun.Db(path, read_only=True, create="must_be_new")
    for create in ("no", 7, None):
        with pytest.raises(errors.InvalidArgumentError, match="`create` must be one of"):
            forerun.Table(4, path=tmp_path / "other", create=create)


def test_a_table_opened_for_reading_only_is_read_and_left_alone(tmp_path):
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    with forerun.Table(4, path=tmp_path / "rows") as table:
        table.import_rows(np.arange(1000), rows)
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    with forerun.Table(4, path=tmp_path / "rows", read_only=True) as table:
        with forerun.Table(4, path=tmp_path / "rows", read_only=True) as beside:
            assert len(beside) == 1000
        for _ in range(3):
            found_rows, found = table.find(np.arange(1000))
            assert found.all() and np.array_equal(found_rows, rows)
        table.wait_idle()
        assert table.stats()["promoted_rows"] > 0
        for write in (
            lambda: table.insert([1], rows[:1]),
            lambda: table.import_rows([1], rows[:1]),
            lambda: table.assign([1], rows[:1]),
            lambda: table.add_at([1], rows[:1]),
            lambda: table.erase([1]),
            lambda: table.__setitem__(1, rows[0]),
            lambda: table.__delitem__(1),
        ):
            with pytest.raises(errors.ReadOnlyError):
                write()
        assert np.array_equal(table.find(np.arange(1000))[0], rows)
        table.flush()
        with forerun.Backups(tmp_path / "backups") as backups:
            for copy in (
                lambda: table.checkpoint(tmp_path / "copy"),
                lambda: backups.create(table),
            ):
                with pytest.raises(errors.ReadOnlyError):
                    copy()
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()} == files
    with pytest.raises(errors.NotFoundError):
        forerun.Table(4, path=tmp_path / "none", read_only=True)
    with pytest.raises(errors.InvalidArgumentError, match="read"):
        forerun.Table(4, path=tmp_path / "rows", read_only=True, writes="back")
    with pytest.raises(errors.InvalidArgumentError, match="path"):
        forerun.Table(4, read_only=True)
    forerun.Db(tmp_path / "empty").close()
    with pytest.raises(errors.VersionError, match="does not hold a table .*: the store is empty"):
        forerun.Table(4, path=tmp_path / "empty", read_only=True)


def test_opening_a_long_log_without_enough_memory_names_the_need(tmp_path):
    with forerun.Table(64, path=tmp_path / "rows") as table:
        table.insert(np.arange(12_000), np.zeros((12_000, 64), np.float32))
    for memory in ("12MiB", "64MiB"):
        with forerun.Table(64, path=tmp_path / "rows", read_only=True, memory=memory) as table:
            assert len(table) == 12_000
            assert table.stats()["memory_bytes"] <= table.stats()["memory_limit_bytes"]
    with pytest.raises(errors.MemoryLimitError, match="raise `memory`"):
        forerun.Table(64, path=tmp_path / "rows", read_only=True, memory="4MiB")


def test_rows_are_counted_without_reading_them_twice(tmp_path):
    for options in (
        {},
        {"path": tmp_path / "rows", "host_capacity": 1000},
        {"path": tmp_path / "back", "writes": "back"},
    ):
        with forerun.Table(4, **options) as table:
            assert len(table) == 0
            table.insert(np.arange(5000), np.zeros((5000, 4), np.float32))
            assert len(table) == len(table) == 5000
            table.erase(np.arange(10))
            table.insert(np.arange(4990, 5005), np.zeros((15, 4), np.float32))
            assert len(table) == 4995


def test_a_repr_describes_the_table(tmp_path):
    with forerun.Table(4, "int32") as table:
        table[7] = [1, 2, 3, 4]
        assert repr(table) == 'forerun.Table(dim=4, dtype="int32", host_rows=1)'
    with forerun.Table(
        4, path=tmp_path / "rows", memory="1GiB", device_capacity=100, device="cpu"
    ) as table:
        text = repr(table)
        assert text.startswith(
            f'forerun.Table(dim=4, dtype="float32", path="{tmp_path / "rows"}", memory="'
        )
        assert 'device="cpu"' in text and "device_rows=0" in text
    assert "closed" in repr(table)


def test_runs_are_compressed_as_the_store_is_told(tmp_path):
    with forerun.Db(
        tmp_path / "store", compression="none", bottommost_compression="zstd:3:4KiB"
    ) as db:
        db.update({b"%06d" % i: b"value %d" % i for i in range(5000)})
        db.compact()
        stats = db.stats()
        assert (stats["levels_runs"], stats["levels_zstd_runs"]) == (1, 1)
        assert stats["levels_lz4_runs"] == 0 and stats["levels_raw_bytes"] > 0
        assert db["000042"] == b"value 42"
    for name in ("zip", "zstd:23", "lz4:1"):
        with pytest.raises(errors.InvalidArgumentError, match=name.split(":")[0]):
            forerun.Db(tmp_path / "other", compression=name)


def test_the_runs_of_a_table_are_compressed_as_it_is_told(tmp_path):
    stored = {}
    for name in ("none", "lz4", "zstd:6", None):
        path = tmp_path / str(name)
        with forerun.Table(32, path=path, memory="8MiB", compression=name) as table:
            # More than the memtables hold.
            for first in range(0, 100_000, 20_000):
                keys = np.arange(first, first + 20_000)
                table.import_rows(keys, np.ones((20_000, 32), np.float32))
            table.wait_idle()
            stats = table.stats()
            stored[name] = [stats[f"store_levels_{of}_runs"] > 0 for of in ("lz4", "zstd")]
            assert table.find([7])[0].sum() == 32
    assert stored["none"] == [False, False] and stored["zstd:6"] == [False, True]
    assert stored["lz4"] == stored[None] == [True, False]
    with pytest.raises(errors.InvalidArgumentError, match="zip"):
        forerun.Table(4, path=tmp_path / "other", compression="zip")
    with pytest.raises(errors.InvalidArgumentError, match="path"):
        forerun.Table(4, compression="lz4")


def test_a_store_a_keyspace_and_a_snapshot_read_like_a_mapping(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        model = {b"%d" % i: b"value %d" % i for i in range(10)}
        db.update(model)
        users = db.keyspace("users")
        users.update(model)
        for handle in (db, users, db.snapshot()):
            assert dict(handle) == dict(handle.items()) == {**handle} == model
            assert list(handle) == list(handle.keys()) == sorted(model)
            assert list(handle.values()) == [model[key] for key in sorted(model)]
            assert len(handle) == 10 and "3" in handle and "x" not in handle
            assert handle.get("x") is None and handle.get("x", b"-") == b"-"
            with pytest.raises(KeyError):
                handle["x"]
            match handle.get("3"):
                case b"value 3":
                    pass
                case other:
                    raise AssertionError(other)


def test_direct_reads_find_what_others_do(tmp_path):
    values = {b"%06d" % i: b"%d" % i**9 for i in range(10_000)}
    with forerun.Db(tmp_path / "store") as db:
        db.update(values)
        db.flush()
    try:
        db = forerun.Db(tmp_path / "store", use_direct_reads=True, cache_bytes="128KiB")
    except ValueError as error:
        pytest.skip(str(error))
    with db:
        assert dict(db.items()) == values
        assert db[b"000007"] == values[b"000007"]
