"""Rows over a group of processes, here threads, compared with one table."""

import os
import threading

import forerun
import numpy as np
import pytest
from forerun import errors
from forerun.exchange import GroupTable


class Group:
    """Carries arrays between threads, as an all-to-all of processes does."""

    def __init__(self, processes):
        self.processes = processes
        # A process that waits forever is a failure.
        self.barrier = threading.Barrier(processes, timeout=20)
        self.mail = {}

    def all_to_all(self, rank):
        def exchange(parts):
            assert len(parts) == self.processes
            for to, part in enumerate(parts):
                self.mail[rank, to] = part.copy()
            self.barrier.wait()
            came = [self.mail[sender, rank] for sender in range(self.processes)]
            self.barrier.wait()
            return came

        return exchange

    def run(self, tables, call, seeds=None):
        """Calls a function in a thread for each process, and returns the results."""
        results, failures = {}, []

        def work(rank):
            try:
                seed = 3 if seeds is None else seeds[rank]
                made = GroupTable(
                    tables[rank], rank, self.processes, self.all_to_all(rank), seed=seed
                )
                results[rank] = call(rank, made)
            except BaseException as error:
                failures.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(r,)) for r in range(self.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [results[rank] for rank in range(self.processes)]


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_rows_of_a_group_equal_those_of_one_table(processes, dtype):
    numbers = np.random.default_rng(1)
    as_numpy = np.uint16 if dtype == "bfloat16" else dtype
    one, tables = forerun.Table(3, dtype), [forerun.Table(3, dtype) for _ in range(processes)]
    keys = np.arange(500)
    rows = numbers.integers(0, 100, (500, 3)).astype(as_numpy)
    one.insert(keys, rows)

    def create(rank, table):
        def prepare(owned):
            mine = owned[owned < 500]
            table.table.insert(mine, rows[mine.astype(int)])

        return table.find(keys if rank == 0 else [], prepare=prepare)

    first = Group(processes).run(tables, create)[0]
    assert (first[0] == rows).all() and first[1].all()
    assert sum(len(table) for table in tables) == 500
    # Each process has its own keys; some have none, some occur twice, some in several processes.
    asked = [numbers.integers(0, 600, n) for n in (40, 0, 300, 1, 77)[:processes]]
    asked[0] = asked[0].reshape(8, 5)
    for keys, (found_rows, found) in zip(
        asked, Group(processes).run(tables, lambda rank, table: table.find(asked[rank]))
    ):
        expected, expected_found = one.find(keys)
        assert (found_rows == expected).all() and (found == expected_found).all()
    more = [np.ones((*keys.shape, 3), as_numpy) for keys in asked]
    flags = Group(processes).run(tables, lambda rank, t: t.add_at(asked[rank], more[rank]))
    for keys, found in zip(asked, flags):
        assert (found == one.contains(keys)).all()
    # As one table does it in one call.
    one.add_at(
        np.concatenate([keys.ravel() for keys in asked]),
        np.concatenate([each.reshape(-1, 3) for each in more]),
    )
    for table in tables:
        for keys, found_rows in table.export():
            assert (found_rows == one.find(keys)[0]).all()


def test_a_key_that_fails_is_reported_where_it_was_asked_for():
    class Failing:
        dim, dtype = 1, "int64"

        def find(self, keys, out, found):
            found[:] = True
            raise errors.PartialError("a page is damaged", np.flatnonzero(keys == 7).tolist())

    def call(rank, table):
        try:
            table.find([5, 7, 6] if rank == 1 else [8])
        except errors.PartialError as error:
            return error.positions
        return None

    # Process 0 owns the key or does not; in any case it learns that a call has failed.
    assert Group(2).run([Failing(), Failing()], call) == [[], [1]]


def outcomes(tables, call, seeds=None):
    """What a call raises in each process, or returns."""

    def run(rank, table):
        try:
            return call(rank, table)
        except Exception as error:
            return error

    return Group(len(tables)).run(tables, run, seeds)


def test_a_process_that_fails_does_not_leave_the_others_waiting():
    """It raises its own error, and the keys that it owns fail where they were asked for."""
    keys, rows = np.arange(100), np.ones((100, 2), np.int64)

    def closes_and_finds(rank, table):
        if rank == 1:
            table.table.close()
        table.find(keys)

    def closes_and_adds(rank, table):
        if rank == 1:
            table.table.close()
        table.add_at(keys, rows)

    def fails_to_initialize(rank, table):
        def prepare(owned):
            raise RuntimeError("no initial rows")

        table.find(keys, prepare=prepare if rank == 1 else None)

    for act, cause in (
        (closes_and_finds, "ClosedError"),
        (closes_and_adds, "ClosedError"),
        (fails_to_initialize, "RuntimeError: no initial rows"),
    ):
        asker, owner, other = outcomes([forerun.Table(2, "int64") for _ in range(3)], act)
        for each in (asker, other):
            assert isinstance(each, errors.PartialError) and 0 < len(each.positions) < 100
            assert str(each).startswith("process 1 failed") and cause in str(each)
        if act is closes_and_adds:
            # Others have added what it sent them, so it learns what is left.
            assert isinstance(owner, errors.PartialError) and owner.positions == asker.positions
        else:
            assert type(owner).__name__ == cause.partition(":")[0]


def test_additions_that_failed_in_one_process_are_added_once_when_they_are_repeated():
    keys = np.arange(200)

    class FailsOnce:
        """A table whose first addition fails, as a whole or for one key."""

        def __init__(self, table, positions):
            self._table, self._positions = table, positions
            self.dim, self.dtype = table.dim, table.dtype

        def add_at(self, keys, rows):
            if self._positions is None:
                self._positions = []
                raise errors.IoError("the disk is away")
            failed, self._positions = self._positions, []
            added = np.delete(np.arange(len(keys)), failed)
            self._table.add_at(keys[added], rows.reshape(len(keys), -1)[added])
            if failed:
                raise errors.PartialError("the disk is away", failed)
            return self._table.contains(keys)

    for positions in (None, [3, 5]):
        tables = [forerun.Table(1, "int64") for _ in range(2)]
        for table in tables:
            table.insert(keys, np.zeros((200, 1), np.int64))

        def add(rank, table):
            left = keys
            while True:
                try:
                    table.add_at(left, np.full((len(left), 1), rank + 1))
                    return
                except errors.PartialError as error:
                    left = left[error.positions]

        assert outcomes([tables[0], FailsOnce(tables[1], positions)], add) == [None, None]
        assert (tables[0].find(keys)[0] + tables[1].find(keys)[0] == 3).all()


def test_a_process_with_other_arguments_is_an_error_in_all():
    tables = [forerun.Table(2, "int64") for _ in range(3)]
    tables[0].insert([1], [[1, 1]])
    for call in (
        lambda rank, table: table.find([1.5] if rank == 2 else [1]),
        lambda rank, table: table.find([1], out=np.zeros((1, 3 if rank == 2 else 2), np.int64)),
        lambda rank, table: table.add_at([1], np.ones((2 if rank == 2 else 1, 2), np.int64)),
    ):
        first, second, third = outcomes(tables, call)
        for other in (first, second):
            assert isinstance(other, errors.GroupError) and other.rank == 2
            assert str(other).startswith("process 2 failed in ")
            assert "InvalidArgumentError" in str(other)
        assert isinstance(third, errors.InvalidArgumentError)
    assert tables[0][1].tolist() == [1, 1]

    def different(rank, table):
        if rank == 0:
            table.find([1])
        else:
            table.add_at([1], [[1, 1]])

    first, second, third = outcomes(tables, different)
    assert "process 1 calls add_at while this one calls find" in str(first)
    for error in (second, third):
        assert "process 0 calls find while this one calls add_at" in str(error)
    assert tables[0][1].tolist() == [1, 1]


def test_a_process_whose_answer_takes_too_much_memory_is_an_error_in_all(monkeypatch):
    concatenate, tables = np.concatenate, [forerun.Table(2, "int64") for _ in range(2)]
    for table in tables:
        table.insert(np.arange(1000), np.ones((1000, 2), np.int64))

    large = [True]

    def fails_once(parts, *args, **kwargs):
        # An answer: a head, flags, zeros, rows.
        if len(parts) == 4 and sum(map(len, parts)) > 5000 and large:
            large.clear()
            raise MemoryError("no memory is left")
        return concatenate(parts, *args, **kwargs)

    monkeypatch.setattr(np, "concatenate", fails_once)
    keys = np.arange(1000)
    raised = outcomes(tables, lambda rank, table: table.find(keys if rank else []))
    assert sorted(type(error).__name__ for error in raised) == ["MemoryError", "PartialError"]
    assert "MemoryError: no memory is left" in str(max(raised, key=lambda e: len(str(e))))


def test_processes_need_the_same_seed_and_rows():
    tables = [forerun.Table(2, "int64") for _ in range(3)]
    others = [*tables[:2], forerun.Table(2, "float64")]
    for call in (lambda rank, table: table.check_same(), lambda rank, table: table.find([1])):
        for error in (*outcomes(tables, call, [3, 3, 4]), *outcomes(others, call)):
            assert isinstance(error, errors.InvalidArgumentError)
            assert "another seed" in str(error)


def test_a_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    rename = os.rename

    def fails_to_rename(source, target):
        if "-0001-of-" in str(target):
            raise OSError(28, "No space left on device")
        rename(source, target)

    class FailsHalfway:
        """A table whose checkpoint fails when something is written."""

        def __init__(self, table):
            self.dim, self.dtype = table.dim, table.dtype

        def checkpoint(self, into):
            os.mkdir(into)
            (into / "MANIFEST").write_bytes(b"half")
            raise errors.IoError("No space left on device")

    keys = np.arange(100)
    tables = [forerun.Table(1, "int64", path=tmp_path / f"rows-{n}") for n in range(3)]
    for table in tables:
        table.insert(keys, keys[:, None])
    saved = tmp_path / "saved"
    saved.mkdir()
    write = lambda rank, table: table.checkpoint(saved, "step-1")
    without_store = forerun.Table(1, "int64")
    for failing, cause in (
        (FailsHalfway(tables[1]), "IoError: No space left on device"),
        (without_store, "InvalidArgumentError"),
        (tables[1], "OSError"),
    ):
        with monkeypatch.context() as patch:
            if failing is tables[1]:
                patch.setattr(os, "rename", fails_to_rename)
            first, second, third = outcomes([tables[0], failing, tables[2]], write)
        for other in (first, third):
            assert isinstance(other, errors.GroupError) and other.rank == 1
            assert str(other).startswith(f"process 1 failed in checkpoint: {cause}")
        assert isinstance(second, Exception) and not isinstance(second, errors.GroupError)
        assert os.listdir(saved) == []
    # One that was killed has left a part.
    (saved / "step-1-0002-of-0003.partial").mkdir()
    paths = outcomes(tables, write)
    assert sorted(os.listdir(saved)) == [os.path.basename(path) for path in paths]
    assert paths == [str(saved / f"step-1-{rank:04}-of-0003") for rank in range(3)]
    for path in paths:
        with forerun.Table(1, "int64", path=path) as table:
            assert (table.find(keys)[0] == keys[:, None]).all() and len(table) == 100
    # A checkpoint of this name stays as it is.
    os.rename(paths[0], tmp_path / "first")
    first, second, third = outcomes(tables, write)
    assert isinstance(first, errors.GroupError) and first.rank == 1
    assert isinstance(second, errors.AlreadyExistsError)
    assert isinstance(third, errors.AlreadyExistsError)
    assert sorted(os.listdir(saved)) == [os.path.basename(path) for path in paths[1:]]
    with_tags = lambda rank, table: table.checkpoint(saved, "step-2" if rank else "step-3")
    for error in outcomes(tables, with_tags):
        assert isinstance(error, errors.InvalidArgumentError) and "step-" in str(error)
    assert len(os.listdir(saved)) == 2


def test_a_process_outside_its_group_is_refused():
    for rank, processes in [(2, 2), (-1, 2), (0, 0), (0, 1025)]:
        with pytest.raises(errors.InvalidArgumentError):
            GroupTable(forerun.Table(1), rank, processes, list)
