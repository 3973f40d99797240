"""`Table.find_pooled` compared with NumPy, bit for bit."""

import forerun
import numpy as np
import pytest
from forerun.errors import InvalidArgumentError

DIM = 5


def table_of(dtype, keys, random):
    """A table with a random row for each key, and these rows dequantized to float32."""
    if dtype in ("float32", "float16"):
        rows = random.normal(size=(len(keys), DIM)).astype(dtype)
        values = rows.astype(np.float32)
    elif dtype == "bfloat16":
        rows = random.integers(0x3F00, 0x4200, size=(len(keys), DIM)).astype(np.uint16)
        values = (rows.astype(np.uint32) << 16).view(np.float32)
    else:
        parameters = random.normal(size=(len(keys), 1 if dtype == "int8" else 2))
        parameters = parameters.astype(np.float32)
        low, high = (-128, 128) if dtype == "int8" else (0, 256)
        quantized = random.integers(low, high, size=(len(keys), DIM)).astype(dtype)
        values = quantized.astype(np.float32) * parameters[:, :1]
        if dtype == "uint8":
            values = values + parameters[:, 1:]
        rows = np.concatenate([quantized.view(np.uint8), parameters.view(np.uint8)], axis=1)
        rows = rows.view(dtype)
    table = forerun.Table(dim=rows.shape[1], dtype=dtype)
    table.insert(keys, rows)
    return table, dict(zip(keys.tolist(), values))


def plain(rows, keys, offsets, weights, mode):
    sums, found = [], []
    for first, end in zip(offsets[:-1], offsets[1:]):
        total, divisor, here = np.zeros(DIM, np.float32), np.float32(0), 0
        for key, weight in zip(keys[first:end].tolist(), weights[first:end]):
            divisor = divisor + weight
            if key in rows:
                total = total + rows[key] * weight
                here += 1
        if mode == "mean" and divisor != 0:
            total = total / divisor
        sums.append(total)
        found.append(here)
    return np.array(sums, np.float32), np.array(found, np.uint32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_rows_are_numpys_sums_of_dequantized_rows(dtype, mode, weighted):
    random = np.random.default_rng(3)
    table, rows = table_of(dtype, np.arange(0, 400, 2), random)
    keys = random.integers(0, 400, size=1000)
    offsets = np.array([0, 0, 1, 40, 40, 999, 1000])
    weights = random.normal(size=1000).astype(np.float32) if weighted else None
    ones = np.ones(1000, np.float32)
    expected = plain(rows, keys, offsets, ones if weights is None else weights, mode)
    pooled, found = table.find_pooled(keys, offsets, weights=weights, mode=mode)
    assert pooled.dtype == np.float32 and found.dtype == np.uint32
    assert pooled.tobytes() == expected[0].tobytes()
    assert found.tolist() == expected[1].tolist()
    half, _ = table.find_pooled(keys, offsets, weights=weights, mode=mode, dtype=np.float16)
    assert half.tobytes() == expected[0].astype(np.float16).tobytes()
    out = np.full((6, DIM), np.nan, np.float32)
    returned, _ = table.find_pooled(keys, offsets, weights=weights, mode=mode, out=out)
    assert returned is out and out.tobytes() == pooled.tobytes()


def test_wrong_bags_are_refused_with_a_message():
    table = forerun.Table(dim=2)
    table.insert([1], [[1.0, 2.0]])

    def refused(match, *args, **options):
        with pytest.raises(InvalidArgumentError, match=match):
            table.find_pooled(*args, **options)

    refused("there are none", [1], np.array([], np.int64))
    refused("offset 0 is 1", [1], [1, 1])
    refused("the last offset is 2, but there is 1 key|there are 1 key", [1], [0, 2])
    refused("offset 2 is 0, below the one before, 1", [1], [0, 1, 0, 1])
    refused("offsets must be numbers from 0", [1], [-1, 1])
    refused("weights: 2 numbers, 1 expected", [1], [0, 1], weights=np.ones(2, np.float32))
    refused("`weights` is an array of float64", [1], [0, 1], weights=np.ones(1))
    refused("`mode` must be one of sum, mean", [1], [0, 1], mode="max")
    refused("`dtype` must be one of float32", [1], [0, 1], dtype="int32")
    refused(r"`out` must have the shape \(1, 2\)", [1], [0, 1], out=np.zeros((2, 1), np.float32))
    refused("float64, but the rows are of float32", [1], [0, 1], out=np.zeros((1, 2)))
    integers = forerun.Table(dim=2, dtype="int32")
    with pytest.raises(InvalidArgumentError, match="rows of int32 cannot be pooled"):
        integers.find_pooled([1], [0, 1])
    short = forerun.Table(dim=8, dtype="uint8")
    with pytest.raises(InvalidArgumentError, match="rows of 8 bytes are not rows of quint8"):
        short.find_pooled([1], [0, 1])
    table.close()
    with pytest.raises(forerun.errors.ClosedError):
        table.find_pooled([1], [0, 1])


def test_pooled_rows_are_those_of_torch():
    torch = pytest.importorskip("torch")
    table = forerun.Table(dim=64)
    weight = torch.randn(100, 64)
    table.insert(np.arange(100), weight)
    keys = torch.randint(0, 100, (500,))
    offsets = torch.tensor([0, 3, 3, 200, 500])
    for mode in ("sum", "mean"):
        expected = torch.nn.functional.embedding_bag(
            keys, weight, offsets, mode=mode, include_last_offset=True
        )
        out = torch.empty(4, 64)
        table.find_pooled(keys, offsets, mode=mode, out=out)
        torch.testing.assert_close(out, expected)
