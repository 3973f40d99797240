"""Tensors of other libraries: CPU tensors are used in place, GPU tensors are passed to the GPU.

Without a GPU, an object that claims to be a tensor on one stands in. Only its description is read.
"""

import asyncio
import ctypes
import gc
import sys
import threading
import types

import forerun
import numpy as np
import pytest

CPU, CUDA = 1, 2
CODES = {
    "int": 0,
    "uint": 1,
    "float": 2,
    "bfloat": 4,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
}


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        # The rest of a `DLManagedTensor`.
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class VersionedTensor(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    ]


Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, Destructor]


class CudaTensor:
    """The description of a tensor on a GPU. It records the streams it was exported for, and how
    often it was released."""

    # A capsule may outlive the names of its tensor.
    all = []

    def __init__(self, shape, dtype="float32", device=0, strides=None):
        kind = dtype.rstrip("0123456789")
        extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        steps = (ctypes.c_int64 * max(len(shape), 1))(*strides) if strides else None
        self.tensor = DlTensor(
            0x7F00_0000_0000,
            CUDA,
            device,
            len(shape),
            CODES[kind],
            int(dtype[len(kind) :]),
            1,
            extents,
            steps,
            0,
        )
        self.device_number, self.streams, self.released = device, [], 0
        self.destructor = Destructor(self.release)
        CudaTensor.all.append(self)

    def release(self, _capsule):
        self.released += 1

    def __dlpack_device__(self):
        return CUDA, self.device_number

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", self.destructor)


class ReadOnlyCudaTensor(CudaTensor):
    """One that must not be written."""

    def __dlpack__(self, *, stream=None, max_version=None):
        assert max_version == (1, 0)
        self.versioned = VersionedTensor(1, 0, None, None, 1, self.tensor)
        return new_capsule(
            ctypes.addressof(self.versioned), b"dltensor_versioned", self.destructor
        )


class Tensor:
    """A tensor in CPU memory that is not an array."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Described:
    """A tensor in CPU memory of a type that NumPy may lack. `array` holds its bits."""

    def __init__(self, array, dtype, is_read_only=False, version=1):
        self.array, self.version, self.released = array, version, 0
        kind, bits = dtype, array.itemsize * 8
        if dtype not in CODES:
            kind = dtype.rstrip("0123456789")
        axes = max(array.ndim, 1)
        shape = (ctypes.c_int64 * axes)(*array.shape)
        strides = (ctypes.c_int64 * axes)(*(step // array.itemsize for step in array.strides))
        code = CODES[kind]
        tensor = DlTensor(array.ctypes.data, CPU, 0, array.ndim, code, bits, 1, shape, strides)
        self.keep = shape, strides
        self.versioned = VersionedTensor(version, 0, None, None, int(is_read_only), tensor)
        self.destructor = Destructor(self.release)

    def release(self, _capsule):
        self.released += 1

    def __dlpack_device__(self):
        return CPU, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        described, name = self.versioned.tensor, b"dltensor"
        if max_version is not None:
            described, name = self.versioned, b"dltensor_versioned"
        return new_capsule(ctypes.addressof(described), name, self.destructor)


class Unversioned(Described):
    """Of a library from before DLPack 1.0."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__()


class Immutable(Described):
    """Of a library that knows DLPack 1.0 and describes its arrays, which must not be written, by
    the older structure, which cannot say so. JAX is one."""

    def __dlpack__(self, *, stream=None, max_version=None):
        return super().__dlpack__(stream=stream)


class ImmutableCudaTensor(CudaTensor):
    """Such an array on a GPU."""

    def __dlpack__(self, *, stream=None, max_version=None):
        return super().__dlpack__(stream=stream)


refused = forerun.errors.InvalidArgumentError
HOST, PAIRS = np.zeros((10, 4), np.float32), np.zeros((2, 2), np.int64)


def test_cpu_tensors_are_used_in_place():
    table = forerun.Table(4)
    keys, rows = np.arange(6, dtype=np.int64), np.arange(24, dtype=np.float32).reshape(6, 4)
    table.insert(Tensor(keys), Tensor(rows))
    out, found = Tensor(np.zeros((2, 3, 4), np.float32)), Tensor(np.zeros((2, 3), bool))
    given, flags = table.find(Tensor(keys[::-1].copy().reshape(2, 3)), out, found)
    assert given is out and (out.array.reshape(6, 4) == rows[::-1]).all()
    assert found.array.all() and flags.all()


def bits_of(numbers):
    """The bits of numbers in bfloat16, whose fraction has 7 bits."""
    return (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", [Described, Unversioned])
def test_tensors_of_bfloat16_are_rows(kind):
    keys = np.arange(6)
    rows = bits_of(np.arange(24).reshape(6, 4))
    table, tensor = forerun.Table(4, "bfloat16"), kind(rows, "bfloat")
    table.insert(keys, tensor)
    out = kind(np.zeros((6, 4), np.uint16), "bfloat")
    given, found = table.find(keys, out)
    assert given is out and found.all() and (out.array == rows).all()
    table.add_at(keys, tensor)
    assert (table.find(keys)[0] == bits_of(2 * np.arange(24).reshape(6, 4))).all()
    table.assign(keys, tensor)
    assert (table.find(keys)[0] == rows).all()
    del given
    gc.collect()
    assert tensor.released == 3 and out.released == 1
    pooled = kind(np.zeros((2, 4), np.uint16), "bfloat")
    table.find_pooled(keys, [0, 1, 6], dtype="bfloat16", out=pooled)
    assert (pooled.array[0] == rows[0]).all()


def test_a_type_that_numpy_lacks_is_not_taken_for_another():
    halves, table = Described(bits_of([[1, 2, 3, 4]]), "bfloat"), forerun.Table(4)
    with pytest.raises(refused, match="array of bfloat16, but the rows are of float32"):
        table.insert([1], halves)
    for dtype in "float16", "float32":
        with pytest.raises(refused, match="array of bfloat16"):
            forerun.Table(4, dtype).find([1], halves)
    keys = Described(bits_of([1, 2]), "bfloat")
    with pytest.raises(refused, match="array of bfloat16: keys must be integers"):
        table.contains(keys)
    with pytest.raises(refused, match="of bfloat16"):
        forerun.Cache().multi_get(keys)
    with pytest.raises(refused, match="array of float8_e5m2, but the rows are of uint8"):
        forerun.Table(4, "uint8").insert([1], Described(np.ones((1, 4), np.uint8), "float8_e5m2"))


@pytest.mark.parametrize(
    "dtype, bits", [("bfloat", np.uint16), ("float8_e4m3fn", np.uint8), ("float8_e5m2", np.uint8)]
)
def test_rows_of_a_type_that_numpy_lacks_are_copied_and_stored(tmp_path, dtype, bits):
    rows = np.arange(24, dtype=bits).reshape(6, 4)
    source, target = Described(rows, dtype), Described(np.zeros((3, 4), bits), dtype)
    forerun.gather(source, target, ([5, 0], [0, 2]))
    assert (target.array == [rows[5], [0] * 4, rows[0]]).all()
    forerun.scatter(source, target, ([1], [1]))
    assert (target.array[1] == rows[1]).all()
    with forerun.Db(tmp_path / "store") as db, forerun.Cache() as cache:
        keys = np.arange(6)
        for write, look_up in (
            (db.put_many, db.multi_get),
            (cache.set_many, cache.multi_get),
        ):
            write(keys, source)
            out = Described(np.zeros((6, 4), bits), dtype)
            assert look_up(keys, out=out).all() and (out.array == rows).all()
            write(["a", "b"], [Described(row, dtype) for row in rows[:2]])
            assert look_up(["a", "b"]) == [row.tobytes() for row in rows[:2]]


def test_tensors_may_be_empty_or_have_gaps_or_no_dimension():
    table = forerun.Table(4)
    table.insert(Described(np.zeros(0, np.int64), "int"), np.zeros((0, 4), np.float32))
    keys = np.arange(12, dtype=np.int32)[::-3]
    table.insert(keys, np.ones((4, 4), np.float32))
    assert table.contains(Described(keys, "int")).all()
    assert table.contains(Described(np.array(11), "int")).all()
    assert not table.contains(Described(np.array([[0, 10]]), "int")).any()
    with pytest.raises(refused, match="not C-contiguous"):
        table.insert([1, 2], Described(np.ones((4, 4), np.float32)[::2], "float"))


def test_a_read_only_tensor_is_not_written():
    table, rows = forerun.Table(4), np.ones((2, 4), np.float32)
    table.insert([1, 2], Described(rows, "float", is_read_only=True))
    for out in Described(rows, "float", is_read_only=True), ReadOnlyCudaTensor([2, 4]):
        with pytest.raises(refused, match="`out` cannot be written.*read-?only|not writeable"):
            table.find([3, 4], out)
    with pytest.raises(refused, match="`device` cannot be written.*read-only"):
        forerun.gather(HOST, ReadOnlyCudaTensor([2, 4]), PAIRS)
    with pytest.raises(refused, match="`out` cannot be written"):
        forerun.Cache().multi_get(["a", "b"], out=Described(rows, "float", is_read_only=True))


def test_an_immutable_tensor_is_read_and_not_written():
    table, cache, rows = forerun.Table(4), forerun.Cache(), np.ones((2, 4), np.float32)
    immutable = Immutable(rows, "float")
    table.insert([1, 2], immutable)
    assert table.find([1, 2])[1].all()
    cache.set_many(["a", "b"], immutable)
    pairs = np.array([[0, 1]])
    for write in (
        lambda: table.find([3, 4], immutable),
        lambda: table.find([3, 4], ImmutableCudaTensor([2, 4])),
        lambda: table.find([1, 2], None, Immutable(np.ones(2, bool), "bool")),
        lambda: cache.multi_get(["c", "d"], out=immutable),
        lambda: forerun.gather(HOST, immutable, pairs),
        lambda: forerun.scatter(HOST, immutable, pairs),
        lambda: forerun.gather(HOST, ImmutableCudaTensor([8, 4]), pairs),
    ):
        with pytest.raises(refused, match="cannot be written.*read-?only|not writeable"):
            write()
    assert (rows == 1).all()


def test_a_tensor_of_another_dlpack_is_refused():
    with pytest.raises(refused, match="version 2 of DLPack"):
        forerun.Table(4).insert([1], Described(np.ones((1, 4), np.float32), "float", version=2))


def test_the_memory_of_a_tensor_outlives_the_tensor():
    table, numbers = forerun.Table(4), np.zeros(2, bool)
    found = Described(numbers, "bool")
    flags = table.find([1, 2], None, found)[1]
    assert found.released == 0 and flags.base is not None
    del flags
    gc.collect()
    assert found.released == 1


def test_a_lookup_names_the_device_of_an_unusable_tensor():
    table = forerun.Table(4)
    with pytest.raises(refused, match="`keys` is on CUDA device 1"):
        table.find(CudaTensor([2], "int64", device=1))
    with pytest.raises(refused, match="`out` is on CUDA device 0"):
        table.find([1, 2], out=CudaTensor([2, 4]))
    with pytest.raises(refused, match="`rows` is on CUDA device 0"):
        table.insert([1, 2], CudaTensor([2, 4]))


@pytest.mark.parametrize("device_capacity", [0, 10])
def test_rows_are_found_into_gpu_tensors_with_and_without_a_device_tier(device_capacity):
    table, out, found = (
        forerun.Table(4, device_capacity=device_capacity),
        CudaTensor([2, 4]),
        np.ones(2, bool),
    )
    if table.device not in (None, "cpu"):
        pytest.skip("there is a GPU, and the tensor is not in its memory")
    with pytest.raises(refused, match="`out` is on CUDA device 0.* no device tier on a GPU"):
        table.find([1, 2], out, found)
    gc.collect()
    assert out.streams == [1] and out.released == 1 and found.all()


def test_lookups_pass_the_calling_threads_stream_to_producers(monkeypatch):
    library, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    main, streams = threading.get_ident(), {True: 0x1234, False: 0x5678}
    cuda.get_current_stream = lambda: types.SimpleNamespace(
        ptr=streams[threading.get_ident() == main]
    )
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(CudaTensor, "__module__", "cupy._core")
    table, out = forerun.Table(4), CudaTensor([2, 4])

    async def look_up(**named):
        with pytest.raises((refused, forerun.errors.DeviceError)):
            await table.find_async([1, 2], out, **named)

    asyncio.run(look_up())
    asyncio.run(look_up(stream=0x77))
    with pytest.raises((refused, forerun.errors.DeviceError)):
        table.find([1, 2], out)
    assert out.streams == [0x1234, 0x77, 0x1234]


@pytest.mark.parametrize(
    "out, words",
    [
        (CudaTensor([2, 5]), "32 bytes.* 40"),
        (CudaTensor([2, 4], "float64"), "8 bytes.*float32"),
        (CudaTensor([2, 4], "int32"), "type 0.*float32"),
        (CudaTensor([2, 4], strides=[8, 1]), "not contiguous"),
        (CudaTensor([1 << 62, 1 << 62]), "larger than memory"),
    ],
)
def test_a_tensor_that_does_not_fit_a_lookup_is_refused(out, words):
    with pytest.raises(refused, match=words):
        forerun.Table(4).find([1, 2], out)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bfloat16"]
)
def test_dlpack_element_types_are_recognised(dtype):
    table = forerun.Table(4, dtype)
    if table.device is None:
        for given in {dtype, "uint16" if dtype == "bfloat16" else dtype}:
            with pytest.raises(refused, match="no device tier"):
                table.find([1], CudaTensor([1, 4], given))


@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_the_gpu_copies_its_rows(direction):
    device = CudaTensor([8, 4])
    sides = (HOST, device) if direction == "gather" else (device, HOST.copy())
    if forerun.device_info()["gpus"]:
        pytest.skip("there is a GPU, and the tensor is not in its memory")
    with pytest.raises(forerun.errors.DeviceError, match="driver"):
        getattr(forerun, direction)(*sides, PAIRS)
    gc.collect()
    assert device.streams == [1] and device.released == 1


@pytest.mark.parametrize(
    "stream, passed",
    [
        (None, 1),
        (0, 1),
        (2, 2),
        (0x5555, 0x5555),
        (types.SimpleNamespace(cuda_stream=0x5555), 0x5555),
        (types.SimpleNamespace(cuda_stream=0), 1),
        (types.SimpleNamespace(ptr=0x77), 0x77),
    ],
)
def test_producers_get_the_stream(stream, passed):
    device, pairs = CudaTensor([8, 4]), CudaTensor([3, 2], "int32", device=1)
    with pytest.raises(refused, match="`pairs` are on CUDA device 1"):
        forerun.gather(HOST, device, pairs, stream=stream)
    assert device.streams == pairs.streams == [passed]


def test_without_a_stream_it_is_the_current_one_of_the_tensors_library(monkeypatch):
    library, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0x1234)
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(CudaTensor, "__module__", "cupy._core")
    device = CudaTensor([8, 5])
    with pytest.raises(refused):
        forerun.gather(HOST, device, PAIRS)
    assert device.streams == [0x1234]


@pytest.mark.parametrize(
    "device, pairs, words",
    [
        (CudaTensor([8, 5]), PAIRS, "16 bytes.* 20"),
        (CudaTensor([]), PAIRS, "0 dimensions"),
        (CudaTensor([8, 4], strides=[8, 1]), PAIRS, "not contiguous"),
        (CudaTensor([-1, 4]), PAIRS, "negative"),
        (CudaTensor([8, 4]), CudaTensor([3, 3], "int64"), r"\[\.\.\., 2\]"),
        (CudaTensor([8, 4]), CudaTensor([3, 2], "float32"), "int32 or int64"),
        (CudaTensor([8, 4]), (CudaTensor([3], "int32"), np.zeros(3, np.int32)), "the same place"),
        (CudaTensor([8, 4]), (CudaTensor([3], "int32"), CudaTensor([4], "int32")), "not 3 and 4"),
        (CudaTensor([8, 4]), (CudaTensor([3], "int32"), CudaTensor([3], "int64")), "the same type"),
        (CudaTensor([8, 4]), np.zeros((2, 3), np.int64), r"\(n, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_device_is_opened(device, pairs, words):
    with pytest.raises(refused, match=words):
        forerun.gather(HOST, device, pairs)


def test_equivalent_strides_are_contiguous():
    for shape, strides in ([8, 4], [4, 1]), ([1, 4], [99, 1]), ([0, 4], [7, 7]):
        with pytest.raises(
            (refused, forerun.errors.DeviceError), match="driver|rows|GPU"
        ) as caught:
            forerun.gather(HOST, CudaTensor(shape, strides=strides), PAIRS)
        assert "contiguous" not in str(caught.value)


def test_a_stream_is_for_a_gpu():
    with pytest.raises(refused, match="stream"):
        forerun.gather(HOST, HOST.copy(), PAIRS, stream=1)
    with pytest.raises(refused, match="stream"):
        forerun.gather(HOST, CudaTensor([8, 4]), PAIRS, stream="current")
    for out in None, np.zeros((2, 4), np.float32):
        with pytest.raises(refused, match="stream"):
            forerun.Table(4).find([1, 2], out, stream=1)


def test_other_devices_are_named():
    class Elsewhere:
        def __init__(self, kind):
            self.kind = kind

        def __dlpack_device__(self):
            return self.kind, 3

        def __dlpack__(self, **options):
            raise AssertionError("no library can use it")

    table = forerun.Table(4)
    for kind, name in [(10, "ROCm device 3"), (8, "Metal device 3"), (99, "kind 99")]:
        with pytest.raises(refused, match=name):
            table.find([1], out=Elsewhere(kind))
        with pytest.raises(refused, match=name):
            forerun.gather(HOST, Elsewhere(kind), PAIRS)
    with pytest.raises(refused, match="__dlpack_device__"):
        table.find(Elsewhere("gpu"))
