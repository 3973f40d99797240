"""`forerun.GpuTable` on the CPU, compared with a dict."""

import gc
import importlib
import os
import random

import forerun
import numpy as np
import pytest
from forerun.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    IoError,
    MemoryLimitError,
)

DIM = 4
ABSENT, FOUND, INSERTED, EVICTED, REFUSED, PINNED = range(6)


@pytest.fixture
def table():
    with forerun.GpuTable(
        4096, DIM, max_capacity=1 << 14, device="cpu", evict_strategy="customized"
    ) as table:
        yield table


def rows_of(keys, stamp=0):
    keys = np.asarray(keys).astype(np.int64)
    return ((keys[..., None] % 1000) * 10 + np.arange(DIM) + stamp).astype(np.float32)


def statuses(n):
    return np.full(n, 99, np.uint8)


def test_a_random_program_is_that_of_a_dict(table):
    randoms, expected = random.Random(1), {}
    for step in range(200):
        keys = np.array([randoms.randrange(-50, 200) for _ in range(40)], np.int64)
        rows = rows_of(keys, step)
        status = statuses(40)
        kind = randoms.randrange(5)
        present = np.array([key in expected for key in keys.tolist()])
        if kind == 0:
            table.insert_or_assign(keys, rows, status=status)
            # The CPU's table goes through the keys in their order.
            expected.update(zip(keys.tolist(), rows.tolist()))
            assert set(status.tolist()) <= {FOUND, INSERTED}
        elif kind == 1:
            table.assign(keys, rows, status=status)
            for key, row in zip(keys.tolist(), rows.tolist()):
                if key in expected:
                    expected[key] = row
            assert (status == np.where(present, FOUND, ABSENT)).all()
        elif kind == 2:
            table.erase(keys)
            for key in keys.tolist():
                expected.pop(key, None)
        elif kind == 3:
            given = table.find_or_insert(keys, rows)
            for key, row in zip(keys.tolist(), rows.tolist()):
                expected.setdefault(key, row)
            assert given.tolist() == [expected[key] for key in keys.tolist()]
        rows, found = table.find(keys.reshape(8, 5))
        assert rows.shape == (8, 5, DIM) and found.shape == (8, 5) and found.dtype == bool
        rows = rows.reshape(40, DIM).tolist()
        assert rows == [expected.get(key, [0] * DIM) for key in keys.tolist()]
        assert found.ravel().tolist() == [key in expected for key in keys.tolist()]
        assert len(table) == len(expected)
    exported = table.export_batch()
    n = int(exported.count[0])
    pairs = zip(exported.keys[:n].astype(np.int64).tolist(), exported.rows[:n].tolist())
    assert dict(pairs) == expected


def test_memory_of_the_caller_is_filled_and_absent_rows_stay(table):
    keys = np.array([1, 2, 3], np.uint64)
    table.insert_or_assign(keys[:2], rows_of(keys[:2]), scores=np.array([7, 8]))
    out, found, scores = np.full((3, DIM), 5, np.float32), np.zeros(3, bool), np.zeros(3, np.int64)
    rows, flags = table.find(keys, out, found, scores=scores, beside_writers=False)
    assert rows is out and flags is found
    assert found.tolist() == [True, True, False] and scores.tolist() == [7, 8, 0]
    assert (out[2] == 5).all() and (out[:2] == rows_of(keys[:2])).all()
    assert table.contains(keys).tolist() == [True, True, False]
    pointers, found = table.find_ptr(keys)
    assert (pointers != 0).tolist() == found.tolist() == [True, True, False]


def test_missing_keys_come_with_their_positions(table):
    table.insert_or_assign([5, 6], rows_of([5, 6]))
    rows, missed = table.find_missed([6, 70, 5, 80])
    assert missed.count.tolist() == [2]
    assert missed.keys[:2].tolist() == [70, 80] and missed.positions[:2].tolist() == [1, 3]
    assert (rows[[0, 2]] == rows_of([6, 5])).all()


def test_a_full_table_returns_what_it_does_not_keep():
    table = forerun.GpuTable(64, DIM, device="cpu", width=64, evict_strategy="customized")
    keys = np.arange(100)
    evicted = table.insert_and_evict(keys, rows_of(keys), scores=keys + 1)
    n = int(evicted.count[0])
    assert n == 36 and len(table) == 64
    kept = table.contains(keys)
    left = evicted.keys[:n].tolist()
    assert sorted(left + keys[kept].tolist()) == keys.tolist()
    assert (evicted.rows[:n] == rows_of(left)).all()
    assert (evicted.scores[:n] == evicted.keys[:n] + 1).all()
    # The lowest score is refused, and comes back itself.
    again = table.insert_and_evict([4242], rows_of([4242]), scores=[0])
    assert again.keys[0] == 4242 and again.count.tolist() == [1]


def test_rows_are_added_up_where_flags_say_so(table):
    keys = np.arange(6)
    table.insert_or_assign(keys[:4], rows_of(keys[:4]))
    ones, flags = np.ones((6, DIM), np.float32), np.array([1, 0, 1, 0, 0, 1], bool)
    table.accumulate_or_assign(keys, ones, flags)
    rows, found = table.find(keys)
    assert found.tolist() == [True] * 5 + [False]
    assert (rows[[0, 2]] == rows_of([0, 2]) + 1).all() and (rows[[1, 3]] == rows_of([1, 3])).all()
    assert (rows[4] == 1).all()
    with pytest.raises(InvalidArgumentError, match="float16"):
        halves = forerun.GpuTable(100, DIM, "float16", device="cpu")
        halves.accumulate_or_assign([1], np.ones((1, DIM), np.float16), [True])


def test_locked_entries_stay(table):
    table.insert_or_assign([1, 2], rows_of([1, 2]))
    table.lock([1])
    status = statuses(2)
    table.assign_rows([1, 2], rows_of([1, 2], 100), status=status)
    assert status.tolist() == [PINNED, FOUND]
    table.unlock([1])
    table.restore([1], rows_of([1], 7), [55])
    assert (table.find([1, 2])[0] == [rows_of(1, 7), rows_of(2, 100)]).all()
    table.assign_scores([2], scores=[66])
    scores = np.zeros(2, np.uint64)
    table.find([1, 2], scores=scores)
    assert scores.tolist() == [55, 66]
    assert (table.find_and_update([2], scores=[67]) == rows_of([2], 100)).all()


def test_scans_take_conditions(table):
    keys = np.arange(100)
    table.insert_or_assign(keys, rows_of(keys), scores=keys)
    assert table.size_if(scores=(10, 19)).tolist() == [10]
    assert table.size_if(key_bits=(0b11, 0b01)).tolist() == [25]
    some = table.export_batch(scores=(10, 19))
    assert sorted(some.keys[: some.count[0]].tolist()) == list(range(10, 20))
    halves = [table.export_batch(first, 2048).count[0] for first in (0, 2048)]
    assert sum(halves) == 100
    assert table.erase_if(scores=(0, 49)).tolist() == [50]
    assert table.size() == 50 and table
    table.clear()
    assert not table


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_bags_are_pooled_as_a_table_pools_them(dtype):
    dim = 16
    ours = forerun.GpuTable(1000, dim, dtype, device="cpu")
    theirs = forerun.Table(dim, dtype)
    random_bytes = np.random.default_rng(1).integers(0, 50, (20, dim * np.dtype(dtype).itemsize))
    rows = random_bytes.astype(np.uint8).view(dtype)
    keys, offsets = np.array([3, 99, 4, 4, 17]), np.array([0, 2, 2, 5])
    for each in (ours.insert_or_assign, theirs.insert):
        each(np.arange(20), rows)
    weights = np.array([1, 2, 3, 4, 5], np.float32)
    for options in ({}, {"mode": "mean"}, {"weights": weights}, {"dtype": "float16"}):
        one = ours.find_pooled(keys, offsets, **options)
        other = theirs.find_pooled(keys, offsets, **options)
        for a, b in zip(one, other):
            assert (a.view(np.uint8) == b.view(np.uint8)).all()
    with pytest.raises(InvalidArgumentError, match="offsets"):
        ours.find_pooled(keys, np.array([], np.int64))


def test_it_grows_and_is_saved(tmp_path, table):
    keys = np.arange(8000)
    table.insert_or_assign(keys[:100], rows_of(keys[:100]), scores=keys[:100])
    assert table.capacity == 4096
    table.insert_or_assign(keys, rows_of(keys), scores=keys)
    assert table.capacity > 8000 and len(table) == 8000
    table.reserve(1 << 14)
    table.reserve_for(10**6)
    assert table.capacity == 1 << 14
    table.set_max_capacity(1 << 15)
    with pytest.raises(InvalidArgumentError, match="maximum"):
        table.reserve(1 << 16)
    path = tmp_path / "saved"
    table.save(path)
    other = forerun.GpuTable(1 << 14, DIM, device="cpu", evict_strategy="customized")
    assert other.load(path) == 8000
    rows, found = other.find(keys)
    assert found.all() and (rows == rows_of(keys)).all()
    with pytest.raises(CorruptionError, match="Customized"):
        forerun.GpuTable(100, DIM, device="cpu").load(path)
    os.truncate(path, 1000)
    with pytest.raises(CorruptionError, match="ends in"):
        other.load(path)
    with pytest.raises(IoError, match="absent"):
        other.load(tmp_path / "absent")


def test_what_cannot_be_used_is_refused_by_name(table):
    keys, rows = np.array([1, 2]), rows_of([1, 2])
    for call, words in [
        (lambda: table.insert_or_assign(keys, rows[:1]), "`rows` has 16 bytes, but must have 32"),
        (lambda: table.insert_or_assign(keys, rows.astype(np.float64)), "of float32, not float64"),
        (lambda: table.insert_or_assign(keys, rows.astype(">f4")), "of float32, not >f4"),
        (lambda: table.insert_or_assign(keys, None), "insert_or_assign needs rows"),
        (lambda: table.insert_or_assign(keys, rows[:, ::-1]), "not C-contiguous"),
        (lambda: table.insert_or_assign([1.5, 2.5], rows), "keys must be integers"),
        (lambda: table.find(np.array([1.0])), "int64 or uint64, not float64"),
        (lambda: table.insert_or_assign(keys, rows, epoch=1 << 32), "epoch 4294967296"),
        (lambda: table.insert_or_assign(keys, rows, scores=np.ones(2)), "`scores` must have"),
        (lambda: table.find(keys, np.zeros((2, DIM), np.float32), np.zeros(3, bool)), "status_out"),
        (lambda: table.find(keys, keys.view(np.float32)), "rows_out"),
        (lambda: forerun.GpuTable(0, 1, device="cpu"), "slots"),
        (lambda: forerun.GpuTable(-1, 1, device="cpu"), "`capacity` must be an integer from 0"),
        (lambda: forerun.GpuTable(100, 1, device="cpu", width=99), "`width`"),
        (lambda: forerun.GpuTable(100, 1, device="tpu"), "any, cpu, a GPU's number"),
        (lambda: forerun.GpuTable(100, 1, device="cpu", evict_strategy="fifo"), "epoch_lfu"),
        (lambda: forerun.GpuTable(100, 1, device="cpu", score_bytes=4), "scores of 4 bytes"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            call()
    assert len(table) == 0
    out = np.zeros((2, DIM), np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        table.find(keys, out)
    with pytest.raises(InvalidArgumentError, match="cannot be"):
        table.find(keys, np.zeros((2, DIM), np.float32), scores=keys)
    with pytest.raises((MemoryLimitError, MemoryError)):
        forerun.GpuTable(1 << 39, 1 << 20, device="cpu")


def test_rows_may_be_their_own_output(table):
    keys, rows = np.arange(10), rows_of(np.arange(10))
    table.find_or_insert(keys, rows, rows)
    again = rows_of(keys, 50)
    assert table.find_or_insert(keys, again, again) is again
    assert (again == rows_of(keys)).all()


def test_a_single_key_and_no_key_have_their_shapes(table):
    table.insert_or_assign(np.array(7), rows_of(np.array(7)))
    rows, found = table.find(np.array(7))
    assert rows.shape == (DIM,) and found.shape == () and found
    rows, found = table.find([])
    assert rows.shape == (0, DIM) and found.shape == (0,)


def test_a_closed_table_says_so(table):
    assert "4096 slots, 4 x float32, on cpu" in repr(table)
    table.close()
    table.close()
    assert table.closed and "closed" in repr(table)
    with pytest.raises(ClosedError, match="closed"):
        table.find([1])


def test_tensors_on_a_gpu_are_refused_by_a_table_on_the_cpu(table):
    cuda = importlib.import_module("test_dlpack").CudaTensor
    keys = cuda((2,), "int64")
    words = "`keys` is on a GPU, but the table is on the CPU"
    with pytest.raises(InvalidArgumentError, match=words):
        table.find(keys, np.zeros((2, DIM), np.float32), np.zeros(2, bool))


def test_it_frees_its_memory():
    tables = [forerun.GpuTable(1 << 16, 64, device="cpu") for _ in range(3)]
    del tables
    gc.collect()
    with pytest.raises(InvalidArgumentError, match="pickle"):
        import pickle

        pickle.dumps(forerun.GpuTable(100, 1, device="cpu"))


def test_arrays_of_jax_are_used_in_place_and_returned():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jax.config.update("jax_enable_x64", True)
    table = forerun.GpuTable(1000, DIM, device="cpu")
    keys = jax.numpy.arange(5)
    table.insert_or_assign(keys, jax.numpy.asarray(rows_of(np.arange(5))))
    rows, found = table.find(jax.numpy.array([4, 9]))
    assert isinstance(rows, jax.Array) and found.tolist() == [True, False]
    assert (np.asarray(rows)[0] == rows_of(4)).all()
