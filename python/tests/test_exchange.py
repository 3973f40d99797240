"""Rows over a group of processes, here threads, compared with one table."""

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
        self.barrier = threading.Barrier(processes)
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

    def run(self, tables, call):
        """Calls a function in a thread for each process, and returns the results."""
        results, failures = {}, []

        def work(rank):
            try:
                made = GroupTable(
                    tables[rank], rank, self.processes, self.all_to_all(rank), seed=3
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

    assert Group(2).run([Failing(), Failing()], call) == [None, [1]]


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

    for act in (closes_and_finds, closes_and_adds, fails_to_initialize):

        def call(rank, table):
            try:
                act(rank, table)
            except (errors.PartialError, errors.ClosedError, RuntimeError) as error:
                return error
            return None

        group = Group(2)
        group.barrier = threading.Barrier(2, timeout=20)
        tables = [forerun.Table(2, "int64") for _ in range(2)]
        asker, owner = group.run(tables, call)
        assert isinstance(asker, errors.PartialError) and 0 < len(asker.positions) < 100
        assert isinstance(owner, (errors.ClosedError, RuntimeError))


def test_a_process_outside_its_group_is_refused():
    for rank, processes in [(2, 2), (-1, 2), (0, 0), (0, 1025)]:
        with pytest.raises(errors.InvalidArgumentError):
            GroupTable(forerun.Table(1), rank, processes, list)
