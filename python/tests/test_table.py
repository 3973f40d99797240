"""`forerun.Table` compared with a dict of rows."""

import asyncio
import pickle
import random
import sys
import threading
import time

import forerun
import numpy as np
import pytest


def rows_of(keys, version=0, dim=4):
    """Rows that carry their key and a version."""
    return np.stack([np.asarray(keys, np.float32) + version] * dim, axis=-1)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("writes", ["through", "back"])
def test_agrees_with_a_dict_through_random_operations_and_a_reopening(tmp_path, on_disk, writes):
    if not on_disk and writes == "back":
        with pytest.raises(forerun.errors.InvalidArgumentError, match="path"):
            forerun.Table(4, writes=writes)
        return
    random.seed(5)
    options = {"path": tmp_path / "rows", "host_capacity": 50, "writes": writes} if on_disk else {}
    model = {}
    for _ in range(3 if on_disk else 1):
        with forerun.Table(4, **options) as table:
            for step in range(400):
                keys = np.array(random.choices(range(300), k=random.choice([1, 7, 40])), np.uint64)
                match random.randrange(5):
                    case 0:
                        rows = rows_of(keys, step)
                        table.insert(keys, rows)
                        model.update(zip(keys.tolist(), rows))
                    case 1:
                        unique = np.unique(keys)
                        found = table.add_at(unique, rows_of(unique))
                        for key, row, is_found in zip(unique.tolist(), rows_of(unique), found):
                            assert is_found == (key in model)
                            if is_found:
                                model[key] = model[key] + row
                    case 2:
                        table.erase(keys)
                        for key in keys.tolist():
                            model.pop(key, None)
                    case _:
                        rows, found = table.find(keys)
                        assert table.contains(keys).tolist() == found.tolist()
                        for key, row, is_found in zip(keys.tolist(), rows, found):
                            assert is_found == (key in model)
                            assert (row == model.get(key, np.zeros(4))).all()
            assert len(table) == len(model)
            exported = {
                int(key): row for keys, rows in table.export(64) for key, row in zip(keys, rows)
            }
            assert exported.keys() == model.keys()
            assert all((exported[key] == model[key]).all() for key in model)


def test_rows_take_the_shape_of_their_keys():
    table = forerun.Table(4)
    keys = np.arange(24).reshape(2, 3, 4)
    table.insert(keys, rows_of(keys))
    rows, found = table.find(keys[::-1])
    assert rows.shape == (2, 3, 4, 4) and found.shape == (2, 3, 4) and found.all()
    assert (rows == rows_of(keys[::-1])).all()
    rows, found = table.find([5, 99])
    assert rows.tolist() == [[5] * 4, [0] * 4] and found.tolist() == [True, False]
    assert (table[7] == 7).all() and 7 in table and 70 not in table
    with pytest.raises(KeyError):
        table[70]
    assert table.find(np.empty((0, 3), np.int64))[0].shape == (0, 3, 4)


def test_rows_are_copied_into_the_given_array():
    table = forerun.Table(4)
    table.insert(np.arange(10), rows_of(np.arange(10)))
    out, found = np.full((3, 4), 7, np.float32), np.zeros(3, bool)
    rows, flags = table.find(np.array([9, 10, 1]), out=out, found=found)
    assert rows is out
    assert out.tolist() == [[9] * 4, [7] * 4, [1] * 4]
    assert found.tolist() == flags.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
)
def test_every_type_comes_back_and_adds(dtype):
    table = forerun.Table(3, dtype)
    rows = np.arange(30).reshape(10, 3).astype(dtype)
    table.insert(np.arange(10), rows)
    table.add_at(np.arange(10), rows)
    back, _ = table.find(np.arange(10))
    assert back.dtype == rows.dtype and (back == rows + rows).all()


def test_every_64_bit_key_is_legal():
    table = forerun.Table(1, "int64")
    keys = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    table.insert(keys, np.arange(5))
    assert table.find(keys)[0].ravel().tolist() == [0, 1, 2, 3, 4]
    assert table.find(keys.view(np.int64))[1].all()


def test_mismatched_arguments_are_refused_with_a_message(tmp_path):
    table = forerun.Table(4)
    refused = pytest.raises(forerun.errors.InvalidArgumentError)
    with refused:
        table.insert(np.arange(3), np.zeros((2, 4), np.float32))
    with refused:
        table.find([1], out=np.zeros((1, 5), np.float32))
    with refused:
        table.insert([1], "row")
    with pytest.raises(
        forerun.errors.InvalidArgumentError, match="float64, but the rows are of float32"
    ):
        table.find([1], out=np.zeros((1, 2), np.float64))
    with pytest.raises(
        forerun.errors.InvalidArgumentError, match="int32, but the rows are of float32"
    ):
        table.insert([1], np.zeros((1, 4), np.int32))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="contiguous"):
        table.find([1, 2], out=np.zeros((4, 2), np.float32).T)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="written"):
        frozen = np.zeros((1, 4), np.float32)
        frozen.flags.writeable = False
        table.find([1], out=frozen)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="each key: 3 in all, not 2"):
        table.find([1, 2, 3], found=np.zeros(2, bool))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="bool"):
        table.find([1], found=np.zeros(1, np.uint8))
    with refused:
        forerun.Table(4, "complex64")
    with refused:
        forerun.Table(4, evict_strategy="random")
    with refused:
        forerun.Table(0)
    with refused:
        forerun.Table(4, host_capacity=5, host_bytes=5)
    with pytest.raises(ValueError, match="pickled"):
        pickle.dumps(table)
    forerun.Table(4, path=tmp_path / "rows").close()
    with pytest.raises(forerun.errors.VersionError):
        forerun.Table(5, path=tmp_path / "rows")
    table.close()
    table.close()
    with pytest.raises(forerun.errors.ClosedError):
        table.find([1])


def test_keys_that_are_written_over_while_they_are_read_are_refused():
    table = forerun.Table(1, "int64")
    keys = np.arange(4)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="written"):
        table.find(keys, out=keys.reshape(4, 1))


def test_keys_of_any_layout_are_taken():
    table = forerun.Table(4)
    keys = np.arange(24, dtype=np.uint64).reshape(4, 6)
    table.insert(keys, rows_of(keys))
    for some in (
        keys.T,
        keys[::2, ::-3],
        keys[1, 1],
        np.asfortranarray(keys).view(np.int64),
        keys.tolist(),
    ):
        rows, found = table.find(some)
        assert found.shape == np.shape(some) and found.all()
        assert np.array_equal(rows, rows_of(some))
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "uint32", ">i8", ">u4"):
        for some in (
            keys.astype(dtype),
            keys.astype(dtype).T,
            keys.astype(dtype)[1, 1:2].reshape(()),
        ):
            rows, found = table.find(some)
            assert found.shape == some.shape and found.all()
            assert np.array_equal(rows, rows_of(some))


def test_flags_that_are_given_are_those_that_are_returned():
    table = forerun.Table(4)
    table[1] = np.zeros(4, np.float32)
    flat, square = np.zeros(4, bool), np.zeros((2, 2), bool)
    keys = np.array([[1, 2], [2, 1]])
    assert table.find(keys, found=square)[1] is square and square.tolist() == [
        [True, False],
        [False, True],
    ]
    given = table.find(keys, found=flat)[1]
    assert (
        given.shape == (2, 2)
        and flat.tolist() == [True, False, False, True]
        and np.shares_memory(given, flat)
    )


def test_half_precision_and_raw_bits_are_accepted():
    for dtype, as_numpy in [("float16", np.float16), ("bfloat16", np.uint16)]:
        table = forerun.Table(4, dtype)
        rows = np.arange(12).reshape(3, 4).astype(as_numpy)
        table.insert(np.arange(3), rows)
        out = np.zeros((3, 4), as_numpy)
        assert table.find(np.arange(3), out=out)[0] is out and (out == rows).all()
        assert (table.find(np.arange(3))[0] == rows).all()
        as_bytes = np.zeros((3, 8), np.uint8)
        table.find(np.arange(3), out=as_bytes)
        assert (as_bytes.view(as_numpy) == rows).all()


def test_rows_are_loaded_to_disk_and_promoted(tmp_path):
    with forerun.Table(4, path=tmp_path / "rows", host_capacity=100) as table:
        keys = np.arange(1000)
        table.import_rows(keys, rows_of(keys))
        assert table.stats()["host_rows"] == 0 and table.find(keys)[1].all()
        table.prefetch(keys[:50])
        table.wait_idle()
        before = table.stats()
        assert table.find(keys[:50])[1].all()
        assert table.stats()["host_hits"] - before["host_hits"] == 50


def test_a_device_tier_returns_promoted_rows_and_describes_itself():
    table = forerun.Table(4, device_capacity=100, device="cpu", host_capacity=1000)
    assert table.device == "cpu" and forerun.Table(4).device is None
    assert table.gpu is None and forerun.Table(4).gpu is None
    keys = np.arange(500)
    table.insert(keys, rows_of(keys))
    table.prefetch(keys[:50])
    table.wait_idle()
    before = table.stats()
    assert np.array_equal(table.find(keys)[0], rows_of(keys))
    after = table.stats()
    assert after["device_hits"] - before["device_hits"] > 0
    hits = sum(after[name] - before[name] for name in ("device_hits", "host_hits", "store_hits"))
    assert hits == 500 and after["device_rows"] <= after["device_capacity_rows"]
    with pytest.raises(forerun.errors.InvalidArgumentError, match="cpu"):
        forerun.Table(4, device_capacity=100, device="tpu")
    if not forerun.device_info()["gpus"]:
        with pytest.raises(forerun.errors.DeviceError, match="GPU"):
            forerun.Table(4, device_capacity=100, device=0)


def test_a_device_tier_finds_what_was_inserted_with_or_without_a_gpu():
    table = forerun.Table(4, device_capacity=1000)
    keys = np.arange(100)
    table.insert(keys, rows_of(keys))
    for _ in range(4):
        rows, found = table.find(keys)
        assert found.all() and np.array_equal(rows, rows_of(keys))


def test_find_can_be_awaited():
    table = forerun.Table(4)
    table.insert(np.arange(100), rows_of(np.arange(100)))

    async def ask():
        return await asyncio.gather(*(table.find_async(np.array([key])) for key in range(100)))

    for key, (rows, found) in enumerate(asyncio.run(ask())):
        assert found.all() and (rows == key).all()


def test_threads_see_whole_rows(tmp_path):
    table = forerun.Table(64, path=tmp_path / "rows", host_capacity=200)
    keys = np.arange(500)
    table.insert(keys, rows_of(keys, dim=64))
    stop = threading.Event()

    def write():
        for version in range(1, 60):
            table.insert(keys, rows_of(keys, 1000 * version, dim=64))
        stop.set()

    def read():
        while not stop.is_set():
            rows, found = table.find(np.random.randint(0, 500, 100))
            assert found.all()
            assert (rows == rows[:, :1]).all()

    failures = []
    threads = [
        threading.Thread(target=lambda f=f: failures.append(1) if f() else None)
        for f in (write, read, read)
    ]
    previous, threading.excepthook = (
        threading.excepthook,
        lambda args: failures.append(args.exc_value),
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.excepthook = previous
    assert not failures


def test_rows_of_16_bits_that_repeat_in_a_call_are_summed_before_they_are_rounded():
    table = forerun.Table(2, "float16")
    table.insert([1], np.zeros((1, 2), np.float16))
    table.add_at(np.ones(4095, np.uint64), np.ones((4095, 2), np.float16))
    assert table[1].tolist() == [4096.0, 4096.0]


@pytest.mark.parametrize("read", [forerun.Table.stats, repr])
def test_other_threads_run_while_figures_are_read(tmp_path, read):
    # No thread is made to give up the interpreter: others run only while a call lets go of it.
    go, ran, interval = threading.Lock(), threading.Event(), sys.getswitchinterval()
    with forerun.Table(4, path=tmp_path / "rows") as table:
        go.acquire()
        other = threading.Thread(target=lambda: go.acquire() and ran.set())
        other.start()
        sys.setswitchinterval(1000)
        try:
            go.release()
            deadline = time.monotonic() + 20
            while not ran.is_set() and time.monotonic() < deadline:
                read(table)
            has_run = ran.is_set()
        finally:
            sys.setswitchinterval(interval)
        other.join()
    assert has_run
