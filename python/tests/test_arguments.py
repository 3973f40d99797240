"""The keys, rows, types and sizes that a table accepts, and those that it refuses."""

import forerun
import numpy as np
import pytest

refused = pytest.raises(forerun.errors.InvalidArgumentError)


@pytest.fixture
def table():
    table = forerun.Table(2)
    table.insert(np.arange(10), np.stack([np.arange(10, dtype=np.float32)] * 2, axis=1))
    return table


@pytest.mark.parametrize(
    "keys",
    [
        [3.7],
        [3.0],
        3.7,
        ["3"],
        [b"3"],
        "3",
        [[1], [2, 3]],
        [1, None],
        [True],
        [3, True],
        [[3], [np.True_]],
        [1 << 64],
        [-(1 << 63) - 1],
        np.array([3.7]),
        np.array([True]),
        np.array(["3"]),
        np.array([3], "datetime64[s]"),
        np.array([3], object),
    ],
    ids=repr,
)
def test_keys_must_be_integers(table, keys):
    rows = np.zeros((1, 2), np.float32)
    for call in (
        lambda: table.erase(keys),
        lambda: table.find(keys),
        lambda: table.contains(keys),
        lambda: table.insert(keys, rows),
        lambda: table.add_at(keys, rows),
        lambda: table.prefetch(keys),
    ):
        with refused:
            call()
    assert len(table) == 10


def test_masked_arrays_are_refused(table, tmp_path):
    keys = np.ma.masked_array([1, 2, 3], mask=[False, True, False])
    rows = np.ma.masked_array(np.ones((3, 2), np.float32), mask=np.eye(3, 2))
    db = forerun.Db(tmp_path / "store")
    for call in (
        lambda: table.find(keys),
        lambda: table.erase(keys),
        lambda: table.insert(keys.data, rows),
        lambda: table.find(keys.data, rows),
        lambda: db.put_many(keys, keys.data),
        lambda: db.put_many(keys.data, rows),
        lambda: db.put_many(["a"], [rows[0]]),
        lambda: db.multi_get(keys.data, out=rows),
        lambda: forerun.gather(rows, rows.data.copy(), ([0], [1])),
        lambda: forerun.gather(rows.data, rows.data.copy(), (keys, keys)),
    ):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="is a masked array"):
            call()
    assert table.contains(keys.compressed()).tolist() == [True, True]


@pytest.mark.parametrize("key", [3.0, "3", True, None, 1 << 64, -(1 << 63) - 1], ids=repr)
def test_keys_of_a_dict_of_rows_must_be_integers(table, key):
    for call in (
        lambda: table[key],
        lambda: key in table,
        lambda: table.get(key),
        lambda: table.__delitem__(key),
        lambda: table.__setitem__(key, [1, 2]),
    ):
        with refused:
            call()
    assert len(table) == 10


def test_a_negative_key_is_its_bit_pattern(table):
    greatest = (1 << 64) - 1
    table[-1] = [7, 7]
    for keys in (
        [-1],
        [greatest],
        [-1, 1 << 63],
        np.array([-1]),
        np.array([-1], np.int32),
        np.array([greatest], np.uint64),
    ):
        rows, found = table.find(keys)
        assert found[0] and rows[0].tolist() == [7, 7]
    assert -1 in table and greatest in table and (table[-1] == table[greatest]).all()
    assert greatest in list(table.keys())
    del table[-1]
    assert not table.contains([greatest])[0]


def test_lists_of_integers_keep_every_bit(table):
    keys = [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 53) + 1]
    table.insert(keys, np.zeros((5, 2), np.float32))
    assert table.contains(np.array(keys, np.uint64)).all()
    assert table.find([])[0].shape == (0, 2)
    assert table.find(((1, 2), (3, 4)))[0].shape == (2, 2, 2)
    assert table.find(np.int16(3))[1] and table.find(3)[1]


def test_scores_are_not_negative():
    table = forerun.Table(2, evict_strategy="customized")
    rows = np.zeros((1, 2), np.float32)
    for scores in ([-1], np.array([-1])):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="scores"):
            table.insert([1], rows, scores=scores)
    table.insert([1], rows, scores=[(1 << 64) - 1])


def test_lists_of_rows_are_accepted_if_their_shape_fits(table):
    table.insert([1, 2], [[1, 2.5], (3, 4)])
    assert table.find([1, 2])[0].tolist() == [[1, 2.5], [3, 4]]
    table[3] = (5, 6)
    table.add_at([3], [[1, 1]])
    assert table[3].tolist() == [6, 7]
    small = forerun.Table(2, "uint8")
    small[1] = [0, 255]
    half = forerun.Table(3, "bfloat16")
    half[1] = [1.0, 256.0 + 1, float("nan")]
    assert half[1].view(np.uint16)[:2].tolist() == [0x3F80, 0x4380]
    for of, rows in (
        (small, [[0, 256]]),
        (small, [[0, -1]]),
        (small, [[0, 1.5]]),
        (table, [["1", "2"]]),
        (table, [[1], [2, 3]]),
        (table, [[1, 2, 3]]),
        (table, [[True, False]]),
    ):
        with refused:
            of.insert([1], rows)
    assert small[1].tolist() == [0, 255]


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float16"), "f2", "<f2", "float16"])
def test_numpy_dtypes_are_accepted(dtype):
    assert forerun.Table(2, dtype).dtype == "float16"
    assert forerun.Table(2, float).dtype == "float64"


def test_unsupported_dtypes_are_named():
    for dtype, words in (
        ("complex64", "complex64"),
        ("float33", "float33"),
        (np.uint64, "uint64"),
        (">f4", "byte order"),
        (7, "7"),
    ):
        with pytest.raises(forerun.errors.InvalidArgumentError, match=words):
            forerun.Table(2, dtype)


def test_torch_dtypes_are_accepted():
    torch = pytest.importorskip("torch")
    for name in ("float32", "bfloat16", "int64"):
        assert forerun.Table(2, getattr(torch, name)).dtype == name
    with pytest.raises(forerun.errors.InvalidArgumentError, match="complex64"):
        forerun.Table(2, torch.complex64)


def test_sizes_are_integers():
    for size in (4e9, 1.5, "10"):
        with pytest.raises(TypeError):
            forerun.Table(2, host_capacity=size)
    assert forerun.Table(2, host_capacity=np.int64(100)).stats()["host_capacity_rows"] == 100


def test_numbers_out_of_range_name_the_argument(tmp_path):
    table, cache = forerun.Table(2), forerun.Cache()
    db = forerun.Db(tmp_path / "store")
    backups = forerun.Backups(tmp_path / "backups")
    host, device = np.zeros((4, 8), np.uint8), np.zeros((4, 8), np.uint8)
    pairs = np.array([[0, 0]], np.int32)
    for argument, call in (
        ("dim", lambda number: forerun.Table(number)),
        ("host_capacity", lambda number: forerun.Table(2, host_capacity=number)),
        ("device_capacity", lambda number: forerun.Table(2, device_capacity=number)),
        ("device", lambda number: forerun.Table(2, device_capacity=4, device=number)),
        ("batch", lambda number: table.export(number)),
        ("ttl_seconds", lambda number: cache.set("k", "v", ttl_seconds=number)),
        ("ttl_seconds", lambda number: cache.touch("k", number)),
        ("version", lambda number: cache.compare_and_set("k", "v", number)),
        ("delta", lambda number: cache.increment("k", number)),
        ("ttl_seconds", lambda number: db.keyspace("k", ttl_seconds=number)),
        ("number", lambda number: backups.restore(tmp_path / "restored", number=number)),
        ("number", lambda number: backups.delete(number)),
        ("newest", lambda number: backups.purge_old(number)),
        ("threads", lambda number: forerun.gather(host, device, pairs, threads=number)),
    ):
        for number in (-1, 10**400):
            with pytest.raises(forerun.errors.InvalidArgumentError, match=f"`{argument}`"):
                call(number)
        with pytest.raises(TypeError, match=argument):
            call(object())
    for close in (table, cache, db, backups):
        close.close()


def test_a_capacity_takes_no_memory_before_there_are_rows():
    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident_bytes()
    table = forerun.Table(16, host_capacity=4_000_000_000)
    table.insert(np.arange(1000), np.ones((1000, 16), np.float32))
    assert resident_bytes() - before < 64 << 20
    assert table.stats()["memory_bytes"] < 64 << 20
    table.close()


def test_too_large_a_capacity_is_a_memory_error():
    table = forerun.Table(1 << 17, "float64")
    keys = np.arange(10_000_000)
    with pytest.raises(MemoryError):
        table.find(keys)
    with pytest.raises(MemoryError):
        forerun.Table(1 << 17, "float64", host_capacity=4_000_000_000)


def test_a_table_without_a_path_keeps_all_rows_unless_eviction_is_asked_for():
    table = forerun.Table(4)
    keys = np.arange(70_000)
    table.insert(keys, np.ones((70_000, 4), np.float32))
    table.wait_idle()
    assert table.contains(keys).all()

    table = forerun.Table(4, host_capacity=1000)
    with pytest.raises(forerun.errors.PartialError, match="full") as caught:
        table.insert(keys[:1100], np.ones((1100, 4), np.float32))
    assert caught.value.positions == list(range(1000, 1100))
    assert len(table) == 1000

    table = forerun.Table(4, host_capacity=1000, when_full="evict")
    table.insert(keys, np.ones((70_000, 4), np.float32))
    table.wait_idle()
    assert len(table) == 1000


def test_overflow_is_for_a_table_without_a_path(tmp_path):
    with refused:
        forerun.Table(4, when_full="drop")
    with refused:
        forerun.Table(4, path=tmp_path / "rows", when_full="evict")


def test_the_memory_of_the_stores_cache_counts(tmp_path):
    with forerun.Table(16, path=tmp_path / "rows", host_capacity=100, cache_bytes=8 << 20) as table:
        keys = np.arange(20_000)
        table.import_rows(keys, np.ones((20_000, 16), np.float32))
        table.checkpoint(tmp_path / "copy")
    with forerun.Table(16, path=tmp_path / "copy", host_capacity=100, cache_bytes=8 << 20) as table:
        before = table.stats()
        assert table.find(keys)[1].all()
        after = table.stats()
        assert after["memory_bytes"] - before["memory_bytes"] > 1 << 20
        assert after["memory_bytes"] > after["host_used_bytes"]


def test_outputs_are_never_copied(table):
    wide = np.zeros((3, 4), np.float32)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="contiguous") as caught:
        table.find([1, 2, 3], out=wide[:, :2])
    assert "ascontiguousarray" not in str(caught.value)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="contiguous") as caught:
        table.find([1, 2], found=np.zeros(4, bool)[::2])
    assert "ascontiguousarray" not in str(caught.value)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="ascontiguousarray"):
        table.insert([1, 2, 3], wide[:, :2])


def unaligned(array):
    """The same elements, one byte away from their alignment."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    moved = memory[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


def test_arrays_of_any_alignment_are_taken(table):
    keys, rows = unaligned(np.array([3, 70])), unaligned(np.array([[1, 2], [3, 4]], np.float32))
    table.insert(keys, rows)
    out, found = unaligned(np.zeros((2, 2), np.float32)), np.zeros(2, bool)
    table.find(keys, out, found)
    np.testing.assert_array_equal(out, rows)
    assert found.all()
    assert table.add_at(keys, rows).all()
    np.testing.assert_array_equal(table.find([3, 70])[0], 2 * rows)
    assert table.contains(keys).all()
    table.erase(keys)
    assert not table.contains(keys).any()
    fields = np.array([(4, b"x"), (5, b"y")], [("key", "<u8"), ("other", "S1")])
    np.testing.assert_array_equal(table.find(fields["key"])[0], [[4, 4], [5, 5]])


def test_indices_where_they_cannot_be_used_are_refused_by_name():
    source, destination = np.arange(8).reshape(4, 2), np.zeros((4, 2), np.int64)
    every_other = np.array([0, 9, 1, 9])[::2]
    for pairs in ((every_other, np.array([0, 1])), unaligned(np.array([[0, 0], [1, 1]]))):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="pairs"):
            forerun.gather(source, destination, pairs)


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (6, 1)])
def test_rows_of_another_shape_are_refused_though_they_have_as_many_bytes(shape):
    table, keys = forerun.Table(2), np.arange(3)
    rows = np.zeros(shape, np.float32)
    for call in (
        lambda: table.insert(keys, rows),
        lambda: table.insert(keys, rows.tolist()),
        lambda: table.add_at(keys, rows),
        lambda: table.find(keys, rows),
    ):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="shape"):
            call()
    assert len(table) == 0
    with pytest.raises(forerun.errors.InvalidArgumentError, match="float64"):
        table.insert(keys, rows.astype(np.float64))
    for shape in [(3, 2), (6,), (3, 1, 2), (3, 2, 1)]:
        table.insert(keys, np.zeros(shape, np.float32))
