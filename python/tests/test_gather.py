"""`forerun.gather` and `forerun.scatter` compared with NumPy's indexing."""

import subprocess
import sys

import forerun
import numpy as np
import pytest

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 7, 164])
def test_agrees_with_fancy_indexing(dtype, threads, columns):
    host = RNG.random((500, columns), dtype=np.float32)
    sources = RNG.integers(0, 500, 200).astype(dtype)
    places = RNG.permutation(300)[:200].astype(dtype)
    device, expected = np.zeros((2, 300, columns), np.float32)
    expected[places] = host[sources]
    copied = forerun.gather(host, device, np.stack([sources, places], axis=1), threads=threads)
    assert copied.rows == 200
    assert (device == expected).all()

    back, expected = np.zeros((2, 500, columns), np.float32)
    to = RNG.permutation(500)[:200].astype(dtype)
    expected[to] = device[places]
    assert forerun.scatter(device, back, (places, to), threads=threads).rows == 200
    assert (back == expected).all()


def test_an_index_that_names_no_row_is_skipped_zeroed_and_counted():
    host = np.arange(1, 7, dtype=np.int64).reshape(3, 2)
    device = np.full((3, 2), 9, dtype=np.int64)
    pairs = np.array([[2, 0], [-1, 1], [0, -1], [7, 2]])
    copied = forerun.gather(host, device, pairs)
    assert (copied.rows, copied.skipped, copied.out_of_range) == (1, 3, 1)
    assert device.tolist() == [[5, 6], [9, 9], [9, 9]]
    assert forerun.gather(host, device, pairs, absent="zero").zeroed == 2
    assert device.tolist() == [[5, 6], [0, 0], [0, 0]]


def test_threads_are_refused_for_rows_on_a_gpu():
    class OnGpu:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            raise AssertionError("it is not used")

    rows, pairs = np.zeros((3, 2), np.float32), np.zeros((0, 2), np.int32)
    for copy, arrays in (forerun.gather, (rows, OnGpu())), (forerun.scatter, (OnGpu(), rows)):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="`threads` is only for"):
            copy(*arrays, pairs, threads=2)


@pytest.mark.parametrize("copy", [forerun.gather, forerun.scatter])
@pytest.mark.parametrize("first, second", [(100, 0), (0, 100), (0, 0)])
def test_arrays_without_rows_are_copied(copy, first, second):
    for shape in (16,), (4, 4), (0,):
        arrays = np.ones((first, *shape), np.float32), np.zeros((second, *shape), np.float32)
        if 0 in shape:
            with pytest.raises(forerun.errors.InvalidArgumentError, match="0 bytes"):
                copy(*arrays, np.zeros((0, 2), np.int32))
            continue
        assert copy(*arrays, np.zeros((0, 2), np.int32)).rows == 0
        # No row of an empty array exists.
        empty = (first == 0) + (second == 0)
        assert copy(*arrays, np.zeros((1, 2), np.int32)).out_of_range == empty
        with pytest.raises(forerun.errors.InvalidArgumentError, match="64 bytes.*68|68 bytes.*64"):
            copy(arrays[0], np.zeros((second, 17), np.float32), np.zeros((0, 2), np.int32))


def test_pairs_may_be_lists():
    host = np.arange(8.0).reshape(4, 2)
    for pairs in ([3, 0], [0, 1]), [(3, 0), (0, 1)], [np.array([3, 0]), (0, 1)]:
        device = np.zeros((2, 2))
        assert forerun.gather(host, device, pairs).rows == 2
        assert (device == host[[3, 0]]).all()
    for pairs in ([], []), np.zeros((0, 2), np.int64):
        assert forerun.gather(host, np.zeros((2, 2)), pairs).rows == 0
    for pairs in ([1.0], [0]), ([True], [0]), (["1"], [0]), ([1], [[0]]), [1, 0], [(1, 0, 1)]:
        with pytest.raises(forerun.errors.InvalidArgumentError, match="int32 or int64"):
            forerun.gather(host, np.zeros((2, 2)), pairs)


def test_dlpack_memory_is_used_in_place():
    class Tensor:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    host, device = np.arange(8.0).reshape(4, 2), np.zeros((2, 2))
    forerun.gather(Tensor(host), Tensor(device), np.array([[3, 1]]))
    assert device.tolist() == [[0, 0], [6, 7]]


@pytest.mark.parametrize(
    "host, device, pairs, words",
    [
        (np.zeros((4, 2)), np.zeros((4, 3)), np.zeros((1, 2), np.int64), "16 bytes"),
        (np.zeros((4, 2)), np.zeros((4, 2)), np.zeros((1, 3), np.int64), r"\(n, 2\)"),
        (np.zeros((4, 2)), np.zeros((4, 2)), np.zeros((1, 2)), "int32 or int64"),
        (np.zeros((4, 2)), np.zeros((4, 2)), (np.zeros(3, np.int64), np.zeros(2, np.int64)), "3"),
        (np.zeros((4, 2)).T, np.zeros((2, 4)), np.zeros((1, 2), np.int64), "contiguous"),
        ([1, 2], np.zeros((4, 2)), np.zeros((1, 2), np.int64), "host"),
    ],
)
def test_mismatched_arguments_are_refused_with_a_message(host, device, pairs, words):
    with pytest.raises(forerun.errors.InvalidArgumentError, match=words):
        forerun.gather(host, device, pairs)


def test_read_only_and_overlapping_memory_is_refused():
    rows, pairs = np.zeros((4, 2)), np.zeros((1, 2), np.int64)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="written"):
        forerun.gather(rows, rows, pairs)
    frozen = np.zeros((4, 2))
    frozen.flags.writeable = False
    with pytest.raises(forerun.errors.InvalidArgumentError, match="written"):
        forerun.gather(rows, frozen, pairs)


FEW_THREADS = """
import resource

import forerun
import numpy as np

host, device = np.random.random((5000, 64)), np.zeros((5000, 64))
pairs = np.stack([np.arange(5000), np.random.permutation(5000)], axis=1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
# A thread takes 2 MiB of address space for its stack: there is room for a few.
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), -1))
copied = forerun.gather(host, device, pairs, threads=500)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert copied.rows == 5000
assert (device[pairs[:, 1]] == host).all()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
def test_a_copy_is_whole_where_the_system_starts_fewer_threads():
    done = subprocess.run([sys.executable, "-c", FEW_THREADS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_machine_is_described():
    info = forerun.device_info()
    assert info["isa"]
    assert bool(info["gpus"]) != bool(info["no_gpu_because"])


def test_a_row_copy_is_prepared_without_a_gpu_and_refuses_cpu_memory():
    rows, pairs = np.zeros((3, 2), np.float32), np.zeros((1, 2), np.int32)
    for limit in (1, 16, None):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="`device` must be on a GPU"):
            forerun.RowCopy(limit)(rows, rows.copy(), None, pairs)
    for arguments, words in [
        ({"max_multiprocessors": 0}, "`max_multiprocessors` must be at least 1"),
        ({"max_multiprocessors": -1}, "`max_multiprocessors` must be an integer from 0"),
        ({"version": "v9"}, "`version` must be one of v5-r1.*v9"),
        ({"version": 5}, "`version` must be one of v5-r1"),
        ({"version": "v2"}, "`version` must be one of v5-r1, v5-r2, not \"v2\""),
    ]:
        with pytest.raises(forerun.errors.InvalidArgumentError, match=words):
            forerun.RowCopy(**arguments)
    forerun.RowCopy(16, "v5-r2")
