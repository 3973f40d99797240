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

    def run(self, tables, call, seeds=None, names=None):
        """Calls a function in a thread for each process, and returns the results."""
        results, failures = {}, []

        def work(rank):
            try:
                seed = 3 if seeds is None else seeds[rank]
                made = GroupTable(
                    tables[rank],
                    rank,
                    self.processes,
                    self.all_to_all(rank),
                    seed=seed,
                    name="" if names is None else names[rank],
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
        dim, dtype, path = 1, "int64", None

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


def outcomes(tables, call, seeds=None, names=None):
    """What a call raises in each process, or returns."""

    def run(rank, table):
        try:
            return call(rank, table)
        except Exception as error:
            return error

    return Group(len(tables)).run(tables, run, seeds, names)


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
            self.dim, self.dtype, self.path = table.dim, table.dtype, None

        def _add_marked(self, keys, rows, marks):
            if self._positions is None:
                self._positions = []
                raise errors.IoError("the disk is away")
            failed, self._positions = self._positions, []
            added = np.delete(np.arange(len(keys)), failed)
            marks[added] = 2 - self._table.add_at(
                keys[added], rows.reshape(len(keys), -1)[added]
            ).astype(np.uint8)
            if failed == [0]:
                raise KeyboardInterrupt
            if failed:
                raise errors.PartialError("the disk is away", failed)

    # As a whole, for some keys, or interrupted when some were added.
    for positions in (None, [3, 5], [0]):
        tables = [forerun.Table(1, "int64") for _ in range(2)]
        for table in tables:
            table.insert(keys, np.zeros((200, 1), np.int64))

        def add(rank, table):
            left = keys
            while True:
                marks = np.zeros(len(left), np.uint8)
                try:
                    table._add_marked(left, np.full((len(left), 1), rank + 1), marks)
                    return
                except (errors.PartialError, KeyboardInterrupt):
                    left = left[marks == 0]

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


def test_tables_of_a_group_are_not_mistaken_for_each_other():
    tables = [forerun.Table(1, "int64") for _ in range(2)]
    for table, value in zip(tables, (1, 2)):
        table.insert(np.arange(50), np.full((50, 1), value))
    group, others = Group(2), [forerun.Table(1, "int64") for _ in range(2)]

    def mixed(rank, user):
        """The processes call for two tables in different orders, and then in the same one."""
        user.check_same()
        item = GroupTable(others[rank], rank, 2, group.all_to_all(rank), seed=3)
        raised = []
        for first in (user, item) if rank == 0 else (item, user):
            try:
                first.find(np.arange(50))
            except errors.GroupError as error:
                raised.append(str(error))
        return raised, [table.find(np.arange(50))[1].sum() for table in (user, item)]

    results = group.run(tables, mixed)
    for rank, (raised, found) in enumerate(results):
        assert len(raised) == 2 and found == [50, 0]
        assert f"process {1 - rank} calls " in raised[0] and " of table " in raised[0]

    # Tables that are made in different orders differ by their names.
    def find(rank, table):
        return table.find([1])

    for error in outcomes(tables, find, names=["user", "item"]):
        assert isinstance(error, errors.GroupError)
    assert "calls construct of 'item' while this one calls construct of 'user'" in str(
        outcomes(tables, find, names=["user", "item"])[0]
    )
    assert outcomes(tables, lambda rank, table: table.find([1])[1].all(), names=["user"] * 2) == [
        True,
        True,
    ]


def test_answers_of_a_call_that_was_interrupted_are_not_taken_for_those_of_the_next():
    group, tables = Group(2), [forerun.Table(1, "int64") for _ in range(2)]
    for table in tables:
        table.insert(np.arange(50), np.full((50, 1), 1))

    def call(rank, table):
        table.check_same()
        if rank == 1:
            # A signal ends the call when the messages have been exchanged.
            exchange = table._calls._all_to_all

            def interrupted(parts):
                exchange(parts)
                table._calls._all_to_all = exchange
                raise KeyboardInterrupt

            table._calls._all_to_all = interrupted
            with pytest.raises(KeyboardInterrupt):
                table.find(np.arange(10))
        with pytest.raises(errors.GroupError, match="because a call was interrupted") as raised:
            # The answers of process 0 meet the questions of process 1.
            table.find(np.arange(50))
        return raised.value.rank

    assert group.run(tables, call) == [1, 0]


def stores(directory, count):
    return [forerun.Table(1, "int64", path=directory / f"rows-{rank}") for rank in range(count)]


def closed(tables):
    for table in tables:
        table.close()


def test_a_store_of_another_process_or_group_is_refused(tmp_path):
    keys = np.arange(200)

    def begin(rank, table):
        def prepare(owned):
            table.table.insert(owned, np.ones((len(owned), 1), np.int64))

        table.find(keys if rank == 0 else [], prepare=prepare)

    def find(rank, table):
        return table.find(keys)[1].all()

    tables = stores(tmp_path, 2)
    assert outcomes(tables, begin, names=["user"] * 2) == [None, None]
    assert outcomes(tables, find) == [True, True], "a process may leave the name out"
    record = tables[0]._metadata("forerun.exchange")
    for damaged, kind in (
        (b"{}", errors.CorruptionError),
        (b"\xff", errors.CorruptionError),
        (b'{"version": 2}', errors.VersionError),
    ):
        tables[0]._put_metadata("forerun.exchange", damaged)
        assert type(outcomes(tables, find)[0]) is kind
    tables[0]._put_metadata("forerun.exchange", record)
    rows = [len(table) for table in tables]
    for mixed, seeds, names, words in [
        (tables[::-1], None, None, "process 1 of 2 with seed 3 and name 'user', but this is"),
        ([*tables, forerun.Table(1, "int64")], None, None, "but this is process 0 of 3"),
        (tables, [7, 7], None, "but this is process 0 of 2 with seed 7"),
        (tables, None, ["item"] * 2, "but this is process 0 of 2 with seed 3 and name 'item'"),
    ]:
        raised = outcomes(mixed, begin, seeds, names)
        assert isinstance(raised[0], errors.InvalidArgumentError) and words in str(raised[0])
        assert "or `load` a checkpoint of the group into empty tables" in str(raised[0])
        for error in raised[1:]:
            assert isinstance(error, (errors.InvalidArgumentError, errors.GroupError))
    assert [len(table) for table in tables] == rows
    # A checkpoint belongs to the same process.
    assert all(outcomes(tables, lambda rank, table: table.checkpoint(tmp_path, "a")))
    closed(tables)
    copies = [forerun.Table(1, "int64", path=tmp_path / f"a-{n:04}-of-0002") for n in range(2)]
    assert isinstance(outcomes(copies[::-1], find)[0], errors.InvalidArgumentError)
    assert outcomes(copies, find) == [True, True]
    closed(copies)
    # Nothing is recorded in a store that is read-only, or that another process refuses.
    fresh = [forerun.Table(1, "int64", path=tmp_path / "fresh"), forerun.Table(2, "int64")]
    assert isinstance(outcomes(fresh, find)[0], errors.InvalidArgumentError)
    assert fresh[0]._metadata("forerun.exchange") is None
    closed(fresh)
    with forerun.Table(1, "int64", path=tmp_path / "fresh", read_only=True) as table:
        assert outcomes([table], lambda rank, table: table.find(keys)[1].any()) == [False]


@pytest.mark.parametrize("processes", [1, 3])
def test_a_checkpoint_is_loaded_by_any_number_of_processes(tmp_path, processes):
    keys, rows = np.arange(300), np.arange(300)[:, None] * 7
    saved = tmp_path / "saved"
    saved.mkdir()

    def save(rank, table):
        table.find(keys, prepare=lambda owned: table.table.insert(owned, rows[owned.astype(int)]))
        table.checkpoint(saved, "step-1")

    tables = stores(tmp_path, 2)
    assert outcomes(tables, save) == [None, None]
    closed(tables)

    def load(rank, table):
        table.load(saved, "step-1")
        return table.find(keys)

    new = [forerun.Table(1, "int64", path=tmp_path / f"new-{n}") for n in range(processes)]
    for found_rows, found in outcomes(new, load, seeds=[9] * processes):
        assert found.all() and (found_rows == rows).all()
    assert sum(len(table) for table in new) == 300
    for error in outcomes(new, load, seeds=[9] * processes):
        assert isinstance(error, errors.Error) and "a checkpoint needs empty tables" in str(error)
    empty = [forerun.Table(1, "int64") for _ in range(processes)]
    for tag, kind in (("step-2", "NotFoundError"), ("step-1", "does not have the parts of one")):
        for each in outcomes(empty, lambda rank, table: table.load(saved, tag)):
            assert kind in f"{type(each).__name__}: {each}"
        # Process 1 of the first checkpoint is missing, next.
        if (saved / "step-1-0001-of-0002").exists():
            os.rename(saved / "step-1-0001-of-0002", tmp_path / "away")
    assert not any(empty)
    closed(new)


def test_a_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    rename = os.rename

    def fails_to_rename(source, target):
        if "-0001-of-" in str(target):
            raise OSError(28, "No space left on device")
        rename(source, target)

    class FailsHalfway:
        """A table whose checkpoint fails when something is written."""

        def __init__(self, table):
            self.dim, self.dtype, self.path = table.dim, table.dtype, None

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
