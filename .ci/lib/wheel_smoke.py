"""Writes and reads a store, a cache and a table with an installed wheel, which needs only NumPy."""

import sys
import tempfile
from pathlib import Path

import forerun
import numpy as np

assert Path(forerun.__file__).is_relative_to(sys.prefix), (
    f"{forerun.__file__} is not the installed wheel"
)

with tempfile.TemporaryDirectory() as folder:
    numbers = np.arange(10_000)
    rows = np.random.default_rng(1).random((10_000, 16)).astype(np.float32)

    with forerun.Db(folder + "/store") as db:
        db["oslo"] = b"59.91,10.75"
        db.put_many(numbers, rows)
        db.compact()
    with forerun.Db(folder + "/store") as db:
        assert db.multi_get(["oslo", "lyon"]) == [b"59.91,10.75", None]
        out = np.zeros((3, 16), np.float32)
        found = db.multi_get(np.array([7, 20_000, 9_999]), out=out)
        assert found.tolist() == [True, False, True]
        assert np.array_equal(out[[0, 2]], rows[[7, 9_999]])

    with forerun.Table(dim=16, path=folder + "/rows", host_capacity=1_000) as table:
        table.insert(numbers, rows)
        back, found = table.find(numbers)
        assert found.all() and np.array_equal(back, rows)
        assert not table.find(np.array([10_000]))[1][0]

    cache = forerun.Cache(32 << 20)
    cache.set("bern", b"46.95,7.45")
    assert cache.multi_get(["bern", "rome"]) == [b"46.95,7.45", None]

try:
    forerun.Db("/dev/null/store")
except forerun.Error as error:
    print(f"an error is typed: {type(error).__name__}")
else:
    sys.exit("a store in /dev/null was opened")
print(
    f"forerun {forerun.__version__} on Python {sys.version.split()[0]}, NumPy {np.__version__}: ok"
)
