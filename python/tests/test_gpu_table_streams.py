"""`forerun.GpuTable` with the fake driver of forerun-gpu's tests: what is put on which stream, and
how long the memory of tensors is kept. Kernels do not run there."""

import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

TESTS = pathlib.Path(__file__).parent
SOURCE = TESTS.parents[1] / "crates/forerun-gpu/tests/driver/fake_driver.cpp"
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)

PROLOGUE = """
import ctypes, gc, sys
sys.path.insert(0, {tests!r})
import forerun, numpy as np
from test_dlpack import CudaTensor

driver = ctypes.CDLL("libcuda.so")
driver.fakeCalls.restype = driver.fakeFaults.restype = ctypes.c_char_p
context = ctypes.c_void_p()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)

def calls():
    return driver.fakeCalls().decode().split()

def finish():
    "Waits for what is on the default stream."
    driver.cuCtxPushCurrent_v2(context)
    assert driver.cuStreamSynchronize(None) == 0
    driver.cuCtxPopCurrent_v2(None)
    assert calls() == ["wait:0"]

class Tensor(CudaTensor):
    "In the fake device's memory."
    def __init__(self, shape, dtype):
        super().__init__(shape, dtype)
        self.shape = shape
        address = ctypes.c_uint64()
        driver.cuCtxPushCurrent_v2(context)
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 16)) == 0
        driver.cuCtxPopCurrent_v2(None)
        self.tensor.data = address.value

# Of a library that reuses memory in the order of its current stream.
Ordered = type("Ordered", (Tensor,), {{"__module__": "cupy"}})
STREAM = 0x2000 + 77
table = forerun.GpuTable(4096, 4, device=0)
assert table.gpu == 0
calls()
"""


def run(tmp_path, script):
    if COMPILER is None or not SOURCE.exists() or sys.platform != "linux":
        pytest.skip("no C++ compiler, or not the source tree")
    library = tmp_path / "libcuda.so"
    flags = ["-std=c++17", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([COMPILER, *flags, str(SOURCE)], check=True)
    shutil.copy(library, tmp_path / "libnvrtc.so")
    program = PROLOGUE.format(tests=str(TESTS)) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"LD_LIBRARY_PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_a_call_is_one_launch_on_the_given_stream(tmp_path):
    run(
        tmp_path,
        """
        keys, rows = Ordered((8,), "int64"), Ordered((8, 4), "float32")
        found, scores = Ordered((8,), "uint8"), Ordered((8,), "int64")
        # Ordered tensors on another stream are kept, which takes an event.
        table.find(keys, rows, found, scores=scores, stream=STREAM)
        assert calls() == ["launch:77", "record:77"]
        assert keys.streams == rows.streams == [STREAM]
        table.insert_or_assign(keys, rows, scores=scores, status=found, stream=STREAM)
        assert calls() == ["launch:77", "record:77"]
        count = Ordered((1,), "int64")
        table._table.scan("count", {"entry_count": count}, slots=(0, 99), scores=(0, 5),
                          key_bits=(0, 0), stream=STREAM)
        assert calls() == ["launch:77", "record:77"]
        table.clear(stream=STREAM)
        assert calls() == ["launch:77"]
        assert table.size(stream=STREAM) == 0
        assert calls()[0] == "wait:77"
        assert driver.fakeFaults() == b""
        """,
    )


def test_tensors_of_other_libraries_are_kept_until_the_device_is_done(tmp_path):
    run(
        tmp_path,
        """
        keys, found = Tensor((8,), "int64"), Tensor((8,), "uint8")
        table.contains(keys, found)
        # The default stream of a library that has none: kept, although nothing waits.
        assert calls() == ["launch:0", "record:0"]
        assert keys.streams == [1] and keys.released == found.released == 0
        finish()
        table.contains(Tensor((8,), "int64"), Tensor((8,), "uint8"))
        assert keys.released == found.released == 1
        assert calls() == ["launch:0", "record:0"]
        last = Tensor((8,), "int64")
        table.contains(last, found)
        table.close()
        assert last.released == 1 and "wait:0" in calls()
        """,
    )


def test_pinned_arrays_are_kept_until_the_device_is_done(tmp_path):
    run(
        tmp_path,
        """
        import weakref
        address = ctypes.c_uint64()
        driver.cuCtxPushCurrent_v2(context)
        assert driver.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(64), 0) == 0
        driver.cuCtxPopCurrent_v2(None)
        keys = np.frombuffer((ctypes.c_char * 64).from_address(address.value), np.int64)
        kept = weakref.ref(keys)
        table.contains(keys, Ordered((8,), "uint8"))
        del keys
        gc.collect()
        assert kept() is not None
        table.close()
        gc.collect()
        assert kept() is None
        """,
    )


def test_a_capture_is_not_ended_by_a_question_about_its_events(tmp_path):
    run(
        tmp_path,
        """
        driver.cuStreamEndCapture.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
        driver.cuStreamBeginCapture_v2.argtypes = [ctypes.c_uint64, ctypes.c_int]
        keys, found = Tensor((8,), "int64"), Tensor((8,), "uint8")
        captured = Tensor((8,), "int64")
        table.contains(keys, found, stream=STREAM)
        calls()
        driver.cuCtxPushCurrent_v2(context)
        assert driver.cuStreamBeginCapture_v2(STREAM, 0) == 0
        driver.cuCtxPopCurrent_v2(None)
        for _ in range(2):
            table.contains(captured, found, stream=STREAM)
        assert "record:77" not in calls()
        driver.cuCtxPushCurrent_v2(context)
        graph = ctypes.c_uint64()
        assert driver.cuStreamEndCapture(STREAM, ctypes.byref(graph)) == 0
        driver.cuCtxPopCurrent_v2(None)
        # A replay needs the tensor.
        table.contains(keys, found, stream=STREAM)
        assert captured.released == 0
        table.close()
        assert captured.released == 2
        """,
    )


def test_new_arrays_of_other_libraries_are_exported_in_order(tmp_path):
    run(
        tmp_path,
        """
        rows, found = table.find(Tensor((2, 4), "int64"), stream=STREAM)
        assert type(rows) is forerun.gpu_table.DeviceArray
        assert rows.shape == (2, 4, 4) and rows.dtype == "float32" and found.dtype == "uint8"
        assert rows.__dlpack_device__() == (2, 0)
        # Two arrays of zeros, each marked, the launch, both marked again, the tensors kept.
        words = [call.split(":")[0] for call in calls() if call.endswith(":77")]
        assert words == ["fill", "record"] * 2 + ["launch"] + ["record"] * 3, words
        capsule = rows.__dlpack__(stream=STREAM, max_version=(1, 0))
        assert "dltensor" in repr(capsule)
        # What is exported is a tensor for the next call.
        table.insert_or_assign(Tensor((2, 4), "int64"), rows, stream=STREAM)
        del rows, capsule
        gc.collect()
        for copy in (True,):
            try:
                found.__dlpack__(copy=copy)
            except BufferError as error:
                assert "without a copy" in str(error)
            else:
                raise AssertionError
        entries = table.export_batch(0, 100)
        assert entries.rows.shape == (100, 4)
        """,
    )


def test_memory_elsewhere_is_refused(tmp_path):
    run(
        tmp_path,
        """
        def refused(call, words):
            try:
                call()
            except forerun.errors.InvalidArgumentError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)

        keys, found = Tensor((8,), "int64"), Tensor((8,), "uint8")
        refused(lambda: table.contains(np.arange(8), found), "ordinary host memory")
        keys.tensor.data += 1
        refused(lambda: table.contains(keys, found), "the keys: ")
        refused(lambda: table.contains(Tensor((8,), "float32"), found), "int64 or uint64")
        refused(lambda: table.contains(Tensor((8,), "int64"), Tensor((9,), "uint8")), "9 bytes")
        assert calls() == []
        """,
    )
