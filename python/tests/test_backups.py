"""Backups of stores and tables: making, listing, verifying, restoring and removing them."""

import time

import forerun
import numpy as np
import pytest
from forerun import errors


def test_a_restored_backup_is_the_store_as_it_was(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Backups(tmp_path / "backups") as backups:
        db["oslo"] = b"59.91,10.75"
        first = backups.create(db)
        del db["oslo"]
        second = backups.create(db)
        assert (first.number, second.number) == (1, 2)
        assert backups.list().backups[1] == second and backups.list().damaged == []
        checked = backups.verify()
        assert checked.backups == 2 and checked.bytes > 0 and checked.problems == []
        assert backups.restore(tmp_path / "first", number=1).number == 1
        assert backups.restore(tmp_path / "newest").number == 2
    for name, value in (("first", b"59.91,10.75"), ("newest", None)):
        with forerun.Db(tmp_path / name, create=False) as db:
            assert db.get("oslo") == value


def test_a_table_is_backed_up_with_the_rows_that_are_not_yet_in_its_store(tmp_path):
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    with (
        forerun.Table(4, path=tmp_path / "rows", writes="back") as table,
        forerun.Backups(tmp_path / "backups") as backups,
    ):
        table.insert(np.arange(1000), rows)
        backups.create(table)
        table.erase(np.arange(1000))
        backups.restore(tmp_path / "restored")
    with forerun.Table(4, path=tmp_path / "restored", create=False) as table:
        found_rows, found = table.find(np.arange(1000))
        assert found.all() and np.array_equal(found_rows, rows)
    with forerun.Table(4) as table, forerun.Backups(tmp_path / "backups") as backups:
        with pytest.raises(errors.InvalidArgumentError, match="store"):
            backups.create(table)
        with pytest.raises(TypeError):
            backups.create("store")


def test_old_backups_are_removed_with_the_files_that_only_they_need(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Backups(tmp_path / "backups") as backups:
        for number in range(4):
            db.put(b"%d" % number, bytes(10_000))
            backups.create(db)
        assert backups.delete(2).backups == [2]
        assert backups.purge_old(1).backups == [1, 3]
        assert [backup.number for backup in backups.list().backups] == [4]
        with pytest.raises(errors.InvalidArgumentError):
            backups.purge_old(0)
        with pytest.raises(errors.NotFoundError, match="no backup 9"):
            backups.delete(9)
        with pytest.raises(errors.NotFoundError):
            backups.restore(tmp_path / "none", number=9)


def test_damage_is_found_and_a_damaged_backup_is_not_restored(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Backups(tmp_path / "backups") as backups:
        db.put_many([b"%d" % i for i in range(1000)], [bytes(100)] * 1000)
        backups.create(db)
        run = next((tmp_path / "backups").glob("run-*"))
        content = bytearray(run.read_bytes())
        content[len(content) // 2] ^= 1
        run.write_bytes(content)
        problems = backups.verify().problems
        assert len(problems) == 1 and run.name in problems[0]
        with pytest.raises(errors.CorruptionError, match=run.name):
            backups.restore(tmp_path / "restored")


def test_only_an_open_store_or_table_can_be_backed_up(tmp_path):
    with forerun.Backups(tmp_path / "backups") as backups:
        with pytest.raises(TypeError, match="`store` must be an open Db or Table, not str"):
            backups.create(str(tmp_path))


def test_a_directory_of_backups_is_created_opened_once_and_closed(tmp_path):
    path = tmp_path / "backups"
    with pytest.raises(errors.NotFoundError):
        forerun.Backups(path, create=False)
    assert not path.exists()
    with forerun.Backups(path, create="must_be_new") as backups:
        assert backups.path == path and repr(backups) == f'forerun.Backups("{path}")'
        with pytest.raises(errors.LockedError):
            forerun.Backups(path)
    assert backups.closed
    with pytest.raises(errors.ClosedError):
        backups.list()
    backups.close()
    with pytest.raises(errors.AlreadyExistsError):
        forerun.Backups(path, create="must_be_new")
    with pytest.raises(errors.InvalidArgumentError, match="`create` must be one of"):
        forerun.Backups(path, create="always")


def test_copies_report_progress_and_keep_to_a_rate(tmp_path):
    with forerun.Db(tmp_path / "store") as db, forerun.Backups(tmp_path / "backups") as backups:
        for number in range(100):
            db.put(b"%d" % number, np.random.default_rng(number).bytes(10_000))
        begun, seen = time.monotonic(), []
        backups.create(db, rate_bytes="2MiB", progress=lambda *of: seen.append(of))
        assert time.monotonic() - begun > 0.2
        assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 1_000_000
        for copy in (
            lambda progress: backups.verify(progress=progress),
            lambda progress: backups.restore(tmp_path / "restored", progress=progress),
            lambda progress: db.checkpoint(tmp_path / "copy", progress=progress),
        ):
            seen = []
            copy(lambda *of, seen=seen: seen.append(of))
            assert seen[-1][0] == seen[-1][1] > 1_000_000


def test_an_exception_of_the_progress_function_ends_the_copy(tmp_path):
    def fail(done, total):
        raise ValueError(f"{done} of {total}")

    with forerun.Db(tmp_path / "store") as db, forerun.Backups(tmp_path / "backups") as backups:
        db["oslo"] = bytes(1000)
        begun = time.monotonic()
        with pytest.raises(ValueError, match="of"):
            backups.create(db, rate_bytes=1, progress=fail)
        assert time.monotonic() - begun < 30
        assert backups.list().backups == []
        with pytest.raises(TypeError, match="progress"):
            backups.create(db, progress=1)
        with pytest.raises(errors.InvalidArgumentError, match="rate"):
            backups.create(db, rate_bytes="10%")
        assert backups.create(db).number == 1
