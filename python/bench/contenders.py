"""What is measured: batched lookups of a Forerun table, arrays in memory, and stores on disk.

    forerun        a budget of rows in memory, all rows in its store   keys     find(keys, out, found)
    numpy          all rows in memory, whatever the budget             indices  rows[indices]
    numpy-take     the same, into existing memory                      indices  rows.take(indices, out=out)
    embedding-bag  the same, with torch.nn.EmbeddingBag, one row a bag indices
    lmdb           its cache is the system's: the whole file           keys     get after get in one transaction
    rocksdb        a block cache of as many bytes as Forerun has       keys     get after get, as of a dict
    rocksdb-multi  the same, with its MultiGet                         keys

The whole cost of an answer counts, including making the keys' bytes and assembling the values into
an array. What a caller would already have, an array or a tensor of indices, is made before the
measurement.
"""

import importlib
from pathlib import Path
from typing import Any

import forerun
import numpy as np

LOADED_AT_ONCE = 1 << 14


class Contender:
    """A way to store rows and look them up."""

    name = ""
    needs: str | None = None  # the module that it needs
    on_disk = False

    def __init__(self, rows: np.ndarray, keys: np.ndarray, directory: Path) -> None:
        self.rows, self.keys, self.directory = rows, keys, directory

    @classmethod
    def missing(cls) -> str | None:
        """The reason why it cannot be measured, if there is one."""
        try:
            if cls.needs:
                importlib.import_module(cls.needs)
        except ImportError as error:
            return f"{cls.name} is skipped: {error}"
        return None

    def load(self, report) -> None:
        """Stores all rows. Calls `report` with the number stored so far."""

    def open(self, budget_rows: int, budget_bytes: int) -> None:
        """Prepares for lookups with this many rows, or bytes, in memory."""

    def size(self, batch: int) -> None:
        """Prepares for batches of this length."""

    def wanted(self, positions: np.ndarray) -> Any:
        """The argument of `find` for the rows at these positions."""
        return self.keys[positions]

    def find(self, wanted: Any) -> Any:
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Counts since it was opened, if it has any."""
        return {}

    def wait_idle(self) -> None:
        """Waits until no row is being moved."""

    def close(self) -> None:
        """Releases memory and files."""

    def _batches(self, length: int = LOADED_AT_ONCE):
        for start in range(0, len(self.keys), length):
            part = slice(start, start + length)
            yield self.keys[part], self.rows[part]


class Forerun(Contender):
    name = "forerun"
    on_disk = True
    cache_bytes = 64 << 20  # for pages, in addition to the budget

    def _table(self, budget_rows: int) -> forerun.Table:
        path, dtype = self.directory / "rows", self.rows.dtype.name
        return forerun.Table(
            self.rows.shape[1],
            dtype,
            path=path,
            host_capacity=budget_rows,
            cache_bytes=self.cache_bytes,
        )

    def load(self, report) -> None:
        done = 0
        with self._table(1) as table:
            # Tens of MiB of ascending keys go directly into files of the store.
            for keys, rows in self._batches((64 << 20) // self.rows[:1].nbytes):
                table.import_rows(keys, rows)
                done += len(keys)
                report(done)
        # Compact first, so that measured lookups do not wait for work left over from the load.
        with forerun.Db(self.directory / "rows") as db:
            db.compact()

    def open(self, budget_rows: int, budget_bytes: int) -> None:
        self.table = self._table(budget_rows)
        if budget_rows >= len(self.keys):
            for start in range(0, len(self.keys), LOADED_AT_ONCE):
                self.table.prefetch(self.keys[start : start + LOADED_AT_ONCE])
                self.table.wait_idle()

    def size(self, batch: int) -> None:
        self.out = np.empty((batch, self.rows.shape[1]), self.rows.dtype)
        self.found = np.empty(batch, bool)

    def find(self, wanted):
        return self.table.find(wanted, self.out, self.found)[0]

    def counters(self) -> dict[str, int]:
        return self.table.stats()

    def wait_idle(self) -> None:
        self.table.wait_idle()

    def close(self) -> None:
        self.table.close()


class Numpy(Contender):
    name = "numpy"

    def wanted(self, positions):
        return positions

    def find(self, wanted):
        return self.rows[wanted]


class NumpyTake(Numpy):
    name = "numpy-take"

    def size(self, batch: int) -> None:
        self.out = np.empty((batch, self.rows.shape[1]), self.rows.dtype)

    def find(self, wanted):
        # With mode="raise" NumPy would go through a buffer.
        return self.rows.take(wanted, axis=0, out=self.out, mode="clip")


class EmbeddingBag(Contender):
    name = "embedding-bag"
    needs = "torch"

    def open(self, budget_rows: int, budget_bytes: int) -> None:
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        self.bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(self.rows), mode="sum")

    def wanted(self, positions):
        return self.torch.from_numpy(positions).unsqueeze(1)

    def find(self, wanted):
        with self.torch.inference_mode():
            return self.bag(wanted)


class Lmdb(Contender):
    name = "lmdb"
    needs = "lmdb"
    on_disk = True

    def load(self, report) -> None:
        import lmdb

        row_bytes = self.rows[:1].nbytes
        # Address space: pages may be half empty, and long rows take whole pages.
        map_bytes = 4 * len(self.keys) * (row_bytes + 64) + (1 << 30)
        done = 0
        with lmdb.open(str(self.directory), map_size=map_bytes, sync=False, writemap=True) as env:
            for keys, rows in self._batches():
                with env.begin(write=True) as txn:
                    entries = zip(key_bytes(keys), rows_bytes(rows))
                    txn.cursor().putmulti(entries, append=True)
                done += len(keys)
                report(done)

    def open(self, budget_rows: int, budget_bytes: int) -> None:
        import lmdb

        self.env = lmdb.open(str(self.directory), readonly=True, lock=False, readahead=False)

    def find(self, wanted):
        with self.env.begin(buffers=True) as txn:
            get = txn.get
            return array_of([get(key) for key in key_bytes(wanted)], self.rows)

    def close(self) -> None:
        self.env.close()


class RocksDb(Contender):
    name = "rocksdb"
    needs = "rocksdict"
    on_disk = True
    # The open stores by directory, with their number of users. A store is opened once; the two
    # kinds of lookup share it and its cache.
    opened: dict[Path, list] = {}

    def _open(self, cache_bytes: int):
        import rocksdict

        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(cache_bytes))
        blocks.set_bloom_filter(10.0, False)  # Forerun has filters too
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        return rocksdict.Rdict(str(self.directory / "rocksdb"), options)

    def load(self, report) -> None:
        import rocksdict

        done = 0
        if (self.directory / "rocksdb").exists():
            return  # already loaded by the other RocksDB contender
        db = self._open(64 << 20)
        for keys, rows in self._batches():
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, row in zip(key_bytes(keys), rows_bytes(rows)):
                batch.put(key, row)
            db.write(batch)
            done += len(keys)
            report(done)
        db.flush()
        db.compact_range(None, None)
        db.close()

    def open(self, budget_rows: int, budget_bytes: int) -> None:
        shared = self.opened.setdefault(self.directory, [None, 0])
        shared[0] = shared[0] or self._open(budget_bytes)
        shared[1] += 1
        self.db = shared[0]

    def find(self, wanted):
        db = self.db
        return array_of([db[key] for key in key_bytes(wanted)], self.rows)

    def close(self) -> None:
        shared = self.opened[self.directory]
        shared[1] -= 1
        if shared[1] == 0:
            del self.opened[self.directory]
            self.db.close()


class RocksDbMulti(RocksDb):
    name = "rocksdb-multi"

    def find(self, wanted):
        return array_of(self.db[key_bytes(wanted)], self.rows)


def key_bytes(keys: np.ndarray) -> list[bytes]:
    """Each key as eight bytes, big-endian, so that stores sort keys like the numbers."""
    text = keys.byteswap().tobytes()
    return [text[start : start + 8] for start in range(0, len(text), 8)]


def rows_bytes(rows: np.ndarray) -> list[bytes]:
    text, row_bytes = rows.tobytes(), rows[:1].nbytes
    return [text[start : start + row_bytes] for start in range(0, len(text), row_bytes)]


def array_of(values: list[bytes], like: np.ndarray) -> np.ndarray:
    """Concatenates values into an array of rows."""
    return np.frombuffer(b"".join(values), like.dtype).reshape(-1, like.shape[1])


ALL = [Forerun, Numpy, NumpyTake, EmbeddingBag, Lmdb, RocksDb, RocksDbMulti]
