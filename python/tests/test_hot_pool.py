"""`forerun.HotPool` and `forerun.HostRows` compared with loops over NumPy arrays."""

import sys
from pathlib import Path

import forerun
import numpy as np
import pytest
from forerun.errors import InvalidArgumentError, MemoryLimitError

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from hot_pool_reference import NumpyHotPool, VectorHotPool  # noqa: E402


@pytest.mark.parametrize("eviction", ["lru", "clock"])
@pytest.mark.parametrize("host_layout", ["layer_first", "row_first"])
def test_random_steps_agree_with_numpy(eviction, host_layout):
    rng = np.random.default_rng(3)
    layers, requests, slots, positions, count, host_count = 3, 2, 12, 40, 9, 30
    shape = (layers, host_count, 5) if host_layout == "layer_first" else (host_count, layers, 5)
    host = rng.integers(0, 1 << 30, shape, dtype=np.int32)
    by_row = host.swapaxes(0, 1) if host_layout == "layer_first" else host
    rows, expected = np.zeros((2, layers, requests * slots, 5), np.int32)
    host_rows = rng.integers(-1, host_count + 1, (requests, positions))
    pool = forerun.HotPool(
        host, rows, slots=slots, requests=requests, count=count, eviction=eviction,
        layers_per_table=3, host_layout=host_layout, host_rows=host_rows,
    )  # fmt: skip
    tables = [NumpyHotPool(slots, eviction) for _ in range(requests)]
    plan = pool.new_plan()
    for _ in range(200):
        order = rng.permutation(requests).astype(np.int32)
        asked = rng.integers(-1, positions + 1, (requests, count)).astype(np.int32)
        answers = pool.resolve(0, asked, order, plan=plan)
        pool.replay(plan, (1, 3))
        for request, wanted, given in zip(order.tolist(), asked, answers):
            first = request * slots
            hot = expected[:, first : first + slots].swapaxes(0, 1)
            slots_of = tables[request].resolve(wanted, host_rows[request], by_row, hot)
            assert (given == np.where(slots_of < 0, -1, slots_of + first)).all()
        assert (rows == expected).all()
    counts = pool.counts()
    assert counts.hits == sum(table.hits for table in tables) > 100
    assert counts.misses == sum(table.misses for table in tables) > 100
    assert counts.absent == sum(table.absent for table in tables) > 100


def test_whole_arrays_give_what_the_loop_gives():
    rng = np.random.default_rng(4)
    host = rng.integers(0, 256, (50, 4), dtype=np.uint8)
    one, other = NumpyHotPool(16), VectorHotPool(16)
    rows = np.zeros((2, 16, 4), np.uint8)
    for _ in range(50):
        asked = rng.permutation(50)[:8].astype(np.int32)
        answers = [
            pool.resolve(asked, np.arange(50), host, hot) for pool, hot in zip((one, other), rows)
        ]
        assert (answers[0] == answers[1]).all() and (rows[0] == rows[1]).all()


def pool_of(**arguments):
    host = np.arange(1 * 20 * 2, dtype=np.uint8).reshape(1, 20, 2)
    rows = np.zeros((1, 8, 2), np.uint8)
    return forerun.HotPool(host, rows, **{"slots": 4, "requests": 2, **arguments}), rows


def test_answers_are_written_into_out_and_a_cleared_table_is_empty():
    pool, rows = pool_of()
    out = np.empty(3, np.int32)
    answers = pool.resolve(0, np.array([7, 7, -1], np.int32), out=out)
    assert answers is out and out.tolist() == [0, 0, -1]
    assert rows[0, 0].tolist() == [14, 15]
    pool.clear(np.array([0], np.int32))
    pool.resolve(0, np.array([9], np.int32))
    assert pool.counts() == forerun.HotPool.counts(pool)
    assert (pool.counts().misses, pool.counts().hits) == (2, 0)
    assert repr(pool.counts()) == "forerun.HotPoolCounts(hits=0, misses=2, absent=0)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pool_of(slots=0), "slots"),
        (lambda: pool_of(count=5), "5 positions"),
        (lambda: pool_of(requests=3), "requests * slots"),
        (lambda: pool_of(eviction="fifo"), "lru, clock"),
        (lambda: pool_of(host_layout="page"), "layer_first, row_first"),
        (lambda: pool_of(host_rows=np.zeros(3, np.int64)), "two dimensions"),
        (lambda: forerun.HotPool(np.zeros((3, 2)), np.zeros((1, 4, 2)), slots=4), "three dim"),
        (lambda: forerun.HotPool(np.zeros((1, 3, 2)), np.zeros((1, 4, 3)), slots=4), "16 bytes"),
        (lambda: pool_of()[0].resolve(0, np.zeros(3)), "int32, not of float64"),
        (lambda: pool_of()[0].resolve(0, np.zeros(5, np.int32)), "is 5, but at most 4"),
        (lambda: pool_of()[0].resolve(1, np.zeros(3, np.int32)), "layer 1"),
        (lambda: pool_of()[0].resolve(0, np.zeros((1, 1, 1), np.int32)), "one dimension, or two"),
        (
            lambda: pool_of()[0].resolve(0, np.zeros((2, 1), np.int32), np.zeros(2, np.int32)),
            "table 0 is named twice",
        ),
        (
            lambda: pool_of()[0].resolve(0, np.zeros((2, 1), np.int32), np.zeros(1, np.int32)),
            "`requests` names 1",
        ),
        (lambda: pool_of()[0].resolve(0, np.zeros(3, np.int32), stream=5), "`stream`"),
        (lambda: pool_of()[0].clear(np.array([2], np.int32)), "there are 2 tables"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call, words):
    with pytest.raises(InvalidArgumentError) as error:
        call()
    assert words in str(error.value)


def test_memory_that_another_argument_has_is_refused():
    rows = np.zeros((1, 4, 4), np.uint8)
    pool = forerun.HotPool(rows, rows, slots=4)
    with pytest.raises(InvalidArgumentError, match="being read"):
        pool.resolve(0, np.zeros(1, np.int32))


def test_missing_host_rows_come_from_the_table_in_one_batch_and_are_shared():
    table = forerun.Table(6, "int32")
    keys = np.arange(100, 140)
    values = np.arange(40 * 6, dtype=np.int32).reshape(40, 6)
    table.insert(keys, values)
    # Each row of the table has two layers.
    host = np.zeros((8, 2, 3), np.int32)
    held = forerun.HostRows(host, table)
    first = held.acquire(np.array([103, 107, 103]))
    assert first.dtype == np.int64 and first[0] == first[2] and held.held == 2
    assert (host[first].reshape(3, 6) == values[[3, 7, 3]]).all()
    second = held.acquire(np.array([107, 120, 121, 122, 123, 124, 125]))
    assert second[0] == first[1] and held.held == 8
    with pytest.raises(MemoryLimitError, match="1 row must be fetched, but only 0"):
        held.acquire(np.array([126]))
    with pytest.raises(InvalidArgumentError, match="no row for key 7"):
        held.release(first)
        held.acquire(np.array([7]))
    with pytest.raises(InvalidArgumentError, match="not in use"):
        held.release(np.array([int(first[0])]))

    host_rows = np.full((1, 50), -1, np.int64)
    host_rows[0, 40:47] = second
    rows = np.zeros((2, 4, 3), np.int32)
    pool = forerun.HotPool(
        host, rows, slots=4, layers_per_table=2, host_layout="row_first", host_rows=host_rows
    )
    plan = pool.new_plan()
    answers = pool.resolve(0, np.array([41, 46, 3], np.int32), plan=plan)
    pool.replay(plan, (1, 2))
    assert answers[2] == -1
    assert (rows[:, answers[:2]].swapaxes(0, 1).reshape(2, 6) == values[[20, 25]]).all()
