"""What calls on a GPU put on the caller's stream, over the fake driver of the Rust tests, which
needs no device and does work only when something waits for it.

The driver is found through an environment variable, so each test runs in a process of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DRIVER = TESTS.parent.parent / "crates/forerun-gpu/tests/driver/fake_driver.cpp"

SETUP = """
import ctypes, gc, sys, types, weakref
import numpy as np
import forerun
from test_dlpack import CudaTensor

cuda = ctypes.CDLL("libcuda.so")
for text in ("fakeCalls", "fakeFaults"):
    getattr(cuda, text).restype = ctypes.c_char_p
word = ctypes.c_uint64

def made(function, *arguments):
    value = word()
    assert getattr(cuda, function)(ctypes.byref(value), *arguments) == 0, function
    return value.value

assert cuda.cuInit(0) == 0
cuda.cuCtxSetCurrent(word(made("cuDevicePrimaryCtxRetain", 0)))
stream = made("cuStreamCreateWithPriority", 1, 0)

def array(address, shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)

def pinned(shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return array(made("cuMemHostAlloc", ctypes.c_size_t(size), 0), shape, dtype)

def on_gpu(values):
    # The memory of the fake device is the host's, so `there` shows it.
    address = made("cuMemAlloc_v2", ctypes.c_size_t(max(values.nbytes, 1)))
    there = array(address, values.shape, values.dtype)
    there[...] = values
    tensor = CudaTensor(values.shape, str(values.dtype))
    tensor.tensor.data, tensor.there = address, there
    return tensor

def calls():
    return cuda.fakeCalls().decode().split()

def finish():
    cuda.fakeFinish(1)

def faults():
    return cuda.fakeFaults().decode()

rng = np.random.default_rng(3)
host = pinned((64, 8), np.float32)
host[:] = rng.random((64, 8))
device = on_gpu(np.zeros((32, 8), np.float32))
pairs = np.stack([rng.permutation(64)[:20], rng.permutation(32)[:20]], axis=1)
expected = np.zeros((32, 8), np.float32)
expected[pairs[:, 1]] = host[pairs[:, 0]]
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    compilers = os.environ.get("CXX"), "c++", "g++", "clang++"
    compiler = next((name for name in compilers if name and shutil.which(name)), None)
    if compiler is None or not sys.platform.startswith("linux") or not DRIVER.exists():
        pytest.skip("no C++ compiler, or not the source tree")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so"
    flags = "-std=c++17", "-shared", "-fPIC", "-o"
    subprocess.run([compiler, *flags, str(library), str(DRIVER)], check=True)
    shutil.copy(library, folder / "libnvrtc.so")
    return folder


@pytest.fixture
def run(driver):
    def run(script):
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "XDG_CACHE_HOME": str(driver),
        }
        done = subprocess.run(
            [sys.executable, "-c", SETUP + script + "\nassert faults() == ''\n"],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize("indices", ["pairs", "(pairs[:, 0].copy(), pairs[:, 1].copy())"])
@pytest.mark.parametrize("place", ["given", "on_gpu"])
def test_a_steady_copy_is_a_launch_and_a_record_on_the_callers_stream(run, indices, place):
    run(f"""
given = {indices}
if {place!r} == "on_gpu":
    given = tuple(map(on_gpu, given)) if isinstance(given, tuple) else on_gpu(given)
assert forerun.gather(host, device, given, stream=stream) is None
finish(), calls()
allocated = cuda.fakeAllocated()
for _ in range(50):
    device.there[:] = 0
    forerun.gather(host, device, given, stream=stream)
    assert calls() == ["launch:1", "record:1"]
    assert not device.there.any()  # it has not run
    finish()
    assert (device.there == expected).all()
assert cuda.fakeAllocated() == allocated
back = pinned((64, 8), np.float32)
reversed_pairs = given[::-1] if isinstance(given, tuple) else pairs[:, ::-1].copy()
forerun.scatter(device, back, reversed_pairs, stream=stream)
assert calls() == ["launch:1", "record:1"]
finish()
assert (back[pairs[:, 0]] == host[pairs[:, 0]]).all() and np.count_nonzero(back) <= 160
forerun.gather(host, device, given, stream=stream, wait=True)
assert calls() == ["launch:1", "record:1", "wait:1"]
""")


def test_indices_in_host_memory_may_be_reused_after_the_call(run):
    run("""
given = pairs.copy()
forerun.gather(host, device, given, stream=stream)
given[:] = -1
finish()
assert (device.there == expected).all()
""")


def test_memory_of_a_copy_is_kept_until_it_has_run(run):
    run("""
temporary = host[:]
kept, there = weakref.ref(temporary), on_gpu(np.zeros((32, 8), np.float32))
forerun.gather(temporary, there, pairs, stream=stream)
del temporary
gc.collect()
assert kept() is not None and there.released == 0
forerun.gather(host, device, pairs, stream=stream)
assert kept() is not None and there.released == 0  # the first one has not run
finish()
forerun.gather(host, device, pairs, stream=stream)
gc.collect()
assert kept() is None and there.released == 1
assert (there.there == expected).all()

# PyTorch's allocator is told instead, if the stream was named.
class Tensor(CudaTensor):
    recorded = ()
    def record_stream(self, stream):
        self.recorded += stream,

there.__class__ = Tensor
named = types.SimpleNamespace(cuda_stream=stream)
forerun.gather(host, there, pairs, stream=named)
gc.collect()
assert there.recorded == (named,) and there.released == 2
forerun.gather(host, there, pairs, stream=named, wait=True)
assert there.recorded == (named,)
""")


def test_indices_out_of_range_are_counted(run):
    run("""
wrong = np.array([[64, 0], [-1, 0], [-5, 1], [3, 32]])
assert forerun.out_of_range_count() == 0
forerun.gather(host, device, wrong, stream=stream)
finish()
assert forerun.out_of_range_count() == 3
assert not device.there.any()
""")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_one_launch_copies_rows_and_updates_the_slot_map(run, dtype):
    run(f"""
evict_ids = np.full((2, 12, 2), -1, {dtype!r})
evict_ids.reshape(-1, 2)[:20] = pairs
evict_ids[1, 10] = 64, 3
ids, slots = on_gpu(evict_ids), on_gpu(np.full(64, -7, {dtype!r}))
wrong, count = on_gpu(np.zeros(1, np.int64)), on_gpu(np.array([24], {dtype!r}))
op = forerun.RowCopy(max_multiprocessors=4, version="v5-r2")
for _ in range(3):
    op(host, device, slots, ids, out_of_range=wrong, count=count, stream=stream)
    assert "wait:1" not in calls()
finish()
assert (device.there == expected).all()
of_row = np.full(64, -7)
of_row[pairs[:, 0]] = pairs[:, 1]
assert (slots.there == of_row).all()
assert wrong.there[0] == 3 and forerun.out_of_range_count() == 0
# The count limits the pairs, and is read when the launch runs.
device.there[:] = 0
op(host, device, None, ids, count=count, stream=stream)
count.there[0] = 2
finish()
assert np.count_nonzero(device.there.any(axis=1)) == 2
""")


def test_a_capture_gets_the_launches_and_keeps_their_indices(run):
    run("""
forerun.gather(host, device, pairs, stream=stream)  # loads the kernels
finish(), calls()
assert cuda.cuStreamBeginCapture_v2(word(stream), 0) == 0
for first in range(0, 20, 2):
    forerun.gather(host, device, pairs[first : first + 2].copy(), stream=stream)
assert calls() == ["launch:1"] * 10
handle = word()
assert cuda.cuStreamEndCapture(word(stream), ctypes.byref(handle)) == 0
instance = made("cuGraphInstantiateWithFlags", handle, word(0))
for _ in range(3):
    forerun.gather(host, device, np.zeros((1, 2), np.int64), stream=stream)
    finish()
    device.there[:] = 0
    assert cuda.cuGraphLaunch(word(instance), word(stream)) == 0
    finish()
    assert (device.there == expected).all()
""")


SIDES = """
forerun.out_of_range_count()  # opens the device
calls()

def side(arrays, row_bytes, rows=None, offsets=(0,), name="rows"):
    memories = [(a.ctypes.data if isinstance(a, np.ndarray) else a, None) for a in arrays]
    return types.SimpleNamespace(
        arguments=[(name, memories)], offsets=list(offsets), rows=rows, stride_bytes=row_bytes,
        pages=None,
    )

def place(indices):
    if isinstance(indices, CudaTensor):
        return indices.tensor.data, indices.there.size, indices.there.itemsize
    return indices.ctypes.data, indices.size, None

def transfer(source, destination, row_bytes, rows, to):
    forerun._forerun._transfer_rows(
        source, destination, row_bytes, place(rows), place(to), 1, 0, stream, None
    )
"""


@pytest.mark.parametrize("rows_at", ["np.asarray", "on_gpu"])
@pytest.mark.parametrize("to_at", ["np.asarray", "on_gpu"])
def test_layers_at_any_distance_are_one_launch_wherever_the_indices_are(run, rows_at, to_at):
    run(
        SIDES
        + f"""
layers = [pinned((64, 8), np.float32) for _ in range(5)]
for layer in layers:
    layer[:] = rng.random((64, 8))
outs = [on_gpu(np.zeros((32, 8), np.float32)) for _ in range(5)]
# Not equally far apart.
layers, outs = ([given[at] for at in (0, 2, 1, 4, 3)] for given in (layers, outs))
rows, to = {rows_at}(pairs[:, 0].copy()), {to_at}(pairs[:, 1].copy())
there = side([out.tensor.data for out in outs], 32, name="dst")
for _ in range(3):
    transfer(side(layers, 32, name="src"), there, 32, rows, to)
    made_calls = calls()
    assert made_calls == ["launch:1", "record:1"], made_calls
    finish()
for layer, out in zip(layers, outs):
    assert (out.there[pairs[:, 1]] == layer[pairs[:, 0]]).all()
    assert np.count_nonzero(out.there) <= 160
"""
    )


def test_long_pages_are_one_call_for_the_copy_engine(run):
    run(
        SIDES
        + """
page = 64 << 10
source, out = pinned((8, page), np.uint8), on_gpu(np.zeros((8, page), np.uint8))
source[:] = rng.integers(0, 256, 8)[:, None]
rows, to = np.array([5, 6, 1]), np.array([2, 3, 7])
transfer(side([source], page, 8, name="src"), side([out.tensor.data], page, 8), page, rows, to)
assert calls() == ["batch2:1"]
finish()
assert (out.there[to] == source[rows]).all() and not out.there[[0, 1, 4, 5, 6]].any()
"""
    )


def test_rows_behind_addresses_are_in_every_piece_of_their_memory(run):
    run(
        SIDES
        + """
cuda.fakePieces(256)  # eight rows, as the memory of expandable segments may be reported
sources, outs = pinned((3, 64, 8), np.float32), on_gpu(np.zeros((3, 32, 8), np.float32))
sources[:] = rng.random(sources.shape)
layers = [outs.tensor.data + layer * 1024 for layer in range(3)]
for indices_at in np.asarray, on_gpu:
    outs.there[:] = 0
    rows, to = (indices_at(pairs[:, column].copy()) for column in range(2))
    transfer(side(list(sources), 32, name="src"), side(layers, 32, name="dst"), 32, rows, to)
    finish()
    assert (outs.there[:, pairs[:, 1]] == sources[:, pairs[:, 0]]).all()
assert forerun.out_of_range_count() == 0
# A layer still ends where the next begins, and the last one where the memory does.
past = on_gpu(np.array([32]))
transfer(side(list(sources), 32), side(layers, 32), 32, on_gpu(np.array([0])), past)
finish()
assert forerun.out_of_range_count() == 3
try:
    transfer(side(list(sources), 32), side(layers, 32), 32, np.array([0]), past.there)
except forerun.errors.InvalidArgumentError as error:
    assert "room for 32 rows" in str(error), error
else:
    raise AssertionError
"""
    )


HOT_POOL = """
# A library that reuses memory in the order of its current stream.
cupy = types.ModuleType("cupy")
cupy.cuda = types.ModuleType("cupy.cuda")
cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=stream)
sys.modules.update({"cupy": cupy, "cupy.cuda": cupy.cuda})

def of(library, values):
    tensor = on_gpu(values)
    tensor.__class__ = type("Tensor", (CudaTensor,), {"__module__": library})
    return tensor

def integers(library, count=4):
    return of(library, np.arange(count, dtype=np.int32))

def kept(*tensors):
    return [len(tensor.streams) - tensor.released for tensor in tensors]

rows = of("cupy", np.zeros((1, 16, 8), np.float32))
pool = forerun.HotPool(host.reshape(1, 64, 8), rows, slots=16)
calls()
"""


def test_a_call_of_a_hot_pool_on_the_current_stream_is_one_launch_and_keeps_nothing(run):
    run(
        HOT_POOL
        + """
positions, requests, out = integers("cupy"), integers("cupy", 1), integers("cupy")
assert pool.resolve(0, positions, requests, out=out) is out
assert calls() == ["launch:1"]
assert kept(positions, requests, out, rows) == [0] * 4
assert set(positions.streams) == {stream}
"""
    )


@pytest.mark.parametrize("library, options", [("cupy", "stream=stream"), ("jaxlib", "")])
def test_temporary_tensors_of_a_hot_pool_are_kept_until_its_launch_has_run(run, library, options):
    run(
        HOT_POOL
        + f"""
given = [integers({library!r}, count) for count in (4, 1, 1, 4)]
positions, requests, batch, out = given
pool.resolve(0, positions, requests, batch=batch, out=out, {options})
assert calls() == ["launch:1", "record:1"]
assert kept(*given) == [1] * 4 and kept(rows) == [0]
last = integers({library!r}, 1)
pool.clear(last, {options})
assert kept(*given, last) == [1] * 5  # nothing has run
finish()
plan = pool.new_plan()
more = integers({library!r}, 1)
pool.replay(plan, (0, 1), batch=more, {options})
assert kept(*given, last, more) == [0] * 5 + [1]
# Before the arrays go, the pool waits.
del pool, plan
gc.collect()
assert kept(more) == [0] and "wait:1" in calls()
"""
    )
